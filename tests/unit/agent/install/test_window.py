"""The hours in which installs may begin: over midnight and over changes of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.install.window import Local, opens_s
from wire.windows import DAY_S, Window, parse_window

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu")
"""With changes of an hour, of half an hour and none; whole and broken distances from UTC."""

if not available_timezones() >= set(ZONES):
    pytest.skip("this machine has no tzdata", allow_module_level=True)

TIMES = st.integers(0, 24 * 60 - 1)
YEAR_S = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


def in_zone(name: str) -> Local:
    zone = ZoneInfo(name)
    return lambda at_s: datetime.fromtimestamp(at_s, zone)


def of(text: str) -> Window:
    window = parse_window(text)
    assert window is not None
    return window


def at_s(text: str, zone: str, *, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


@pytest.mark.parametrize(
    "text",
    ["", "1:00-5:00", "01:00", "01:00-01:00", "24:00-05:00", "01:60-05:00", "01:00 - 05:00",
     "01:00-05:00\n", "\u0661\u0661:00-05:00"],
)  # fmt: skip
def test_what_is_no_window(text: str) -> None:
    assert parse_window(text) is None


@pytest.mark.parametrize(
    ("window", "time", "is_open"),
    [
        ("01:00-05:00", "01:00:00", True),
        ("01:00-05:00", "04:59:59", True),
        ("01:00-05:00", "05:00:00", False),
        ("01:00-05:00", "00:59:59", False),
        ("22:30-04:00", "22:30:00", True),
        ("22:30-04:00", "23:59:59", True),
        ("22:30-04:00", "00:00:00", True),
        ("22:30-04:00", "04:00:00", False),
        ("22:30-04:00", "12:00:00", False),
        ("22:00-00:00", "23:00:00", True),
        ("22:00-00:00", "00:00:00", False),
    ],
)
def test_a_window_is_open_by_the_clock_on_the_wall(window: str, time: str, is_open: bool) -> None:
    assert of(window).holds(datetime.fromisoformat(f"2026-11-23T{time}")) is is_open


@pytest.mark.parametrize(
    ("window", "now", "opens", "zone"),
    [
        ("01:00-05:00", "2026-11-23T12:00", "2026-11-24T01:00", "Europe/Berlin"),
        ("01:00-05:00", "2026-11-23T00:30", "2026-11-23T01:00", "Europe/Berlin"),
        ("22:00-04:00", "2026-12-31T12:00", "2026-12-31T22:00", "Asia/Kathmandu"),
        # The clocks go from 2 to 3 o'clock: the window begins late, and the one within is left out.
        ("02:30-04:00", "2026-03-29T01:30", "2026-03-29T03:00", "Europe/Berlin"),
        ("02:10-02:50", "2026-03-28T12:00", "2026-03-30T02:10", "Europe/Berlin"),
        # In Lord Howe they go from 2 to half past two.
        ("02:10-03:00", "2026-10-04T01:30", "2026-10-04T02:30", "Australia/Lord_Howe"),
    ],
)
def test_when_it_opens_next(window: str, now: str, opens: str, zone: str) -> None:
    assert opens_s(of(window), at_s(now, zone), in_zone(zone)) == at_s(opens, zone)


def test_clocks_that_go_back_open_it_a_second_time() -> None:
    zone, local = "Europe/Berlin", in_zone("Europe/Berlin")
    window = of("01:30-02:15")
    again_s = at_s("2026-10-25T02:00", zone, fold=1)
    assert opens_s(window, at_s("2026-10-25T02:30", zone), local) == again_s
    assert window.holds(local(again_s))


@given(
    begin=TIMES, end=TIMES, zone=st.sampled_from(ZONES), second=st.integers(0, 366 * DAY_S),
)  # fmt: skip
@example(begin=135, end=140, zone="Europe/Berlin", second=86 * DAY_S)
@example(begin=90, end=135, zone="Europe/Berlin", second=297 * DAY_S + 3000)
def test_it_opens_at_the_first_second_at_which_it_is_open(
    begin: int, end: int, zone: str, second: int
) -> None:
    if begin == end:
        return
    window = Window(begin_s=begin * 60, end_s=end * 60)
    local, now_s = in_zone(zone), YEAR_S + second
    opens = opens_s(window, now_s, local)
    assert opens is not None
    assert now_s <= opens <= now_s + 2 * DAY_S + 3600
    assert window.holds(local(opens))
    # Nobody sees it open before: it opens and closes at full minutes only.
    before = [now_s, *range(now_s - now_s % 60 + 60, opens, 60)] if opens > now_s else []
    assert not any(window.holds(local(each)) for each in before)
    assert opens == now_s or not window.holds(local(opens - 1))


@given(begin=TIMES, end=TIMES)
def test_in_a_day_without_a_change_it_is_open_for_its_length(begin: int, end: int) -> None:
    if begin == end:
        return
    window = Window(begin_s=begin * 60, end_s=end * 60)
    midnight = datetime(2026, 6, 1, tzinfo=UTC)
    is_open = [window.holds(midnight + timedelta(minutes=minute)) for minute in range(24 * 60)]
    assert sum(is_open) == (end - begin) % (24 * 60)


def test_a_clock_that_shows_one_time_for_ever_ends_no_search() -> None:
    noon = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
    assert opens_s(of("01:00-05:00"), 0.0, lambda _at_s: noon) is None
