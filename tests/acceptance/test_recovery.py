"""A real controller, broker and agent that lose their memory, one after the other.

Whatever is lost, the device serves on, and the controller leads it again by itself.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.errors import ControlError
from agent.install.store import COPY_FILE, FLOOR_FILE, STATE_FILE, FileStateStore
from controller.app.home import CA_FILE
from controller.broker.install import locate
from examples.digits.box import free_port
from tests.simulators.agent_process import DEVICE, Device, null_package
from tests.simulators.packages import TRUST
from tests.simulators.patience import until
from tests.simulators.stack import Stack, fleet, fleet_here
from tests.simulators.stack_devices import publish
from wire.messages import MAX_REVISION_STEP

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli"), pytest.mark.timeout(1200)]

PACKAGES = [null_package("1.0.0"), null_package("2.0.0")]
RELEASES = {package.index.version: package.digest for package in PACKAGES}


@dataclass
class Address:
    """Where a device finds its broker."""

    port: int


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Run a controller with the keys of the tests, and publish both releases."""
    if locate(Path("/nowhere")) is None:
        pytest.skip("Mosquitto is not installed")
    made = Stack(home=tmp_path / "home", api_port=free_port(), broker_port=free_port())
    ports = ("--api-port", str(made.api_port), "--broker-port", str(made.broker_port))
    assert fleet("init", str(made.home), *ports).code == 0
    (made.home / "keys/director.key").write_bytes(b"d" * 32)
    (made.home / "trust.json").write_bytes(TRUST.to_bytes())
    try:
        made.start()
        for release in PACKAGES:
            publish(made, release)
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


@pytest.fixture
def device(stack: Stack, tmp_path: Path) -> Iterator[Device]:
    """Run an agent that is enrolled and went from the first release to the second."""
    (tmp_path / "device").mkdir()
    made = Device(tmp_path / "device", Address(stack.broker_port))
    token = stack.ok("token", "create").out
    (made.directory / "token").write_text(token)
    shutil.copy(stack.home / CA_FILE, made.directory)
    config = made.config_path.read_text()
    made.config_path.write_text(config.replace("[broker]", f'[broker]\nca_file = "{CA_FILE}"'))
    try:
        made.start()
        until(lambda: shown(stack)["online"], "the device")
        for version in ("1.0.0", "2.0.0"):
            roll_out(stack, version)
        yield made
    finally:
        if made.process is not None:
            made.end(signal.SIGKILL)


def shown(stack: Stack) -> dict[str, Any]:
    done = stack.fleet("device", "show", DEVICE, "--json")
    return dict(done.json) if done.code == 0 else {"online": False, "release": None}


def roll_out(stack: Stack, version: str) -> None:
    done = stack.fleet("rollout", "create", f"digits:{version}", "--watch")
    assert done.code == 0, done.out + done.err
    until(lambda: shown(stack)["release"] == f"digits:{version}", "the release")


def follows(device: Device, stack: Stack, version: str) -> None:
    """Wait until a device has accepted what the controller says, and serves it."""

    def is_so() -> bool:
        now = shown(stack)
        try:
            status = device.ask("status")
        except ControlError:  # it is starting
            return False
        return bool(
            (now["release"], now["drifted"]) == (f"digits:{version}", False)
            and (status["release"], status["revision"]) == (RELEASES[version], now["revision"])
        )

    until(is_so, lambda: f"the device to follow: {shown(stack)}")
    assert device.infer()[0]["release"] == f"digits:{version}"


def test_what_a_device_or_the_controller_forgets_comes_back(
    stack: Stack, device: Device, tmp_path: Path
) -> None:
    state = device.config.state_dir

    # The device loses all that it knows.
    device.end(signal.SIGKILL)
    for name in (STATE_FILE, COPY_FILE, FLOOR_FILE):
        (state / name).write_bytes(b"\0" * 64)
    device.start()
    follows(device, stack, "2.0.0")
    roll_out(stack, "1.0.0")

    # The device has accepted a revision that no controller can exceed.
    device.end(signal.SIGKILL)
    files = FileStateStore(state)
    files.accept(2**53 - 1, files.state.desired)
    device.start()
    follows(device, stack, "1.0.0")
    roll_out(stack, "2.0.0")

    # The controller forgets what came after its backup, and lies in another directory.
    backup = tmp_path / "fleet.tar"
    done = fleet_here("controller", "backup", str(stack.home), str(backup))
    assert done.code == 0, done.err
    for version in ("1.0.0", "2.0.0", "1.0.0"):
        roll_out(stack, version)
    before = device.ask("status")["revision"]
    stack.stop()
    lost, stack.home = stack.home, tmp_path / "again"
    done = fleet_here("controller", "restore", str(backup), str(stack.home))
    assert done.code == 0, done.err
    shutil.rmtree(lost)
    stack.start()
    follows(device, stack, "2.0.0")
    assert before < device.ask("status")["revision"] < before + MAX_REVISION_STEP
    roll_out(stack, "1.0.0")
