"""Budgets of a real agent: a transfer waits in its middle, and goes on by another network."""

from __future__ import annotations

import re
import signal

import pytest

from tests.simulators.agent_process import Controller, Device, null_package
from tests.simulators.patience import until
from wire.delivery import Chunk
from wire.installs import InstallReport
from wire.presence import Hello

pytestmark = pytest.mark.broker

BOUND = 400_000
PADDED = null_package("1.0.0", padding_bytes=500_000)
"""A megabyte in two files."""

CELLULAR = f"""
[[delivery.networks]]
name = "cellular"
interfaces = ["wwan*", "ppp*"]
bytes_per_day = {BOUND}
bytes_per_month = 5_000_000
full = true
"""


@pytest.fixture
def waiting(device: Device, controller: Controller) -> Device:
    """Return a device that has used up its budget in the middle of a transfer."""
    device.set_route("wwan0")
    with device.config_path.open("a") as config:
        config.write(CELLULAR)
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    controller.desire(1, PADDED)
    until(lambda: device.ask("status")["waits_for"], "a wait")
    return device


def test_a_transfer_waits_in_its_middle_and_goes_on_by_another_network(
    waiting: Device, controller: Controller
) -> None:
    def told() -> str:
        """Return what the controller heard last of the wait; what was under way comes after it."""
        waits_for = waiting.ask("status")["waits_for"]
        reports = [r for r in controller.all("report", InstallReport) if r.detail == waits_for]
        running = [r for r in reports if (r.outcome, r.phase) == ("running", "fetching")]
        return waits_for if running else ""

    why = until(told, "a report of the wait")
    assert re.fullmatch(
        r"cellular has used [\d.]+ of 390\.6 KiB today; "
        r"it goes on at 20\d\d-\d\d-\d\d 00:00 [+-]\d{4}",
        why,
    )
    status = waiting.ask("status")
    assert status["phase"] == "fetching"
    cellular = status["budgets"][0]
    assert cellular["in_use"]
    assert BOUND <= cellular["day_bytes"] == cellular["month_bytes"] < 3 * BOUND
    shown = waiting.command("status").stdout
    assert f"cellular    {cellular['text']}\n" in shown
    assert f"waits for   {why}\n" in shown
    assert controller.event("defer").reason.startswith("cellular has used")

    before_bytes = cellular["day_bytes"]
    sizes: list[int] = []

    def note(chunk: Chunk) -> Chunk:
        sizes.append(len(chunk.data))
        return chunk

    controller.chunks.tamper = note
    waiting.set_route("wlan0")
    assert controller.outcome(1).outcome == "succeeded"
    after = waiting.ask("status")
    assert after["waits_for"] == ""
    assert after["budgets"][0]["day_bytes"] == before_bytes, "what another network brings is free"
    assert not after["budgets"][0]["in_use"]
    controller.event("defer", lambda event: event.reason.startswith("the install goes on after"))
    whole_bytes = sum(len(blob) for blob in PADDED.blobs)
    assert sum(sizes) < whole_bytes - BOUND / 2, "what had come was kept"


def test_a_kill_forgets_nothing_and_the_operator_may_let_it_go_on(
    waiting: Device, controller: Controller
) -> None:
    used_bytes = waiting.ask("status")["budgets"][0]["day_bytes"]
    waiting.end(signal.SIGKILL)
    before = len(controller.all("hello", Hello))
    waiting.start()
    until(lambda: len(controller.all("hello", Hello)) > before, "a hello of the new start")
    why = until(lambda: waiting.ask("status")["waits_for"], "a wait after the restart")
    assert waiting.ask("status")["budgets"][0]["day_bytes"] >= used_bytes
    assert (
        waiting.command("override").stdout
        == f"the install goes on now; without the override: {why}\n"
    )
    assert controller.outcome(1).outcome == "succeeded"


def test_a_newer_desired_state_never_waits_for_what_waits(
    waiting: Device, controller: Controller
) -> None:
    controller.desire(2, None)
    assert controller.outcome(2).outcome == "succeeded"
    assert waiting.ask("status")["waits_for"] == ""
    assert not [r for r in controller.all("report", InstallReport) if r.outcome == "failed"]
