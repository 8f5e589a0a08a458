"""The controller's settings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from controller.broker.connection import connection
from controller.config import BrokerConfig, ControllerConfig, load_config
from controller.errors import SettingsError
from controller.named_files import read_secret
from controller.secret_files import read_api_token, read_director_key, read_trust
from tests.simulators.packages import DIRECTOR_KEY, STRANGER_KEY, TRUST
from wire.trust.root import Role, TrustRoot, encode_key

NOBODY = 65534
LEAST = 'database_url = "sqlite:////tmp/x.db"\n'


def write(directory: Path, text: str) -> Path:
    path = directory / "controller.toml"
    path.write_text(text)
    return path


def test_the_least(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, LEAST))
    assert config.blobs_dir == str(tmp_path / "blobs")
    assert config.api.token_file == str(tmp_path / "api.token")
    assert config.broker.password_file is None
    assert config.access == "mosquitto"


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = f'{LEAST}trust_file = "/etc/trust.json"\n[broker]\nuser = "u"\npassword_file = "p"\n'
    config = load_config(write(tmp_path, text))
    assert config.trust_file == "/etc/trust.json"
    assert config.broker.password_file == str(tmp_path / "p")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "database_url"),
        ("database_url = 3\n", "database_url"),
        (f"{LEAST}tick_intervall_s = 1\n", "tick_intervall_s"),
        (f"{LEAST}tick_interval_s = 0\n", "tick_interval_s"),
        (f"{LEAST}transfer_bytes_per_s = 10\n", "transfer_bytes_per_s"),
        (f"{LEAST}telemetry_retention_days = 0\n", "telemetry_retention_days"),
        (f'{LEAST}access = "other"\n', "access"),
        (f"{LEAST}[api]\nport = 70000\n", "api.port"),
        (f'{LEAST}[api]\nhost = "a\\u0000b"\n', "api.host holds the character NUL"),
        (f'{LEAST}data_dir = "a\\u0000b"\n', "data_dir holds the character NUL"),
        (f"{LEAST}[api]\nconnections = 0\n", "api.connections"),
        (f"{LEAST}[api]\nconnections_per_client = 0\n", "api.connections_per_client"),
        (f'{LEAST}[api]\ncert_file = "c"\n', "api.cert_file"),
        (f'{LEAST}[api]\nca_file = "c"\n', "api.ca_file"),
        (
            f'{LEAST}[api]\nclear_text = true\ncert_file = "c"\nkey_file = "k"\n',
            "asks for TLS and api.clear_text for none",
        ),
        (f"{LEAST}[broker]\nport = 0\n", "broker.port"),
        (f'{LEAST}[broker]\nuser = "u"\n', "broker.user"),
        (f'{LEAST}[broker]\nshare = "a"\n', "needs PostgreSQL"),
        (f'{LEAST}[broker]\nshare = "a/#"\n', "broker.share"),
        (f'{LEAST}[broker]\ncert_file = "c"\n', "broker.cert_file"),
        (f'{LEAST}[broker]\ncert_file = "c"\nkey_file = "k"\n', "needs broker.ca_file"),
        (f'{LEAST}[broker]\nclear_text = true\nca_file = "c"\n', "asks for TLS and"),
        (f'{LEAST}[broker]\nclear_text = true\nhost = "0.0.0.0"\n', "for loopback only"),
        (f'{LEAST}[broker]\nclear_text = true\nhost = "broker.lan"\n', "for loopback only"),
        ("not toml", "controller.toml"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_config(write(tmp_path, text))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="fleet init"):
        load_config(tmp_path / "controller.toml")


def with_password(config: ControllerConfig) -> ControllerConfig:
    folder = Path(config.trust_file).parent
    broker = BrokerConfig(user="u", password_file=str(folder / "broker.password"))
    return msgspec.structs.replace(config, broker=broker)


def test_settings_of_another_user_are_for_their_owner() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:  # 0700, and of root
        path = write(Path(name), LEAST)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(SettingsError, match="permission denied") as caught:
                load_config(path)
        finally:
            os.seteuid(0)
    assert caught.value.remedy == "run as the owner of the controller's directory"


def test_a_file_that_the_settings_name_is_missing(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    (tmp_path / "director.key").write_bytes(b"d" * 32)
    readers: list[tuple[str, Callable[[], object]]] = [
        ("trust_file", lambda: read_trust(config, DIRECTOR_KEY)),
        ("api.token_file", lambda: read_api_token(config)),
        ("broker.password_file", lambda: connection(with_password(config))),
    ]
    for setting, read in readers:
        with pytest.raises(SettingsError, match="no such file") as caught:
            read()
        assert caught.value.remedy == (
            f"bring the file back, or correct {setting} in controller.toml"
        )


def test_a_file_without_its_secret_names_its_setting(tmp_path: Path) -> None:
    config = with_password(config_in(tmp_path))
    for name in ("director.key", "trust.json", "api.token", "broker.password"):
        (tmp_path / name).write_bytes(b"\xff\n\xff")
    readers: list[tuple[str, Callable[[], object]]] = [
        ("director_key_file", lambda: read_director_key(config)),
        ("trust_file", lambda: read_trust(config, DIRECTOR_KEY)),
        ("api.token_file", lambda: read_api_token(config)),
        ("broker.password_file", lambda: connection(config)),
    ]
    for setting, read in readers:
        with pytest.raises(SettingsError) as caught:
            read()
        assert f"correct {setting} in controller.toml" in caught.value.remedy


def config_in(directory: Path) -> ControllerConfig:
    return ControllerConfig(
        database_url="",
        trust_file=str(directory / "trust.json"),
        director_key_file=str(directory / "director.key"),
        api=load_config(write(directory, LEAST)).api,
    )


def test_keys_and_trust(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    (tmp_path / "director.key").write_bytes(b"d" * 32)
    (tmp_path / "trust.json").write_bytes(TRUST.to_bytes())
    key = read_director_key(config)
    assert key.public_key == DIRECTOR_KEY.public_key
    assert read_trust(config, key) == TRUST


def test_a_controller_that_no_device_would_believe_does_not_start(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    two = Role(
        keys=(encode_key(DIRECTOR_KEY.public_key), encode_key(STRANGER_KEY.public_key)),
        threshold=2,
    )
    roots = (
        (TRUST, STRANGER_KEY),
        (TrustRoot(release=TRUST.release, director=two), DIRECTOR_KEY),
    )
    for trust, key in roots:
        (tmp_path / "trust.json").write_bytes(trust.to_bytes())
        with pytest.raises(SettingsError, match="no device would trust"):
            read_trust(config, key)


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    for content in ("short-one", "", "two\nlines-of-a-secret", "sécret-of-many-characters"):
        (tmp_path / "api.token").write_text(content)
        with pytest.raises(SettingsError) as caught:
            read_api_token(config)
        assert not content or content not in str(caught.value)
    (tmp_path / "api.token").write_text("0123456789abcdef\n")
    assert read_api_token(config) == "0123456789abcdef"
    (tmp_path / "director.key").write_bytes(b"too short")
    with pytest.raises(SettingsError) as caught:
        read_director_key(config)
    assert "too short" not in str(caught.value)
    (tmp_path / "p").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError):
        read_secret(str(tmp_path / "p"), "the password")
    with pytest.raises(SettingsError):
        read_secret(str(tmp_path / "none"), "the password")


@pytest.mark.parametrize(
    ("url", "absolute"),
    [
        ("sqlite:///x.db", "sqlite:///{base}/x.db"),
        ("sqlite:///a/x.db?timeout=5", "sqlite:///{base}/a/x.db?timeout=5"),
        ("sqlite+pysqlite:///x.db", "sqlite+pysqlite:///{base}/x.db"),
        ("sqlite:////srv/x.db", "sqlite:////srv/x.db"),
        ("postgresql://u@h/x", "postgresql://u@h/x"),
        ("postgresql:///x", "postgresql:///x"),
        ("sqlite://", "sqlite://"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
    ],
)
def test_a_database_file_is_relative_to_the_settings(
    tmp_path: Path, url: str, absolute: str
) -> None:
    config = load_config(write(tmp_path, f'database_url = "{url}"\n'))
    assert config.database_url == absolute.format(base=tmp_path)
