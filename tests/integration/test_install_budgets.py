"""Installs that wait for their budget, on a device whose power can be cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.install.budget.settings import NetworkSettings
from agent.install.fetch.settings import DeliverySettings
from agent.install.states import State
from agent.install.workflow import MAX_ATTEMPTS
from tests.simulators.device import Hook, PowerCut, SimulatedDevice, nothing
from tests.simulators.packages import SignedPackage, two_variants
from wire.codec import sha256_hex
from wire.installs import InstallReport

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
BOUND = 150_000
RESERVE = 64 * 1024


def release(version: str, size_bytes: int = 100_000) -> SignedPackage:
    text = random.Random(version).randbytes(size_bytes // 2).hex()
    return two_variants(version, best=f"best {text}", small=f"small {version}")


OLD, NEW, HUGE = release("1.0.0", 100), release("2.0.0", 400_000), release("3.0.0", 1_000_000)
METERED = NetworkSettings(name="cellular", interfaces=("wwan*",), bytes_per_day=BOUND, full=True)
BY_NIGHT = NetworkSettings(name="cellular", interfaces=("wwan*",), hours="01:00-05:00")


class Rig:
    """A device on a metered network, on which the old package serves; it is 15:06 in UTC."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.device = SimulatedDevice(root)
        self.device.boot()
        self.device.install(1, OLD)
        self.bound(METERED)
        self.device.hook = self.passing()
        self.began_s = self.device.clock.monotonic_s()

    def bound(self, *networks: NetworkSettings, write_bytes_per_day: int | None = None) -> None:
        self.device.delivery = DeliverySettings(
            networks=networks, write_bytes_per_day=write_bytes_per_day
        )
        self.route("wwan0")
        self.restart()

    def restart(self) -> None:
        self.device.lose_power()
        self.device.boot()
        self.device.heard.reports.clear()
        self.device.heard.events.clear()

    def passing(self, act: Hook = nothing) -> Hook:
        """Return a hook that lets an hour pass each time that the install says why it waits."""

        def hook(where: str, state: State) -> None:
            act(where, state)
            if where == "waits":
                self.device.clock.advance(HOUR_S)

        return hook

    def route(self, interface: str) -> None:
        (self.device.root / "proc/net").mkdir(parents=True, exist_ok=True)
        line = f"{interface} 00000000 0 0003 0 0 0 00000000 0 0 0\n"
        (self.device.root / "proc/net/route").write_text(line)

    @property
    def waited_s(self) -> float:
        return self.device.clock.monotonic_s() - self.began_s

    @property
    def used_bytes(self) -> int:
        return int(self.device.budgets.status()[0]["day_bytes"])

    def waits(self) -> list[InstallReport]:
        return [r for r in self.device.heard.reports if r.outcome == "running" and r.detail]

    def deferred(self) -> list[str]:
        return [reason for kind, reason, _ in self.device.heard.events if kind == "defer"]

    def serves(self, expected: SignedPackage) -> None:
        device = self.device
        assert device.serving.active is not None
        assert device.serving.active.digest == device.slot.current() == expected.digest
        assert device.heard.outcomes[-1].outcome == "succeeded"
        assert (device.store.state.state, device.hooked.waits_for()) == (State.IDLE, "")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "state")


def when_it_waits(act: Callable[[], object]) -> Hook:
    def hook(where: str, _state: State) -> None:
        if where == "waits":
            act()

    return hook


def test_a_large_release_comes_over_some_days(rig: Rig) -> None:
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert DAY_S < rig.waited_s < 2 * DAY_S
    waits = rig.waits()
    assert {(r.phase, r.outcome) for r in waits} == {("fetching", "running")}
    assert waits[0].detail.endswith(" today; it goes on at 2025-06-16 00:00 +0000")
    assert waits[-1].detail.endswith(" today; it goes on at 2025-06-17 00:00 +0000")
    done = [r.done_bytes for r in waits]
    assert done == sorted(done)
    assert done[0] > 0
    ends = [reason for reason in rig.deferred() if reason.startswith("the install goes on after")]
    assert len(ends) == 2


def test_what_had_come_is_not_fetched_again(rig: Rig) -> None:
    rig.device.server.sent.clear()
    rig.device.install(2, NEW)
    sent = rig.device.server.sent
    assert len(sent) < 1.2 * len({*sent})
    rig.serves(NEW)


def test_more_days_than_attempts_are_no_failure(rig: Rig) -> None:
    rig.device.install(2, HUGE)
    rig.serves(HUGE)
    assert rig.waited_s / DAY_S > MAX_ATTEMPTS


def test_it_goes_on_at_once_by_another_network(rig: Rig) -> None:
    rig.device.hook = when_it_waits(lambda: rig.route("wlan0"))
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert rig.waited_s < 60
    assert len([reason for reason in rig.deferred() if "has used" in reason]) == 1


def test_hours_that_end_in_the_middle_hold_the_rest_until_the_next_night(rig: Rig) -> None:
    rig.bound(BY_NIGHT)
    published: list[float] = []

    def slow(where: str, _state: State) -> None:
        if where == "publish":
            rig.device.clock.advance(600)  # an hour for some requests
            published.append(rig.device.clock.now_s() % DAY_S)

    rig.device.hook = rig.passing(slow)
    rig.device.install(2, HUGE)
    rig.serves(HUGE)
    assert all(HOUR_S <= at_s <= 5 * HOUR_S + 700 for at_s in published)
    assert rig.waits()[0].detail == (
        "cellular brings no packages outside 01:00-05:00; it goes on at 2025-06-16 01:00 +0000"
    )
    assert rig.waits()[0].phase == "preflight"


def test_the_operator_lets_one_install_go_over_its_budget(rig: Rig) -> None:
    rig.device.hook = when_it_waits(lambda: rig.device.override.allow(HOUR_S))
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert rig.waited_s < 60
    assert rig.used_bytes > 2 * BOUND, "what comes is counted"
    assert rig.device.override.rest_s is None


def test_a_newer_desired_state_ends_the_wait(rig: Rig) -> None:
    rig.device.hook = when_it_waits(rig.device.interrupts.supersede)
    rig.device.install(2, NEW)
    assert rig.device.heard.outcomes == []
    assert rig.device.adaptation.active() == (OLD.digest, "best")
    assert rig.waited_s < 60


def test_the_way_back_to_the_release_before_needs_no_budget(rig: Rig) -> None:
    rig.device.bad_golden.add(NEW.files["variants/best/model.json"].decode())
    rig.device.install(2, NEW)
    rig.device.install(3, OLD)
    rig.began_s = rig.device.clock.monotonic_s()
    assert rig.device.adaptation.active() == (OLD.digest, "best")
    assert rig.device.heard.outcomes[-1].outcome == "succeeded"


def test_the_repair_of_a_lost_release_may_use_the_bound_once_more(rig: Rig) -> None:
    rig.device.override.allow(HOUR_S)
    two = release("2.0.0", 90_000)
    rig.device.install(2, two)
    rig.serves(two)
    assert rig.used_bytes < BOUND
    (rig.device.slots.directory(two.digest) / "variants/best/model.json").write_bytes(b"lost")
    rig.restart()
    rig.began_s = rig.device.clock.monotonic_s()
    assert rig.device.machine.repair()
    rig.device.machine.run()
    rig.serves(two)
    assert rig.waits() == []
    assert BOUND < rig.used_bytes <= 2 * BOUND + RESERVE


def test_a_bound_on_writes_holds_a_transfer_by_any_network(rig: Rig) -> None:
    rig.bound(write_bytes_per_day=150_000)
    rig.device.install(2, NEW)
    rig.serves(NEW)
    assert rig.waits()[0].detail.startswith("installs have written ")
    assert DAY_S < rig.waited_s < 2 * DAY_S


def test_an_install_that_has_nothing_left_to_write_waits_for_no_writes(rig: Rig) -> None:
    rig.bound(write_bytes_per_day=BOUND)
    device = rig.device

    def cut_when_all_is_here(where: str, state: State) -> None:
        if (where, state) == ("publish", State.FETCHING):
            for blob in NEW.blobs:
                (device.slots.parts / sha256_hex(blob)).write_bytes(blob)
            device.budgets.wrote(BOUND)
            device.budgets.settle()
            device.hook = rig.passing()
            raise PowerCut

    device.hook = cut_when_all_is_here
    with pytest.raises(PowerCut):
        device.install(2, NEW)
    device.server.sent.clear()
    device.reboot()
    rig.serves(NEW)
    assert rig.waited_s < HOUR_S
    assert device.server.sent == []


@pytest.mark.parametrize("where", ["waits", "publish", "write budget.json", "written budget.json"])
@pytest.mark.parametrize("nth", [1, 3])
def test_power_cuts_cost_no_attempt_and_give_no_bytes(rig: Rig, where: str, nth: int) -> None:
    cuts = iter(range(MAX_ATTEMPTS + 3 if where == "waits" else 3))
    seen: list[int] = []

    def cut(place: str, _state: State) -> None:
        if place == where:
            seen.append(1)
            if len(seen) % nth == 0 and next(cuts, None) is not None:
                raise PowerCut

    rig.device.hook = rig.passing(cut)
    try:
        rig.device.install(2, NEW)
    except PowerCut:
        rig.device.reboot()
    assert seen
    rig.serves(NEW)
    assert rig.waited_s > DAY_S
