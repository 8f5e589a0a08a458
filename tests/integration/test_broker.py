"""A local Mosquitto is found, got without root, run, and every fault is one clear line."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controller.app.new_home import HomeOptions, create_home
from controller.broker.accounts import ACCOUNTS_FILE
from controller.broker.errors import (
    BrokerDirectoryError,
    BrokerNotFoundError,
    BrokerPortError,
    BrokerStartError,
)
from controller.broker.install import Mosquitto, locate, missing_sonames, package_names
from controller.broker.mosquitto import (
    CONFIG_FILE,
    LOG_FILE,
    PATTERNS_FILE,
    Broker,
    BrokerSettings,
    config_text,
)
from examples.digits.box import free_port
from tests.simulators.patience import PATIENCE_S
from wire.errors import FleetError

pytestmark = pytest.mark.broker
UNPACK = """
import sys
from pathlib import Path
from controller.broker.mosquitto import Broker, BrokerSettings
from controller.broker.install import default_cache, unpack
from examples.digits.box import free_port

found = unpack(default_cache())
broker = Broker(
    BrokerSettings(directory=Path(sys.argv[1]), port=free_port(), anonymous=True), found
)
broker.start()
print(found.program, found.plugin, broker.pid is not None)
broker.stop()
"""


@pytest.fixture
def installed(tmp_path: Path) -> Mosquitto:
    found = locate(tmp_path / "cache")
    if found is None:
        pytest.skip("Mosquitto is not installed")
    return found


@pytest.fixture
def broker(installed: Mosquitto, tmp_path: Path) -> Iterator[Broker]:
    settings = BrokerSettings(
        directory=tmp_path / "with space" / "broker", port=free_port(), anonymous=True
    )
    broker = Broker(settings, installed)
    yield broker
    broker.kill()


def test_starts_accepts_and_stops(broker: Broker, tmp_path: Path) -> None:
    broker.start()
    pid = broker.pid
    assert pid is not None
    config = tmp_path / "with space" / "broker" / CONFIG_FILE
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    broker.stop()
    assert broker.pid is None
    assert not Path(f"/proc/{pid}").exists()


def test_starts_again_after_a_crash(broker: Broker) -> None:
    broker.start()
    broker.kill()
    broker.start()
    assert broker.pid is not None


def test_runs_with_the_accounts_of_a_new_home(installed: Mosquitto, tmp_path: Path) -> None:
    port = free_port()
    create_home(tmp_path / "home", HomeOptions(broker_port=port))
    broker = Broker(BrokerSettings(directory=tmp_path / "home" / "broker", port=port), installed)
    try:
        broker.start()
        assert broker.pid is not None
    finally:
        broker.kill()


def test_occupied_port(installed: Mosquitto, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        broker = Broker(BrokerSettings(directory=tmp_path, port=port, anonymous=True), installed)
        with pytest.raises(BrokerPortError, match=f"127.0.0.1:{port}: address already in use"):
            broker.start()


def test_foreign_address(installed: Mosquitto, tmp_path: Path) -> None:
    settings = BrokerSettings(directory=tmp_path, host="192.0.2.1", port=1883, anonymous=True)
    with pytest.raises(BrokerPortError, match=r"192\.0\.2\.1:1883"):
        Broker(settings, installed).start()


def test_directory_that_is_a_file(installed: Mosquitto, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = BrokerSettings(directory=tmp_path / "file" / "x", port=free_port(), anonymous=True)
    with pytest.raises(BrokerDirectoryError, match="cannot write"):
        Broker(settings, installed).start()


@pytest.mark.parametrize("name", [CONFIG_FILE, PATTERNS_FILE])
def test_links_lead_no_write_elsewhere(installed: Mosquitto, tmp_path: Path, name: str) -> None:
    victim, directory = tmp_path / "victim", tmp_path / "broker"
    victim.write_text("of root")
    directory.mkdir()
    (directory / name).symlink_to(victim)
    broker = Broker(
        BrokerSettings(directory=directory, port=free_port(), anonymous=True), installed
    )
    broker.start()
    broker.stop()
    assert victim.read_text() == "of root"


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/dev/full"), os.mkfifo])
def test_what_is_no_file_cannot_be_the_log(
    installed: Mosquitto, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / LOG_FILE)
    broker = Broker(BrokerSettings(directory=tmp_path, port=free_port(), anonymous=True), installed)
    with pytest.raises(BrokerDirectoryError, match="cannot write"):
        broker.start()


def test_directory_without_accounts(installed: Mosquitto, tmp_path: Path) -> None:
    settings = BrokerSettings(directory=tmp_path, port=free_port())
    with pytest.raises(BrokerDirectoryError, match="fleet init"):
        Broker(settings, installed).start()


@pytest.mark.parametrize("content", ["{ not json", "[]", "{}", ""])
def test_damaged_accounts(installed: Mosquitto, tmp_path: Path, content: str) -> None:
    (tmp_path / ACCOUNTS_FILE).write_text(content)
    broker = Broker(BrokerSettings(directory=tmp_path, port=free_port()), installed)
    with pytest.raises(BrokerDirectoryError, match="is damaged"):
        broker.start()


def test_broker_that_ends_at_once_has_the_last_word(installed: Mosquitto, tmp_path: Path) -> None:
    program = tmp_path / "sbin" / "mosquitto"
    program.parent.mkdir()
    program.symlink_to(installed.program)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "mosquitto_dynamic_security.so").write_text("no library")
    create_home(tmp_path / "home")
    settings = BrokerSettings(directory=tmp_path / "home" / "broker", port=free_port())
    broker = Broker(settings, Mosquitto(program=program))
    with pytest.raises(BrokerStartError, match=r"ended at once: .*plugin"):
        broker.start()
    assert broker.pid is None


def test_program_that_cannot_run(tmp_path: Path) -> None:
    program = tmp_path / "sbin" / "mosquitto"
    program.parent.mkdir()
    program.write_bytes(b"\x7fELF no program")
    program.chmod(0o755)
    settings = BrokerSettings(directory=tmp_path / "b", port=free_port(), anonymous=True)
    with pytest.raises(BrokerStartError, match="cannot start"):
        Broker(settings, Mosquitto(program=program)).start()


def test_installation_without_the_plugin(tmp_path: Path) -> None:
    with pytest.raises(BrokerNotFoundError, match="no dynamic-security plugin"):
        _ = Mosquitto(program=tmp_path / "sbin" / "mosquitto").plugin


def test_nothing_installed_anywhere(tmp_path: Path) -> None:
    assert locate(tmp_path, search_path=str(tmp_path)) is None


def test_line_breaks_cannot_add_settings(tmp_path: Path) -> None:
    settings = BrokerSettings(directory=tmp_path / "x\nallow_anonymous true")
    with pytest.raises(BrokerDirectoryError, match="line break"):
        config_text(settings, Path("/plugin.so"))


def test_faults_are_one_line(installed: Mosquitto, tmp_path: Path) -> None:
    with pytest.raises(FleetError) as caught:
        Broker(BrokerSettings(directory=tmp_path, port=free_port()), installed).start()
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("soname", "package"),
    [
        ("libcjson.so.1", "libcjson1"),
        ("libwebsockets.so.17", "libwebsockets17"),
        ("libssl.so.3", "libssl3"),
        ("libfoo2.so.1", "libfoo2-1"),
    ],
)
def test_package_of_a_library(soname: str, package: str) -> None:
    assert package_names(soname) == (package, f"{package}t64")


def test_missing_libraries_each_once() -> None:
    output = "\tlibcjson.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6\n" * 2
    assert missing_sonames(output) == ("libcjson.so.1",)


@pytest.mark.skipif(os.geteuid() != 0, reason="changing to an unprivileged user needs root")
def test_broker_is_had_without_root(tmp_path: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("setpriv") is None:
        pytest.skip("apt-get or setpriv is not installed")
    # pytest's own directories are root's alone; this one must be the unprivileged user's.
    home = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        shutil.chown(home, "nobody", "nogroup")
        done = subprocess.run(
            ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", sys.executable,
             "-c", UNPACK, str(home / "broker")],
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
            timeout=PATIENCE_S,
        )  # fmt: skip
        if done.returncode != 0 and "cannot download" in done.stderr:
            pytest.skip("apt-get cannot reach its archive")
        if done.returncode in {126, 127}:
            pytest.skip("this interpreter is its owner's alone")
        assert done.returncode == 0, done.stderr
        program, plugin, runs = done.stdout.split()
        assert Path(program).is_relative_to(home / ".cache" / "edgefleet" / "mosquitto")
        assert Path(plugin).is_relative_to(home / ".cache" / "edgefleet" / "mosquitto")
        assert runs == "True"
    finally:
        shutil.rmtree(home, ignore_errors=True)
