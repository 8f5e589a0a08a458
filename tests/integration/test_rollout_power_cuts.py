"""A controller that dies between any two effects: before a commit, or before a publish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

ONE, TWO = two_variants("1"), two_variants("2")
CUTS = range(1, 15)


class PowerCut(BaseException):
    """The controller is gone from here on."""


class Saw:
    """Cuts the power before the n-th effect of a controller."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._left = -1
        self.cuts = 0

    def arm(self, effect: int) -> None:
        """Cut before the n-th effect from now on, of the controller that runs now."""
        self._left = effect
        engine = self._fleet.controller._database.engine
        event.listen(engine, "commit", lambda _connection: self._effect())
        transport = self._fleet.transport
        publish = transport.publish

        def cut_publish(topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
            self._effect()
            return publish(topic, payload, expiry_s=expiry_s)

        transport.publish = cut_publish  # type: ignore[method-assign]  # the cut is in the wire

    def _effect(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.cuts += 1
            raise PowerCut


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    yield made
    made.close()


def run_with_cuts(fleet: Fleet, rollout: str) -> tuple[dict[str, Any], int]:
    """Run a rollout to its end; cut before the first effect, then before the second, ..."""
    saw = Saw(fleet)
    for effect in CUTS:
        saw.arm(effect)
        try:
            for _ in range(4):
                fleet.step()
        except PowerCut:
            pass
        fleet.kill()
    fleet.clock.advance(20)
    return fleet.run(rollout), saw.cuts


def test_a_rollout_goes_on_after_a_cut_anywhere(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 6))
    rollout = fleet.roll_out(
        "digits:1", stages=[{"count": 1}, {"count": 3}, {"percent": 100}], max_in_flight=2
    )
    shown, cuts = run_with_cuts(fleet, rollout)
    assert cuts > 5
    assert (shown["state"], shown["counts"]) == ("succeeded", {"succeeded": 6})
    assert len(fleet.running(ONE.digest)) == 6
    revisions = [[state.revision for state in d.accepted] for d in fleet.devices.values()]
    assert revisions == [[1]] * 6, "no device was told anything twice or out of order"


def test_a_halt_stands_after_a_cut_anywhere(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 6))
    fleet.run(fleet.roll_out("digits:1"))
    for device in fleet.devices.values():
        device.outcome = "failed"
    rollout = fleet.roll_out("digits:2", stages=[{"count": 3}, {"percent": 100}])
    shown, cuts = run_with_cuts(fleet, rollout)
    assert cuts > 0
    assert shown["state"] == "halted"
    started = [part for part in shown["deployments"] if part["started_at_s"] is not None]
    assert len(started) <= 3
    for _ in range(3):
        fleet.step(20)
    assert len(fleet.running(ONE.digest)) == 6
    assert all(device.accepted[-1].release == ONE.ref for device in fleet.devices.values())


def test_a_device_that_is_away_gets_its_order_after_a_cut_anywhere(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 6))
    away = fleet.devices["cam-002"]
    away.leave()
    rollout = fleet.roll_out("digits:1", max_in_flight=2, offline_limit_s=20)
    shown, cuts = run_with_cuts(fleet, rollout)
    assert cuts > 5
    assert (shown["state"], shown["counts"]) == ("succeeded", {"succeeded": 5, "waiting": 1})
    assert away.accepted == []
    away.connect()
    assert away.active == ONE.digest
    assert fleet.show(rollout)["counts"] == {"succeeded": 6}
    revisions = [[state.revision for state in d.accepted] for d in fleet.devices.values()]
    assert revisions == [[1]] * 6


@pytest.mark.few(1)
def test_a_device_that_parts_and_returns_is_told_once_after_a_cut_anywhere(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 3))
    for device in fleet.devices.values():
        device.outcome = "busy"
    rollout = fleet.roll_out("digits:1", max_in_flight=1, offline_limit_s=100)
    fleet.step()
    (first,) = [device for device in fleet.devices.values() if device.accepted]
    first.leave()
    for device in fleet.devices.values():
        device.outcome = "succeeded"
    run_with_cuts(fleet, rollout)
    first.connect()
    run_with_cuts(fleet, rollout)
    assert fleet.run(rollout)["counts"] == {"succeeded": 3}
    revisions = [[state.revision for state in d.accepted] for d in fleet.devices.values()]
    assert revisions == [[1]] * 3
