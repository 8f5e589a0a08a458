"""What becomes of one group of a rule: the table, and what holds for any course of values."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.server.alerts.rules import Limits
from telemetry.server.alerts.states import (
    FORGOTTEN_AFTER_S,
    TRANSITIONS,
    Phase,
    Reading,
    State,
    Transition,
    step,
)

HOT = Limits(above=85.0, clear=80.0, for_s=120.0)
LOW = Limits(below=0.2, clear=0.3)
START = State(since_s=0.0)
VALUES = st.one_of(st.none(), st.sampled_from([70.0, 80.0, 82.0, 85.0, 86.0, 99.0]))
COURSES = st.lists(st.tuples(st.integers(1, 100_000), VALUES), max_size=40)


def course(limits: Limits, *looks: tuple[float, float | None]) -> list[Phase]:
    """Return the phase after each look: wall time and value."""
    state, phases, before_s = START, [], 0.0
    for at_s, value in looks:
        state, _ = step(limits, state, value, at_s, at_s - before_s)
        before_s = at_s
        phases.append(state.phase)
    return phases


def followed(
    limits: Limits, looks: list[tuple[int, float | None]]
) -> list[tuple[float, float | None, State, State, Transition | None]]:
    """Return each look at a group with its time, its value, and the states around it."""
    state, at_s, found = START, 0.0, []
    for pause_s, value in looks:
        at_s += pause_s
        after, change = step(limits, state, value, at_s, pause_s)
        found.append((at_s, value, state, after, change))
        state = after
    return found


def test_the_table_is_whole() -> None:
    assert set(TRANSITIONS) == set(itertools.product(Phase, Reading))


def test_an_alert_fires_when_it_has_been_beyond_long_enough() -> None:
    looks = [(0, 90), (60, 90), (119, 90), (120, 90), (150, 99)]
    assert course(HOT, *looks) == ["pending", "pending", "pending", "firing", "firing"]


def test_a_short_peak_is_no_alert() -> None:
    assert course(HOT, (0, 90), (60, 85), (120, 90), (180, 90)) == [
        "pending", "inactive", "pending", "pending",
    ]  # fmt: skip


def test_without_a_time_it_fires_at_once() -> None:
    assert course(LOW, (0, 0.1), (30, 0.25), (60, 0.3), (90, 0.19)) == [
        "firing", "firing", "resolved", "firing",
    ]  # fmt: skip


def test_between_the_bounds_it_goes_on_and_none_begins() -> None:
    assert course(HOT, (0, 84), (60, 90), (180, 90), (240, 81), (300, 80)) == [
        "inactive", "pending", "firing", "firing", "resolved",
    ]  # fmt: skip


def test_missing_data_neither_fires_nor_clears() -> None:
    looks = [(0, 90), (200, None), (230, 90), (260, None), (290, None), (320, 70)]
    assert course(HOT, *looks) == [
        "pending", "pending", "firing", "firing", "firing", "resolved",
    ]  # fmt: skip


def test_after_a_day_without_data_it_ends() -> None:
    day_s = FORGOTTEN_AFTER_S
    assert course(LOW, (0, 0.1), (day_s - 1, None), (day_s, None)) == [
        "firing", "firing", "resolved",
    ]  # fmt: skip
    assert course(HOT, (0, 90), (day_s, None)) == ["pending", "inactive"]


def test_a_group_that_is_gone_ends_at_once() -> None:
    state, _ = step(LOW, START, 0.1, 10.0)
    after, change = step(LOW, state, None, 40.0, is_gone=True)
    assert after.phase is Phase.RESOLVED
    assert change == Transition(
        Phase.FIRING, Phase.RESOLVED, Reading.FORGOTTEN, 0.1, at_s=40.0, fired_at_s=10.0
    )


def test_a_clock_that_is_set_neither_holds_up_nor_hurries_anything() -> None:
    state, _ = step(HOT, START, 90.0, 1_000_000.0)
    state, _ = step(HOT, state, 90.0, 1_000.0, 119.0)
    assert (state.phase, state.since_s) == (Phase.PENDING, 1_000.0)
    state, _ = step(HOT, state, None, 2_000_000.0, 0.5)
    assert state.phase is Phase.PENDING
    state, _ = step(HOT, state, 90.0, 2_000_000.0, 0.5)
    assert state.phase is Phase.FIRING


@pytest.mark.parametrize("value", [85.0, 85.1, 84.9, 80.0, 80.1])
def test_on_the_bound_is_not_beyond(value: float) -> None:
    assert HOT.is_beyond(value) is (value > 85.0)
    assert HOT.is_clear(value) is (value <= 80.0)
    assert not (HOT.is_beyond(value) and HOT.is_clear(value))


@given(COURSES)
def test_it_fires_only_by_a_value_that_is_beyond_and_was_for_long(
    looks: list[tuple[int, float | None]],
) -> None:
    for at_s, value, before, after, change in followed(HOT, looks):
        if change is None or change.after is not Phase.FIRING:
            continue
        assert value is not None
        assert value > 85.0
        assert before.phase is Phase.PENDING
        assert at_s - before.since_s >= 120.0
        assert after.held_s == 0.0
        assert after.since_s == at_s == change.fired_at_s


@given(COURSES)
def test_missing_data_changes_nothing_within_a_day(
    looks: list[tuple[int, float | None]],
) -> None:
    for _, value, before, after, change in followed(HOT, looks):
        if value is None and after.missing_s < FORGOTTEN_AFTER_S:
            assert change is None
            assert after == replace(before, held_s=after.held_s, missing_s=after.missing_s)


@given(COURSES)
def test_it_is_resolved_only_by_a_value_past_clear_or_when_it_is_forgotten(
    looks: list[tuple[int, float | None]],
) -> None:
    for _, value, before, after, change in followed(HOT, looks):
        if before.phase is Phase.FIRING and after.phase is not Phase.FIRING:
            assert after.phase is Phase.RESOLVED
            assert change is not None
            assert change.fired_at_s == before.since_s
            if value is None:
                assert after.missing_s >= FORGOTTEN_AFTER_S
            else:
                assert value <= 80.0


@given(COURSES)
def test_hysteresis_never_flaps_between_the_bounds(
    looks: list[tuple[int, float | None]],
) -> None:
    for _, value, before, after, _ in followed(HOT, looks):
        if value is not None and 80.0 < value <= 85.0:
            was_open = before.phase is Phase.FIRING
            assert (after.phase is Phase.FIRING) is was_open


@given(COURSES)
def test_a_change_is_told_exactly_when_the_phase_changes(
    looks: list[tuple[int, float | None]],
) -> None:
    for at_s, _, before, after, change in followed(HOT, looks):
        assert (change is not None) is (before.phase is not after.phase)
        assert after.since_s <= at_s
        if change is not None:
            assert (change.before, change.after) == (before.phase, after.phase)
            assert TRANSITIONS[change.before, change.reading] is change.after
