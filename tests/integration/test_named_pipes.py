"""A named pipe where a command expects a file is refused; a pipe that the caller opened is read.

Nobody writes to the named pipes: a command that opened one to read it would never end.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agent.app.config import AgentConfig
from agent.app.config_file import load_config
from agent.app.named_files import load_profile, load_token, load_trust
from agent.cli.main import main as agent
from agent.errors import ConfigError
from controller.app.new_home import create_home
from controller.client.target import ConnectionOptions, find_controller
from packager.package.keys import generate_key
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from tests.simulators.packages import package, variant
from tests.simulators.stack import fleet_here
from wire.trust.root import Trust

URL = ("--url", "https://127.0.0.1:1")
"""Nobody listens there."""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a named pipe, a controller's directory and a package."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef\n")
    create_home(tmp_path / "home")
    key = generate_key(tmp_path / "release.key")
    package("1", [(variant("best"), b"model")], key=key).write_to(tmp_path / "package")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "package.dsse.json")
    shutil.copytree(tmp_path / "package", tmp_path / "damaged")
    (tmp_path / "damaged" / "manifest.json").unlink()
    os.mkfifo(tmp_path / "damaged" / "manifest.json")
    (tmp_path / "moved").mkdir()
    os.mkfifo(tmp_path / "moved" / "controller.toml")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        (*URL, "--token-file", "pipe", "device", "list"),
        (*URL, "--token-file", "token", "--ca-file", "pipe", "device", "list"),
        ("--home", "moved", "device", "list"),
        ("controller", "run", "moved"),
        ("controller", "backup", "moved", "new.tar"),
        ("controller", "restore", "pipe", "again"),
        ("broker", "certificate", "home", "--ca-key", "pipe"),
        ("--home", "home", "release", "publish", "folder"),
        ("--home", "home", "release", "publish", "damaged"),
        ("--home", "home", "policy", "set", "everyone", "--file", "pipe"),
        ("--home", "home", "rollout", "create", "--file", "pipe"),
        ("package", "sign", "package", "--key", "pipe"),
    ],
    ids=" ".join,
)
def test_a_named_pipe_is_no_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(here)
    done = fleet_here(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert "not a file" in done.err


def test_a_named_pipe_is_no_file_of_an_agent(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agent(["status", "--config", str(here / "pipe")]) == 2
    assert "pipe: it is not a file" in capsys.readouterr().err
    config = here / "agent.toml"
    text = """
        device = "cam-1"
        state_dir = "state"
        profile = "{here}/pipe"
        trust = "{here}/pipe"
        token_file = "{here}/pipe"
        [broker]
        host = "127.0.0.1"
    """
    config.write_text(text.format(here=here))
    settings = load_config(config)
    for read in (load_token, _load_trust, load_profile):
        with pytest.raises(ConfigError, match="not a file"):
            read(settings)


def _load_trust(config: AgentConfig) -> Trust:
    clock = FakeClock()
    return load_trust(config, Recorder(clock), clock)


def test_a_secret_comes_through_a_pipe_that_the_caller_has_opened() -> None:
    for path in ("/dev/fd/{}", "/proc/self/fd/{}"):
        reading, writing = os.pipe()
        os.write(writing, b"a-secret-token\n")
        os.close(writing)
        options = ConnectionOptions(url="http://x", token_file=Path(path.format(reading)))
        assert find_controller(options, {}).token == "a-secret-token"
        os.close(reading)
