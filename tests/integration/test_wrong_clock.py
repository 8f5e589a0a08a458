"""An agent whose clock is set back or forward by ten years, while it runs and over a restart."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.field.agent_with_clock import OFFSET
from tests.simulators.agent_process import Controller, Device, bring_listed, null_package
from tests.simulators.packages import DIRECTOR_SEED
from tests.simulators.patience import until
from tests.simulators.repository import DAY_S, Repository
from wire.installs import InstallReport
from wire.presence import Hello

pytestmark = pytest.mark.broker

TEN_YEARS_S = 3653 * DAY_S
SECOND = null_package("2.0.0")
MANY = 12
"""Greetings: a device that asks again and again for newer metadata waits longer each time."""


class ClockedDevice:
    """A device with trusted metadata whose clock a test sets."""

    def __init__(self, device: Device, controller: Controller) -> None:
        self.device = device
        self.controller = controller
        self.offset = device.directory / "offset"
        self.set_clock(0.0)
        self.fleet = Repository(director=DIRECTOR_SEED)
        self.fleet.list_package(SECOND)
        bring_listed(device, controller, self.fleet)
        device.end(signal.SIGTERM)
        self.start()

    def set_clock(self, wrong_by_s: float) -> None:
        """Set it; an agent that runs has it at once."""
        if not self.offset.exists():
            self.offset.write_bytes(OFFSET.pack(wrong_by_s))
        with self.offset.open("r+b") as file:
            file.write(OFFSET.pack(wrong_by_s))

    def start(self) -> None:
        """Start the agent, and wait for its greeting."""
        self.controller.heard.clear()
        program = [sys.executable, "-P", "-m", "tests.field.agent_with_clock"]
        with (self.device.directory / "log").open("ab") as log:
            self.device.process = subprocess.Popen(
                [*program, self.device.config_path, self.offset],
                stdin=subprocess.DEVNULL,
                stderr=log,
                cwd=Path(__file__).parents[2],
            )
        until(lambda: self.controller.all("hello", Hello), "a hello")

    def restart(self) -> None:
        """Start the agent again."""
        assert self.device.end(signal.SIGTERM) == 0
        self.start()

    def waits(self, revision: int) -> str:
        """Return what an install waits for, as the controller hears it."""

        def find() -> str:
            reports = self.controller.all("report", InstallReport)
            return next((r.detail for r in reports if r.revision == revision and r.detail), "")

        return until(find, "why the install waits")


@pytest.fixture
def clocked(device: Device, controller: Controller) -> ClockedDevice:
    """Return a device that serves the first package, with the right time."""
    return ClockedDevice(device, controller)


@pytest.mark.parametrize(
    "is_restarted",
    [
        pytest.param(False, id="running", marks=pytest.mark.thorough),
        pytest.param(True, id="restarted"),
    ],
)
def test_a_clock_ten_years_behind_lets_a_device_serve_and_follow_what_is_fresh(
    clocked: ClockedDevice, *, is_restarted: bool
) -> None:
    clocked.set_clock(-TEN_YEARS_S)
    if is_restarted:
        clocked.restart()
    assert clocked.device.infer()[0]["release"] == "digits:1.0.0"
    clocked.controller.desire(2, SECOND)
    assert clocked.controller.outcome(2).outcome == "succeeded"
    clocked.controller.desire(1, None)
    clocked.controller.event("refused", lambda e: "older than the accepted 2" in e.reason)
    assert clocked.device.infer()[0]["release"] == "digits:2.0.0"
    assert "digits:2.0.0" in clocked.device.command("why", "--since", "1h").stdout


@pytest.mark.parametrize(
    "is_restarted",
    [
        pytest.param(False, id="running", marks=pytest.mark.thorough),
        pytest.param(True, id="restarted"),
    ],
)
def test_a_clock_ten_years_ahead_lets_a_device_serve_and_wait_with_what_is_new(
    clocked: ClockedDevice, *, is_restarted: bool
) -> None:
    clocked.set_clock(TEN_YEARS_S)
    if is_restarted:
        clocked.restart()
    assert clocked.device.infer()[0]["release"] == "digits:1.0.0"
    clocked.controller.desire(2, SECOND)
    assert "expired" in clocked.waits(2)
    assert clocked.device.infer()[0]["release"] == "digits:1.0.0"
    assert len(clocked.controller.all("hello", Hello)) < MANY
    clocked.set_clock(0.0)
    assert clocked.controller.outcome(2).outcome == "succeeded"
    assert clocked.device.infer()[0]["release"] == "digits:2.0.0"
