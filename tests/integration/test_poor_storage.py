"""What served before a restart serves again, whatever has become of the files beside it.

One device serves, and is told to end, for all tests; each has a copy of its files.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulators.agent_process import (
    Controller,
    Device,
    bring_listed,
    bring_to_serve,
)
from tests.simulators.broker import running_broker
from tests.simulators.packages import DIRECTOR_SEED
from tests.simulators.patience import until
from tests.simulators.repository import Repository
from wire.presence import Hello

pytestmark = pytest.mark.broker

PROGRAMS = "/usr/bin:/bin:/usr/sbin:/sbin"
READ_ONLY = """
mount --bind "$STATE" "$STATE" && mount -o remount,ro,bind "$STATE"
"""
FULL = """
cp -a "$STATE" "$STATE.copy" && mount -t tmpfs -o size=8m tmpfs "$STATE" &&
cp -a "$STATE.copy/." "$STATE" && rm -rf "$STATE.copy"
dd if=/dev/zero of="$STATE/filler" bs=4k 2> /dev/null
test "$(stat -f -c %a "$STATE")" = 0
"""


def can_mount() -> bool:
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    tried = subprocess.run(
        [unshare, "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return tried.returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")


def start_on(device: Device, prepare: str) -> None:
    """Start the agent in a name space of its own, whose state directory is prepared."""
    program = f'{prepare.strip()} || exit 99\nexec "$@"'
    agent = [sys.executable, "-P", "-m", "agent", "run", "--config", str(device.config_path)]
    with (device.directory / "log").open("ab") as log:
        device.process = subprocess.Popen(
            ["unshare", "-Urm", "sh", "-c", program, "sh", *agent],
            stdin=subprocess.DEVNULL, stderr=log,
            env=os.environ | {"STATE": str(device.config.state_dir), "PATH": PROGRAMS},
        )  # fmt: skip


def address(device: Device) -> str:
    """Return the endpoint of the agent, or nothing before it serves."""
    ready = [line for line in device.log if line["action"] == "ready"]
    return str(ready[0]["endpoint"]) if ready else ""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a device leaves that served the first package and was told to end."""
    with running_broker() as broker:
        controller = Controller(broker)
        device = Device(tmp_path_factory.mktemp("ended"), broker)
        try:
            bring_to_serve(device, controller)
            assert device.end(signal.SIGTERM) == 0
        finally:
            controller.transport.close()
            if device.process is not None:
                device.end(signal.SIGKILL)
    return device.config.state_dir


@pytest.fixture
def served(device: Device, ended: Path) -> Device:
    """Return a device that served the first package before it ended."""
    shutil.copytree(ended, device.config.state_dir, symlinks=True)
    return device


@needs_mounts
@pytest.mark.parametrize("prepare", [READ_ONLY, FULL], ids=["read-only", "full"])
def test_an_agent_on_a_bad_disk_serves_and_says_what_is_missing(
    served: Device, controller: Controller, prepare: str
) -> None:
    start_on(served, prepare)
    where = until(lambda: address(served), "being ready")
    assert served.infer(where)[0]["release"] == "digits:1.0.0"
    hello = until(lambda: controller.all("hello", Hello), "a hello")[0]
    assert hello.variant == "best"
    told = controller.event("storage", lambda e: "telemetry is kept in memory" in e.reason)
    assert "a restart loses it" in told.reason
    if prepare is READ_ONLY:
        controller.event("storage", lambda e: "`fleet-agent status`" in e.reason)
    assert served.end(signal.SIGTERM) == 0


@needs_mounts
@pytest.mark.parametrize("prepare", [READ_ONLY, FULL], ids=["read-only", "full"])
def test_a_package_that_is_whole_serves_without_current_on_a_bad_disk(
    served: Device, prepare: str
) -> None:
    (served.config.state_dir / "serving/digits").unlink()
    start_on(served, prepare)
    where = until(lambda: address(served), "being ready")
    assert served.infer(where)[0]["release"] == "digits:1.0.0"
    assert served.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("credentials.json", b'{"device": "dev'),
        ("credentials.json", b""),
        ("device.key", b"short"),
        ("telemetry.db", b"SQLite format 3\x00 and no more"),
        ("telemetry.db-wal", b"\x00" * 4096),
        ("state.json", b"{"),
        ("state.copy.json", b""),
        ("floor.json", b"{"),
    ],
)
def test_a_damaged_file_beside_the_package_does_not_end_serving(
    served: Device, controller: Controller, name: str, content: bytes
) -> None:
    Path(served.config.state_dir / name).write_bytes(content)
    served.start()
    where = until(lambda: address(served), "being ready")
    assert served.infer(where)[0]["release"] == "digits:1.0.0"
    if name == "device.key":
        found = until(lambda: served.reasons("refused"), "the reason")
        assert found[-1].startswith(f"no identity: {name}")
    if name == "credentials.json":
        until(lambda: controller.enrolments, "a second enrolment")
        until(lambda: served.ask("status")["connected"], "a connection")
    assert served.end(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    "name", ["state.json", "floor.json", ".state.json.new", "device.key", "telemetry.db"]
)
def test_a_pipe_in_the_place_of_a_file_does_not_end_serving(served: Device, name: str) -> None:
    path = served.config.state_dir / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    served.start()
    where = until(lambda: address(served), "being ready")
    assert served.infer(where)[0]["release"] == "digits:1.0.0"
    assert served.ask("pin", variant="small")["pinned"] == "small"
    assert served.end(signal.SIGTERM) == 0


def test_an_unreadable_certificate_of_the_broker_does_not_end_serving(served: Device) -> None:
    config = served.config_path.read_text()
    served.config_path.write_text(config.replace("[broker]\n", '[broker]\nca_file = "none.pem"\n'))
    served.start()
    where = until(lambda: address(served), "being ready")
    assert served.infer(where)[0]["release"] == "digits:1.0.0"
    assert until(lambda: served.reasons("refused"), "the reason")[-1].startswith("not ")
    assert served.end(signal.SIGTERM) == 0


@pytest.mark.few(1)
@needs_mounts
@pytest.mark.parametrize("prepare", [READ_ONLY, FULL], ids=["read-only", "full"])
def test_a_device_with_trusted_metadata_serves_on_a_bad_disk(
    device: Device, controller: Controller, prepare: str
) -> None:
    bring_listed(device, controller, Repository(director=DIRECTOR_SEED))
    assert device.end(signal.SIGTERM) == 0
    (device.directory / "log").unlink()
    start_on(device, prepare)
    where = until(lambda: address(device), "being ready")
    assert device.infer(where)[0]["release"] == "digits:1.0.0"
    assert device.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("whole", ["credentials.json", "telemetry.db"])
def test_a_flipped_bit_in_each_other_file_beside_the_packages_does_not_end_serving(
    served: Device, whole: str
) -> None:
    state, rng = served.config.state_dir, random.Random(whole)
    files = sorted(path for path in state.iterdir() if path.is_file() and path.stat().st_size)
    assert {"state.json", "telemetry.db", "device.key"} <= {path.name for path in files}
    for path in (path for path in files if path.name != whole):
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
    served.start()
    where = until(lambda: address(served), "being ready")
    assert served.infer(where)[0]["release"] == "digits:1.0.0"
    assert any("record of the installs is lost" in why for why in served.reasons("storage"))
    if whole == "credentials.json":  # it names the key
        found = until(lambda: served.reasons("refused"), "the reason")
        assert "device.key is not the key" in found[-1]
    assert served.ask("status")["device"]
    assert served.end(signal.SIGTERM) == 0
