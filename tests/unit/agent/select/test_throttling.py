"""What throttling shows of the heat where the temperature sensor does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.decisions import Candidate
from agent.select.estimates import Estimates, Observed
from agent.select.outlook import predict
from agent.select.throttling import COOL, COOLS_S, Throttling
from wire.durations import HOUR_S
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec

HEAVY, LIGHT = 0.8, 0.2


class Board:
    """A board that is throttled from 80 degrees on, until it is below 77.

    Full load warms it by 50 degrees over an ambient temperature of 45; its time constant
    is a minute. The scale of the headroom is from 45 to 80 degrees.
    """

    def __init__(self) -> None:
        self.warm_c, self.on = 45.0, False

    def run(self, load: float, period_s: float = 1.0) -> bool:
        share = min(period_s / 60.0, 1.0)
        self.warm_c += share * (45.0 + 50.0 * load - self.warm_c)
        self.on = self.warm_c >= 80.0 or (self.on and self.warm_c >= 77.0)
        return self.on

    @property
    def headroom(self) -> float:
        return (self.warm_c - 45.0) / 35.0


def lived(board: Board, *parts: tuple[float, int], sensor: float | str | None) -> Throttling:
    """Return what is learnt from loads and times; `sensor` is a stuck reading, or "true"."""
    known = Throttling().update(on=False, headroom=None, load=0.0, period_s=1.0)
    for load, seconds in parts:
        for _ in range(seconds):
            on = board.run(load)
            shown = board.headroom if sensor == "true" else sensor
            assert not isinstance(shown, str)
            known = known.update(on, shown, load, 1.0)
    return known


@pytest.mark.parametrize("stuck_at", [0.0, 0.4, None])
def test_a_stuck_or_missing_sensor_hides_the_heat(stuck_at: float | None) -> None:
    known = lived(Board(), (HEAVY, 300), (LIGHT, 300), sensor=stuck_at)
    assert known.hidden is not None
    assert known.hidden.chance(HEAVY) > 0.5
    assert known.hidden.chance(LIGHT) < 0.01


def test_a_warm_reading_that_does_not_fall_shows_a_stuck_sensor() -> None:
    board = Board()
    known = lived(board, (0.0, 30), (HEAVY, 300), sensor=0.9)
    assert known.hidden is None
    for _ in range(2 * int(COOLS_S)):
        known = known.update(board.run(0.0), 0.9, 0.0, 1.0)
    assert known.hidden is not None


def test_a_sensor_that_follows_hides_nothing() -> None:
    known = lived(Board(), (HEAVY, 300), (LIGHT, 300), sensor="true")
    assert known.bearable is not None
    assert known.hot is not None
    assert known.hot[0] >= COOL
    assert known.hidden is None


def test_a_processor_that_was_always_limited_shows_nothing() -> None:
    known = Throttling()
    for _ in range(1000):
        known = known.update(on=True, headroom=0.1, load=LIGHT, period_s=1.0)
    assert known.hidden is None


def test_after_an_hour_without_throttling_more_work_may_be_tried_again() -> None:
    board = Board()
    known = lived(board, (HEAVY, 300), sensor=0.4)
    for _ in range(int(HOUR_S / 10.0) + 10):
        known = known.update(board.run(LIGHT, 10.0), 0.4, LIGHT, 10.0)
    assert known.hidden is None


def test_what_cannot_be_read_changes_nothing() -> None:
    known = lived(Board(), (HEAVY, 300), sensor=0.4)
    unread = known.update(None, 0.4, HEAVY, 1.0)
    assert (unread.bearable, unread.on, unread.hot) == (known.bearable, known.on, known.hot)


LOOKS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.booleans()),
        st.one_of(st.none(), st.floats(-1.0, 2.0)),
        st.floats(0.0, 1.0),
        st.floats(0.0, 300.0),
    ),
    max_size=60,
)


@given(LOOKS)
def test_the_estimate_is_a_load_that_was_seen_with_a_positive_variance(
    looks: list[tuple[bool | None, float | None, float, float]],
) -> None:
    known = Throttling()
    for on, headroom, load, period_s in looks:
        known = known.update(on, headroom, load, period_s)
        if known.bearable is not None:
            assert -1e-9 <= known.bearable.load <= 1.0 + 1e-9
            assert known.bearable.variance > 0.0
            assert known.bearable.chance(0.2) <= known.bearable.chance(0.8)


def test_surroundings_that_get_warmer_lower_what_the_board_bears() -> None:
    known = lived(Board(), (HEAVY, 300), (LIGHT, 300), sensor=0.4)
    assert known.hidden is not None
    before = known.hidden.load
    for _ in range(900):
        known = known.update(on=True, headroom=0.4, load=0.3, period_s=1.0)
    assert known.hidden is not None
    assert known.hidden.load < 0.35 < before


def test_the_policy_leaves_the_variant_that_throttles_a_board_whose_sensor_is_stuck() -> None:
    known, board = Estimates(), Board()
    served = (("slow", 0.0, 60), *(("slow", HEAVY, 100), ("fast", LIGHT, 100)) * 6)
    for name, load, seconds in served:
        for _ in range(seconds):
            health = HealthSnapshot(
                at_s=0.0, headroom=0.4, throttled=board.run(load), cpu_busy_ratio=load
            )
            known = known.update(health, observed(name, load), 1.0)
    spec = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=1000.0))
    slow, fast = (
        predict(Candidate(name=name, accuracy=1.0, latency_p50_ms=1000.0 * load), known, spec)
        for name, load in (("slow", HEAVY), ("fast", LIGHT))
    )
    costs = [
        sum(fault.cost for fault in each.faults if "no sensor shows why" in fault.text)
        for each in (slow, fast)
    ]
    assert costs[0] > 5.0 * costs[1], costs
    assert costs[0] > 0.1


def observed(name: str, load: float) -> Observed:
    """Return what a second with one request shows."""
    came = 1.0 if load else 0.0
    return Observed(
        variant=name,
        alone_ms=1000.0 * load or None,
        held_bytes=0,
        requests=came,
        answered=came,
        in_time=came,
        samples=came,
        compute_s=load,
        latency_ms=1000.0 * load if load else None,
        own_load=load,
    )
