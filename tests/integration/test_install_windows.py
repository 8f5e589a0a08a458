"""The windows of a rollout: a device fetches at once, and activates in its local hours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta, timezone
from pathlib import Path

import pytest

from agent.errors import StoppedError
from agent.install.states import State
from agent.install.workflow import MAX_ATTEMPTS
from tests.simulators.device import Hook, PowerCut, SimulatedDevice, nothing
from tests.simulators.packages import two_variants
from wire.installs import InstallReport

OLD, NEW, NEWER = (two_variants(name, best=f"{name} best") for name in ("old", "new", "newer"))
BERLIN = timezone(timedelta(hours=2))
NIGHT = ("22:00-02:00", "mon 20:00-22:00")
BEFORE_NIGHT_S = 17_600.0
"""The simulated clock begins on Sunday, 2025-06-15, at 17:06:40 in Berlin."""

WAITS = (
    "the rollout activates it within 22:00-02:00, mon 20:00-22:00; it goes on at "
    "2025-06-15 22:00 +0200"
)


class Rig:
    """A device in Berlin, in the afternoon, on which the old package serves."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.device = SimulatedDevice(root, zone=BERLIN)
        self.device.boot()
        self.device.install(1, OLD)
        self.device.heard.reports.clear()
        self.device.windows = NIGHT
        self.began_s = self.device.clock.monotonic_s()

    @property
    def waited_s(self) -> float:
        return self.device.clock.monotonic_s() - self.began_s

    def waits(self) -> list[InstallReport]:
        return [r for r in self.device.heard.reports if r.outcome == "running" and r.detail]

    def serves(self, digest: str, *, outcome: str = "succeeded") -> None:
        device = self.device
        assert device.serving.active is not None
        assert device.serving.active.digest == device.slot.current() == digest
        assert device.heard.outcomes[-1].outcome == outcome
        assert device.store.state.state is State.IDLE


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "state")


def when_it_waits(act: Callable[[], object]) -> Hook:
    def hook(where: str, _state: State) -> None:
        if where == "waits":
            act()

    return hook


def test_it_fetches_at_once_and_activates_in_the_window(rig: Rig) -> None:
    sent: list[int] = []
    rig.device.hook = when_it_waits(lambda: sent.append(len(rig.device.server.sent)))
    rig.device.install(2, NEW)
    rig.serves(NEW.digest)
    assert rig.waited_s == pytest.approx(BEFORE_NIGHT_S, abs=60)
    assert {(r.phase, r.detail) for r in rig.waits()} == {("staging", WAITS)}
    assert {r.active for r in rig.waits()} == {OLD.digest}, "the old one serves meanwhile"
    assert set(sent) == {len(rig.device.server.sent)}, "all had come before it waited"


def test_a_device_on_which_nothing_serves_waits_too(tmp_path: Path) -> None:
    root = tmp_path / "new"
    root.mkdir()
    device = SimulatedDevice(root, zone=BERLIN)
    device.boot()
    device.windows = NIGHT
    active: list[object] = []
    device.hook = when_it_waits(lambda: active.append(device.serving.active))
    device.install(1, NEW)
    assert set(active) == {None}
    assert device.slot.current() == NEW.digest


def test_power_cuts_and_stops_while_it_waits_are_no_crash_loop(rig: Rig) -> None:
    cuts = iter(range(2 * MAX_ATTEMPTS))

    def cut() -> None:
        if next(cuts, None) is not None:
            raise PowerCut

    rig.device.hook = when_it_waits(cut)
    with pytest.raises(PowerCut):
        rig.device.install(2, NEW)
    rig.device.reboot()
    rig.device.hook = nothing
    rig.serves(NEW.digest)
    assert rig.waited_s == pytest.approx(BEFORE_NIGHT_S, abs=60)


def test_a_stop_ends_the_wait_and_a_newer_order_takes_its_place(rig: Rig) -> None:
    rig.device.hook = when_it_waits(rig.device.interrupts.stop)
    with pytest.raises(StoppedError):
        rig.device.install(2, NEW)
    rig.device.lose_power()
    rig.device.boot()
    rig.device.hook = when_it_waits(rig.device.interrupts.supersede)
    rig.device.machine.run()
    assert rig.device.slot.current() == OLD.digest
    rig.device.interrupts.clear_superseded()
    rig.device.hook = nothing
    rig.device.windows = ()
    rig.device.install(3, NEWER)
    rig.serves(NEWER.digest)
    assert rig.waited_s < BEFORE_NIGHT_S / 2


def test_the_way_back_has_no_window_and_a_repair_does_not_wait(rig: Rig) -> None:
    rig.device.bad_golden.add("new best")
    rig.device.clock.advance(BEFORE_NIGHT_S + 60)
    rig.device.install(2, NEW)
    rig.serves(OLD.digest, outcome="failed")
    rig.device.bad_golden.clear()
    rig.device.install(3, NEWER)
    model = rig.device.slots.directory(NEWER.digest) / "variants/best/model.json"
    model.write_bytes(b"lost")
    rig.device.clock.advance(6 * 3600)
    rig.device.lose_power()
    rig.device.boot()
    rig.device.heard.reports.clear()
    assert rig.device.machine.repair()
    rig.device.machine.run()
    rig.serves(NEWER.digest)
    assert rig.waits() == []
