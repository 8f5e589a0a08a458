"""A real controller, broker and agent that lose their memory, one after the other.

Whatever is lost, the device serves on, and the controller leads it again by itself.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import ControlError
from agent.install.store import COPY_FILE, FLOOR_FILE, STATE_FILE, FileStateStore
from packager.package.keys import load_key
from tests.simulators.agent_process import DEVICE, null_package
from tests.simulators.patience import until
from tests.simulators.stack import Stack, fleet_here, running_stack
from tests.simulators.stack_devices import StackDevice, publish
from wire.desired import MAX_REVISION_STEP

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli"), pytest.mark.timeout(1200)]

VERSIONS = ("1.0.0", "2.0.0")
DIGESTS = {version: null_package(version).digest for version in VERSIONS}


@pytest.fixture
def stack() -> Iterator[Stack]:
    """Run a controller that has published both releases."""
    with running_stack() as made:
        key = load_key(made.release_key)
        for version in VERSIONS:
            publish(made, null_package(version, key=key))
        yield made


@pytest.fixture
def device(stack: Stack) -> Iterator[StackDevice]:
    """Run an agent that is enrolled and went from the first release to the second."""
    made = StackDevice(stack, DEVICE, stack.ok("token", "create", "--json").json["token"])
    try:
        made.start()
        made.until_online()
        for version in VERSIONS:
            roll_out(stack, made, version)
        yield made
    finally:
        if made.process is not None:
            made.end(signal.SIGKILL)


def roll_out(stack: Stack, device: StackDevice, version: str) -> None:
    stack.ok("rollout", "create", f"digits:{version}", "--watch")
    until(lambda: device.shown.get("release") == f"digits:{version}", "the release")


def follows(device: StackDevice, version: str) -> None:
    """Wait until a device has accepted what the controller says, and serves it."""

    def is_so() -> bool:
        now = device.shown
        try:
            status = device.ask("status")
        except ControlError:  # it is starting
            return False
        return bool(
            (now.get("release"), now.get("drifted")) == (f"digits:{version}", False)
            and (status["release"], status["revision"]) == (DIGESTS[version], now["revision"])
        )

    until(is_so, lambda: f"the device to follow: {device.shown}")
    assert device.infer()[0]["release"] == f"digits:{version}"


def test_what_a_device_or_the_controller_forgets_comes_back(
    stack: Stack, device: StackDevice, tmp_path: Path
) -> None:
    state = device.config.state_dir

    # The device loses all that it knows.
    device.end(signal.SIGKILL)
    for name in (STATE_FILE, COPY_FILE, FLOOR_FILE):
        (state / name).write_bytes(b"\0" * 64)
    device.start()
    follows(device, "2.0.0")
    roll_out(stack, device, "1.0.0")

    # The device has accepted a revision that no controller can exceed.
    device.end(signal.SIGKILL)
    files = FileStateStore(state)
    files.accept(2**53 - 1, files.state.desired)
    device.start()
    follows(device, "1.0.0")
    roll_out(stack, device, "2.0.0")

    # The controller forgets what came after its backup, and lies in another directory.
    backup = tmp_path / "fleet.tar"
    done = fleet_here("controller", "backup", str(stack.home), str(backup))
    assert done.code == 0, done.err
    for version in ("1.0.0", "2.0.0", "1.0.0"):
        roll_out(stack, device, version)
    before = device.ask("status")["revision"]
    stack.stop()
    lost, stack.home = stack.home, tmp_path / "again"
    done = fleet_here("controller", "restore", str(backup), str(stack.home))
    assert done.code == 0, done.err
    shutil.rmtree(lost)
    stack.start()
    follows(device, "2.0.0")
    assert before < device.ask("status")["revision"] < before + MAX_REVISION_STEP
    roll_out(stack, device, "1.0.0")
