"""When a real agent may begin installs: what its operator and the controller see while it waits."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest

from tests.simulators.agent_process import FIRST, Controller, Device, null_package
from tests.simulators.patience import until
from wire.clock import SystemClock
from wire.installs import InstallReport
from wire.presence import Hello

pytestmark = pytest.mark.broker

SECOND = null_package("2.0.0")


def set_battery(device: Device, percent: int) -> None:
    battery = device.sysfs / "class/power_supply/BAT0"
    battery.mkdir(parents=True, exist_ok=True)
    for name, text in (("type", "Battery"), ("status", "Discharging"), ("capacity", percent)):
        (battery / f"{name}.new").write_text(f"{text}\n")
        (battery / f"{name}.new").rename(battery / name)


def configure(device: Device, text: str) -> None:
    with device.config_path.open("a") as config:
        config.write(f"[install]\n{text}\n")


def ordered(device: Device, controller: Controller) -> str:
    """Start a device, order a package, and return what its install waits for."""
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    controller.desire(1, FIRST)
    waits: str = until(lambda: device.ask("status")["waits_for"], "a wait")
    return waits


def test_an_install_waits_for_the_window_until_the_operator_overrides_it(
    device: Device, controller: Controller
) -> None:
    now = datetime.fromtimestamp(SystemClock().now_s(), UTC).astimezone()
    begin, end = (f"{now + timedelta(hours=hours):%H:%M}" for hours in (2, 3))
    configure(device, f'window = "{begin}-{end}"')
    why = ordered(device, controller)
    assert why.startswith(f"no install begins outside {begin}-{end}; it goes on at 20")
    assert f" {begin} " in why.rpartition(";")[2]
    reports = until(
        lambda: [r for r in controller.all("report", InstallReport) if r.detail], "a report"
    )
    assert {(r.outcome, r.phase, r.detail) for r in reports} == {("running", "preflight", why)}
    assert f"waits for   {why}" in device.command("status").stdout
    assert controller.event("defer").reason == why
    assert not [r for r in controller.heard if r.topic.endswith("/chunk_request")]
    said = device.command("override")
    assert said.stdout == f"the install goes on now; without the override: {why}\n"
    assert controller.outcome(1).active == FIRST.digest
    assert device.ask("status")["waits_for"] == ""


def test_an_install_waits_for_the_battery_and_goes_on_when_it_is_charged(
    device: Device, controller: Controller
) -> None:
    set_battery(device, 14)
    configure(device, "min_battery_percent = 30")
    why = ordered(device, controller)
    assert why.startswith("the battery has 14 %, and no install begins below 30 %; it goes on")
    set_battery(device, 80)
    assert controller.outcome(1).active == FIRST.digest


def test_the_next_release_waits_while_the_first_one_serves(
    serving: Device, controller: Controller
) -> None:
    set_battery(serving, 14)
    configure(serving, "min_battery_percent = 30")
    before = len(controller.all("hello", Hello))
    serving.end(signal.SIGTERM)
    serving.start()
    until(lambda: len(controller.all("hello", Hello)) > before, "a hello of the new start")
    controller.desire(2, SECOND)
    until(lambda: serving.ask("status")["waits_for"], "a wait")
    assert serving.infer()[0]["release"] == "digits:1.0.0"
