"""A time is covered with the coarsest rows that answer it exactly."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from telemetry.server.levels import DAY, DAYS, HOUR, HOURS, MINUTES, Kept, Part, covered, planned

FOREVER = 2**31


def kept(
    minutes: int = 0,
    hours: tuple[int, int] = (0, 0),
    days: tuple[int, int] = (0, 0),
    stale: frozenset[int] = frozenset(),
) -> list[Kept]:
    return [
        Kept(level=MINUTES, first=minutes, end=FOREVER),
        Kept(level=HOURS, first=hours[0], end=hours[1], stale=stale),
        Kept(level=DAYS, first=days[0], end=days[1]),
    ]


def test_whole_days_hours_and_what_is_left_of_them() -> None:
    there = kept(hours=(0, 3 * DAY), days=(0, 2 * DAY))
    assert covered(DAY - 70, 2 * DAY + 61, there) == [
        Part(MINUTES, DAY - 70, DAY - 60),
        Part(HOURS, DAY - 60, DAY),
        Part(DAYS, DAY, 2 * DAY),
        Part(HOURS, 2 * DAY, 2 * DAY + 60),
        Part(MINUTES, 2 * DAY + 60, 2 * DAY + 61),
    ]


def test_an_hour_that_something_came_late_for_is_answered_by_its_minutes() -> None:
    there = kept(hours=(0, 4 * HOUR), stale=frozenset({HOUR}))
    assert covered(0, 4 * HOUR, there) == [
        Part(HOURS, 0, HOUR),
        Part(MINUTES, HOUR, 2 * HOUR),
        Part(HOURS, 2 * HOUR, 4 * HOUR),
    ]


def test_where_minutes_are_gone_the_answer_begins_with_a_whole_hour_or_day() -> None:
    there = kept(minutes=5 * DAY, hours=(3 * DAY, 6 * DAY), days=(0, 6 * DAY))
    assert covered(4 * DAY + 90, 4 * DAY + 200, there) == [Part(HOURS, 4 * DAY + 60, 4 * DAY + 180)]
    assert covered(DAY + 90, 2 * DAY, there) == [Part(DAYS, DAY, 2 * DAY)]


def test_steps_keep_coarser_rows_out() -> None:
    there = kept(hours=(0, 2 * DAY), days=(0, 2 * DAY))
    for step, levels in ((0, {DAYS}), (DAY, {DAYS}), (2 * HOUR, {HOURS}), (5, {MINUTES})):
        parts = planned(0, 2 * DAY, there, step=step, fleet_first=None)
        assert {part.level for part in parts} == levels


def test_rows_of_the_fleet_answer_once_they_are_complete() -> None:
    there = kept(hours=(0, 2 * DAY), days=(0, 2 * DAY))
    assert planned(0, 2 * DAY, there, step=0, fleet_first=100) == [
        Part(DAYS, 0, DAY),
        Part(DAYS, DAY, 2 * DAY, of_fleet=True),
    ]
    assert planned(0, DAY, there, step=0, fleet_first=0) == [Part(DAYS, 0, DAY, of_fleet=True)]


edges = st.integers(0, 4 * DAY)


@given(
    first=edges,
    length=st.integers(0, 3 * DAY),
    minutes=edges,
    hours=st.tuples(st.integers(0, 96), st.integers(0, 96)),
    days=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    stale=st.frozensets(st.integers(0, 96).map(lambda at: at * HOUR), max_size=8),
)
def test_nothing_is_left_out_or_covered_twice(
    first: int,
    length: int,
    minutes: int,
    hours: tuple[int, int],
    days: tuple[int, int],
    stale: frozenset[int],
) -> None:
    end = first + length
    hour_span = (hours[0] * HOUR, hours[1] * HOUR)
    day_span = (days[0] * DAY, days[1] * DAY)
    parts = covered(first, end, kept(minutes, hour_span, day_span, stale))
    for part, after in itertools.pairwise(parts):
        assert part.end <= after.first
    seen: set[int] = set()
    for part in parts:
        size = part.level.minutes
        assert part.first % size == part.end % size == 0
        assert part.first < part.end <= end
        assert part.first >= first or (first < minutes and part.first > first - size)
        seen.update(range(part.first, part.end))
    # Every minute is covered if its own rows are there, whatever there is of hours and days.
    assert seen >= set(range(max(first, minutes), end))
    for part in parts:
        if part.level is HOURS:
            kept_minutes = {at for at in range(part.first, part.end, HOUR) if at >= minutes}
            assert not kept_minutes & stale
