"""The agent as a process whose record of the installs is damaged, lost, or replaced."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from agent.install.store import COPY_FILE, FLOOR_FILE, STATE_FILE
from tests.simulators.agent_process import FIRST, Controller, Device, null_package
from tests.simulators.patience import until
from wire.presence import Hello

pytestmark = pytest.mark.broker

SECOND = null_package("2.0.0")
FILES = (STATE_FILE, COPY_FILE, FLOOR_FILE)


@pytest.fixture
def updated(serving: Device, controller: Controller) -> Device:
    """Return a device that went from the first package to the second."""
    controller.desire(2, SECOND)
    assert controller.outcome(2).outcome == "succeeded"
    return serving


def start_again(device: Device, controller: Controller) -> Hello:
    """Start the agent that has ended, and return its hello."""
    controller.heard.clear()
    controller.events.clear()
    device.start()
    return until(lambda: controller.all("hello", Hello), "a hello")[-1]


def files(device: Device) -> list[Path]:
    return [device.config.state_dir / name for name in FILES]


@pytest.mark.parametrize(
    "damaged",
    [pytest.param(True, id="damaged", marks=pytest.mark.thorough), pytest.param(False, id="lost")],
)
def test_a_device_without_its_record_serves_on_and_takes_no_recording(
    updated: Device, controller: Controller, *, damaged: bool
) -> None:
    updated.end(signal.SIGKILL)
    for path in files(updated):
        path.write_bytes(b"\0" * 64) if damaged else path.unlink()
    hello = start_again(updated, controller)
    assert (hello.revision, hello.release) == (0, SECOND.digest)
    controller.event("storage", lambda e: "signs after this start" in e.reason)
    controller.desire(1, FIRST)
    controller.event("refused", lambda e: "recording" in e.reason)
    assert updated.infer()[0]["release"] == "digits:2.0.0"
    controller.desire(2, SECOND, boot_id=hello.boot_id)
    assert controller.outcome(2).active == SECOND.digest
    controller.desire(1, FIRST)
    controller.event("refused", lambda e: "older than the accepted 2" in e.reason)
    controller.desire(3, FIRST)
    assert controller.outcome(3).active == FIRST.digest


def believes_only_what_names_its_start(controller: Controller, hello: Hello, reason: str) -> None:
    """Check that a device without a record refuses a recording, and takes what is signed for it."""
    assert (hello.revision, hello.release) == (0, SECOND.digest)
    controller.event("storage", lambda e: reason in e.reason)
    controller.desire(3, FIRST)
    controller.event("refused", lambda e: "recording" in e.reason)
    controller.desire(2, SECOND, boot_id=hello.boot_id)
    assert controller.outcome(2).active == SECOND.digest


def test_records_that_were_put_back_bring_back_no_old_release(
    serving: Device, controller: Controller
) -> None:
    state = serving.config.state_dir
    old = {name: (state / name).read_bytes() for name in (STATE_FILE, COPY_FILE)}
    controller.desire(2, SECOND)
    assert controller.outcome(2).outcome == "succeeded"
    serving.end(signal.SIGKILL)
    for name, content in old.items():
        (state / name).write_bytes(content)
    hello = start_again(serving, controller)
    believes_only_what_names_its_start(controller, hello, "state.json: older than floor.json")


@pytest.mark.parametrize(
    "damaged",
    [pytest.param(True, id="damaged", marks=pytest.mark.thorough), pytest.param(False, id="lost")],
)
def test_a_record_without_its_floor_is_not_believed(
    updated: Device, controller: Controller, *, damaged: bool
) -> None:
    updated.end(signal.SIGKILL)
    path = updated.config.state_dir / FLOOR_FILE
    path.write_bytes(b"\0" * 64) if damaged else path.unlink()
    hello = start_again(updated, controller)
    believes_only_what_names_its_start(controller, hello, "signs after this start")


@pytest.mark.parametrize("name", [STATE_FILE, COPY_FILE])
def test_a_device_with_one_damaged_file_goes_on_and_says_so(
    updated: Device, controller: Controller, name: str
) -> None:
    updated.end(signal.SIGKILL)
    (updated.config.state_dir / name).write_bytes(b"\0" * 64)
    hello = start_again(updated, controller)
    assert (hello.revision, hello.release) == (2, SECOND.digest)
    controller.event("storage", lambda e: e.reason.startswith(f"{name} was damaged"))
    controller.desire(1, FIRST)
    controller.event("refused", lambda e: "older than the accepted 2" in e.reason)


def test_directories_in_the_place_of_the_record_end_no_install(
    serving: Device, controller: Controller
) -> None:
    for path in files(serving):
        path.unlink()
        path.mkdir()
    controller.desire(2, SECOND)
    assert controller.outcome(2).outcome == "succeeded"
    serving.end(signal.SIGKILL)
    hello = start_again(serving, controller)
    assert (hello.revision, hello.release) == (2, SECOND.digest)
