"""The windows of a rollout: days, nights, and how long a device may have to wait for one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.windows import (
    CHANGE_S,
    DAY_S,
    MAX_WINDOWS,
    Window,
    longest_wait_s,
    opens_in_s,
    parse_window,
    window_faults,
)

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
MINUTES = st.integers(0, 24 * 60 - 1)
WINDOWS = st.builds(
    lambda begin, length, days: Window(
        begin_s=begin * 60, end_s=(begin + length) % 1440 * 60, days=frozenset(days)
    ),
    MINUTES,
    st.integers(1, 1439),
    st.sets(st.integers(0, 6), min_size=1),
)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("22:00-05:00", {0, 1, 2, 3, 4, 5, 6}),
        ("mon-fri 22:00-05:00", {0, 1, 2, 3, 4}),
        ("sat,sun 22:00-05:00", {5, 6}),
        ("fri-mon,wed 22:00-05:00", {4, 5, 6, 0, 2}),
    ],
)
def test_days(text: str, days: set[int]) -> None:
    window = parse_window(text)
    assert window is not None
    assert (window.begin_s, window.end_s) == (22 * 3600, 5 * 3600)
    assert set(window.days) == days


@pytest.mark.parametrize("text", ["", "22:00-22:00", "mon 5-6", "noday 01:00-02:00", "mon- 1", "x"])
def test_a_window_that_never_opens_is_told_in_one_line(text: str) -> None:
    (line,) = window_faults(["01:00-02:00", text])
    assert line.startswith(repr(text))
    assert "\n" not in line


def test_there_are_not_too_many() -> None:
    assert window_faults(["01:00-02:00"] * MAX_WINDOWS) == ()
    assert window_faults(["01:00-02:00"] * (MAX_WINDOWS + 1))


def test_a_night_belongs_to_the_day_on_which_it_begins() -> None:
    window = parse_window("fri 22:00-05:00")
    assert window is not None
    friday = MONDAY + timedelta(days=4)
    shown = [window.holds(friday + timedelta(hours=hour)) for hour in (4, 22, 28, 29)]
    assert shown == [False, True, True, False]


@given(windows=st.lists(WINDOWS, min_size=1, max_size=4))
def test_nobody_waits_longer_than_said(windows: list[Window]) -> None:
    open_at = [
        any(window.holds(MONDAY + timedelta(minutes=minute)) for window in windows)
        for minute in range(7 * 1440)
    ]
    longest = wait = 0
    for is_open in open_at * 2:
        wait = 0 if is_open else wait + 60
        longest = max(longest, wait)
    said = longest_wait_s(windows)
    is_left_out = any(window.length_s <= CHANGE_S for window in windows)
    assert said >= longest + CHANGE_S if is_left_out else said == longest + CHANGE_S


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("sun 02:10-02:50", "Europe/Berlin"),
        ("02:10-02:50", "America/New_York"),
        ("fri 00:10-00:50", "Africa/Cairo"),
        ("sat 23:30-03:00", "Europe/Berlin"),
    ],
)
def test_nobody_waits_longer_than_said_when_clocks_are_changed(text: str, zone: str) -> None:
    window, local = parse_window(text), ZoneInfo(zone)
    assert window is not None
    begins = datetime(2026, 3, 1, tzinfo=UTC)
    open_at = [
        step
        for step in range(0, 75 * 1440, 10)
        if window.holds((begins + timedelta(minutes=step)).astimezone(local))
    ]
    longest = max(later - before for before, later in pairwise(open_at)) * 60
    assert longest <= longest_wait_s([window])


def test_without_windows_nobody_waits() -> None:
    assert longest_wait_s([]) == 0
    assert longest_wait_s([Window(begin_s=0, end_s=DAY_S // 2)]) == DAY_S / 2 + CHANGE_S


@given(windows=st.lists(WINDOWS, max_size=3), minute=st.integers(0, 7 * 1440 - 1))
def test_when_one_opens_is_the_first_minute_in_which_one_holds(
    windows: list[Window], minute: int
) -> None:
    at = MONDAY + timedelta(minutes=minute)
    waits = (at + timedelta(minutes=step) for step in range(8 * 1440))
    first = next((now for now in waits if any(w.holds(now) for w in windows)), at)
    assert opens_in_s(windows, at) == (first - at).total_seconds()
