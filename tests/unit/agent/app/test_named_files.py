"""The files that the configuration names: what is wrong with one is said with its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.app.config_file import load_config
from agent.app.named_files import load_endpoint_token, load_profile, load_token, load_trust
from agent.errors import ConfigError
from agent.trust.keeper import MetadataTrust
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.packages import TRUST
from tests.simulators.repository import Repository

CLOCK = FakeClock()

LEAST = 'device = "kiosk-17"\nstate_dir = "state"\nprofile = "p.toml"\ntrust = "t.json"\n'


def write(directory: Path, text: str) -> Path:
    path = directory / "agent.toml"
    path.write_text(text)
    return path


def test_the_files_that_it_names(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, LEAST + 'token_file = "token"\n'))
    (tmp_path / "p.toml").write_text(
        'name = "pi"\narchitecture = "aarch64"\nmemory_bytes = 1\nstorage_bytes = 1\n'
    )
    (tmp_path / "t.json").write_bytes(TRUST.to_bytes())
    assert load_profile(config).name == "pi"
    assert load_trust(config, Recorder(CLOCK), CLOCK) == TRUST
    with pytest.raises(ConfigError, match="no such file") as caught:
        load_token(config)
    assert str(tmp_path / "token") in caught.value.message
    assert "fleet token create" in caught.value.remedy
    (tmp_path / "token").write_text("  secret\n")
    assert load_token(config) == "secret"
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="holds no enrolment token"):
        load_token(config)
    assert load_token(load_config(write(tmp_path, LEAST))) is None


def test_a_faulty_profile_or_trust_root_names_its_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, LEAST))
    (tmp_path / "p.toml").write_text("name = 1\n")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"/p\.toml: name must be a text, not a whole number"):
        load_profile(config)
    with pytest.raises(ConfigError, match=r"/t\.json is neither .*: the setting \w+ is missing"):
        load_trust(config, Recorder(CLOCK), CLOCK)


def test_a_root_of_trusted_metadata_takes_the_place_of_a_trust_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, LEAST))
    fleet = Repository()
    fleet.write_root(tmp_path / "t.json")
    trust = load_trust(config, Recorder(CLOCK), CLOCK)
    assert isinstance(trust, MetadataTrust)
    assert trust.fleet_names == (fleet.authored.fleet,)
    assert trust.director.keys == ()  # nothing has come yet


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_token(tmp_path: Path, host: str) -> None:
    config = load_config(write(tmp_path, LEAST + f'[endpoint]\nhost = "{host}"\n'))
    assert load_endpoint_token(config) is None


def test_any_other_address_needs_a_token(tmp_path: Path) -> None:
    text = LEAST + '[endpoint]\nhost = "0.0.0.0"\nclear_text = true\ntoken_file = "infer.token"\n'
    config = load_config(write(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot read the endpoint token"):
        load_endpoint_token(config)
    (tmp_path / "infer.token").write_text("\n")
    with pytest.raises(ConfigError, match="holds no endpoint token"):
        load_endpoint_token(config)
    (tmp_path / "infer.token").write_text("s3cret\n")
    assert load_endpoint_token(config) == "s3cret"
