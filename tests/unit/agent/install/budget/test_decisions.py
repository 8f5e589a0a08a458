"""Budgets on random days: a bound holds, a jump of the clock gives little, no wait is for ever."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.install.budget.decisions import (
    SMALL_BYTES,
    Bounds,
    Moment,
    Refusal,
    Wanted,
    date_of,
    decide,
    refusal_text,
    share_text,
)
from agent.install.budget.ledger import (
    DAY_S,
    HOUR_S,
    SET_S,
    WRITES,
    Ledger,
    advanced,
    counted,
    started,
    used,
)
from agent.install.budget.settings import NetworkSettings
from agent.install.window import Local

MB = 10**6
NO_DELTA = "cellular brings deltas only (full = false), and there is none to a file of 11.8 MiB"
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia")
NAME = "cellular"


def in_zone(name: str) -> Local:
    zone = ZoneInfo(name)
    return lambda at_s: datetime.fromtimestamp(at_s, zone)


UTC_TIME = in_zone("UTC")


def at_s(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def network(**changes: object) -> NetworkSettings:
    plain = NetworkSettings(name=NAME, interfaces=("wwan*",), full=True)
    return msgspec.structs.replace(plain, **changes)


class Device:
    """A device that fetches, with a clock that may jump."""

    def __init__(self, now_s: float, local: Local = UTC_TIME, **bounds: Any) -> None:
        self.now_s, self.local = now_s, local
        self.bounds = Bounds(network(**bounds), None)
        self.uptime_s, self.boots = 0.0, 1
        self.ledger = started(Ledger(seen_s=now_s), "1", self.uptime_s)
        self.fetched_bytes = 0

    def wait(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.uptime_s += duration_s
        self.ledger = advanced(self.ledger, self.now_s, self.uptime_s)

    def jump_to(self, now_s: float) -> None:
        self.now_s = now_s
        self.ledger = advanced(self.ledger, now_s, self.uptime_s)

    def boot_at(self, now_s: float) -> None:
        """Be switched off and on; the clock shows a time then."""
        self.boots, self.uptime_s = self.boots + 1, 1.0
        self.ledger = started(self.ledger, str(self.boots), self.uptime_s)
        self.jump_to(now_s)

    def refusal(self, wanted: Wanted = Wanted()) -> Refusal | None:  # noqa: B008 - a constant
        return decide(self.bounds, Moment(self.ledger, wanted, self.now_s, self.local))

    def use(self, size_bytes: int, name: str = NAME) -> None:
        date = date_of(self.local(self.now_s))
        self.ledger = counted(self.ledger, date, name, size_bytes)
        self.fetched_bytes += size_bytes

    def fetch_all(self, step_bytes: int = MB, wanted: Wanted = Wanted()) -> int:  # noqa: B008
        """Fetch until it may not go on; return how much came."""
        before_bytes = self.fetched_bytes
        while self.refusal(wanted) is None:
            self.use(step_bytes)
        return self.fetched_bytes - before_bytes

    def why(self, wanted: Wanted = Wanted()) -> str:  # noqa: B008
        refusal = self.refusal(wanted)
        return "" if refusal is None else refusal_text(refusal, self.local)


NOON = at_s("2026-11-23 12:00")
WHOLE = Wanted(lacking_bytes=12_400_000, is_content=True)


def test_a_network_without_bounds_goes_on() -> None:
    device = Device(NOON)
    device.use(10**15)
    assert device.refusal(WHOLE) is None
    nothing = Bounds(None, None)
    assert decide(nothing, Moment(device.ledger, WHOLE, NOON, UTC_TIME)) is None


@pytest.mark.parametrize(
    ("bounds", "used_bytes", "why"),
    [
        (
            {"bytes_per_day": 50 * MB},
            50 * MB,
            "cellular has used 47.7 of 47.7 MiB today; it goes on at 2026-11-24 00:00 +0000",
        ),
        (
            {"bytes_per_month": 500 * MB},
            501 * MB,
            "cellular has used 477.8 of 476.8 MiB this month; it goes on at 2026-12-01 00:00 +0000",
        ),
        (
            {"bytes_per_day": 50 * MB, "hours": "01:00-05:00"},
            50 * MB,
            "cellular brings no packages outside 01:00-05:00; it goes on at 2026-11-24 01:00 +0000",
        ),
        (
            {"bytes_per_month": 5 * MB, "hours": "01:00-05:00"},
            5 * MB,
            "cellular has used 4.8 of 4.8 MiB this month; it goes on at 2026-12-01 01:00 +0000",
        ),
        (
            {"full": False},
            0,
            f"{NO_DELTA}; it goes on by another network",
        ),
        ({"bytes_per_day": 0}, 0, "cellular brings no packages; it goes on by another network"),
    ],
)
def test_a_wait_says_why_and_until_when(bounds: dict[str, Any], used_bytes: int, why: str) -> None:
    device = Device(NOON, **bounds)
    device.use(used_bytes)
    assert device.why(WHOLE) == why


def test_the_last_of_all_reasons_is_told() -> None:
    device = Device(NOON, bytes_per_day=MB, bytes_per_month=2 * MB)
    device.use(2 * MB)
    assert device.why().startswith(
        "cellular has used 1.9 of 1.9 MiB this month; it goes on at 2026-12"
    )


@pytest.mark.parametrize(
    ("wanted", "may_come"),
    [
        (WHOLE, False),
        (Wanted(lacking_bytes=12_400_000), True),  # a delta, the index or the manifest
        (Wanted(lacking_bytes=SMALL_BYTES, is_content=True), True),
        (Wanted(lacking_bytes=SMALL_BYTES + 1, is_content=True), False),
        (WHOLE._replace(is_repair=True), True),
        (WHOLE._replace(is_local=True), True),
    ],
)
def test_a_network_without_whole_files_brings_deltas(wanted: Wanted, *, may_come: bool) -> None:
    device = Device(NOON, full=False)
    refusal = device.refusal(wanted)
    assert (refusal is None) is may_come
    if refusal is not None:
        assert refusal.needs_delta
        assert refusal.until_s is None


def test_a_repair_waits_for_no_hours_and_may_use_each_bound_once_more() -> None:
    device = Device(NOON, bytes_per_day=50 * MB, hours="01:00-05:00", full=False)
    repair = WHOLE._replace(is_repair=True)
    assert device.fetch_all(wanted=repair) == 100 * MB
    assert "cellular has used 95.4 of 47.7 MiB today" in device.why(repair)


def test_what_is_written_is_bounded_whatever_the_network_is() -> None:
    device = Device(NOON)
    device.bounds = Bounds(None, 200 * MB)
    device.use(200 * MB, WRITES)
    assert device.why(Wanted(is_local=True)) == (
        "installs have written 190.7 of 190.7 MiB today; it goes on at 2026-11-24 00:00 +0000"
    )


@pytest.mark.parametrize(
    ("used_bytes", "bound_bytes", "text"),
    [
        (12_400_000, 50_000_000, "11.8 of 47.7 MiB"),
        (130_000_000, 500_000_000, "124.0 of 476.8 MiB"),
        (0, 2 * 2**30, "0.0 of 2.0 GiB"),
        (700, 900, "700 of 900 B"),
        (3, 0, "3 of 0 B"),
        (64_000, None, "62.5 KiB"),
        (0, None, "0 B"),
    ],
)
def test_a_share_is_shown_in_the_unit_of_its_bound(
    used_bytes: int, bound_bytes: int | None, text: str
) -> None:
    assert share_text(used_bytes, bound_bytes) == text


@given(
    start=st.integers(0, 2**32),
    zone=st.sampled_from(ZONES),
    waits_s=st.lists(st.tuples(st.floats(0, 40 * DAY_S), st.booleans()), max_size=40),
    per_day=st.integers(1, 30) | st.none(),
    per_month=st.integers(1, 60) | st.none(),
)
@settings(deadline=None, max_examples=60)
def test_with_a_right_clock_each_date_and_month_has_its_bound_and_all_of_it(
    start: int,
    zone: str,
    waits_s: list[tuple[float, bool]],
    per_day: int | None,
    per_month: int | None,
) -> None:
    local = in_zone(zone)
    device = Device(start, local, bytes_per_day=per_day, bytes_per_month=per_month)
    by_date: dict[str, int] = {}
    for wait_s, has_power in waits_s:
        if has_power:
            device.wait(wait_s)
        else:
            device.boot_at(device.now_s + wait_s)
        date = date_of(local(device.now_s))
        while len(by_date) < 500 and device.refusal() is None and by_date.get(date, 0) < 100:
            device.use(1)
            by_date[date] = by_date.get(date, 0) + 1
        month = sum(n for each, n in by_date.items() if each[:7] == date[:7])
        if per_day is not None:
            assert by_date.get(date, 0) <= per_day
        if per_month is not None:
            assert month <= per_month
        if per_day is not None and (per_month is None or month < per_month):
            assert by_date.get(date, 0) == per_day, "nothing is held back on the right date"


@given(
    start=st.integers(0, 2**32),
    zone=st.sampled_from(ZONES),
    bounds=st.fixed_dictionaries(
        {
            "bytes_per_day": st.sampled_from([None, 5]),
            "bytes_per_month": st.sampled_from([None, 7]),
            "hours": st.sampled_from(["", "01:00-05:00", "22:30-04:00", "02:10-02:20"]),
        }
    ),
    used_bytes=st.integers(0, 20),
)
@settings(deadline=None, max_examples=60)
def test_a_wait_ends_when_it_says_and_not_a_minute_earlier(
    start: int, zone: str, bounds: dict[str, Any], used_bytes: int
) -> None:
    device = Device(start, in_zone(zone), **bounds)
    device.use(used_bytes)
    refusal = device.refusal()
    if refusal is None:
        return
    assert refusal.until_s is not None
    assert 0 < refusal.until_s - start <= 34 * DAY_S
    device.wait(refusal.until_s - start - 60)
    if refusal.until_s - start > 60:
        assert device.refusal() is not None
    device.wait(60)
    assert device.refusal() is None


@given(
    start=st.integers(0, 2**33),
    jumps=st.lists(st.integers(0, 40 * int(DAY_S)), max_size=30),
    per_day=st.integers(1, 20),
    zone=st.sampled_from(ZONES),
)
@settings(deadline=None, max_examples=100)
def test_however_often_the_clock_jumps_a_boot_gives_four_days_worth_at_most(
    start: int, jumps: list[int], per_day: int, zone: str
) -> None:
    device = Device(start, in_zone(zone), bytes_per_day=per_day)
    for by_s in jumps:
        device.fetch_all(1)
        device.jump_to(device.now_s + by_s)
    device.fetch_all(1)
    assert device.fetched_bytes <= 4 * per_day


@given(
    jumps=st.lists(st.tuples(st.floats(0, 3 * DAY_S), st.floats(0, DAY_S)), max_size=40),
    per_day=st.integers(1, 20),
)
@settings(deadline=None, max_examples=100)
def test_each_day_that_passes_gives_two_days_worth_at_most_whatever_the_clock_shows(
    jumps: list[tuple[float, float]], per_day: int
) -> None:
    device = Device(NOON, bytes_per_day=per_day)
    for by_s, wait_s in jumps:
        device.fetch_all(1)
        device.jump_to(device.now_s + by_s)
        device.fetch_all(1)
        device.wait(wait_s)
    # The day that the wall clock may add, and the one that has begun; sums of waits are not exact.
    days = (device.uptime_s + 1.0) // DAY_S + 2
    assert device.fetched_bytes <= 2 * per_day * days


@given(
    off_s=st.floats(0, 40 * DAY_S),
    late_s=st.floats(0, HOUR_S),
    shown=st.sampled_from(["1970", "when it was switched off"]),
    zone=st.sampled_from(ZONES),
)
@settings(deadline=None, max_examples=60)
def test_a_device_without_a_clock_has_its_day_when_the_right_time_comes(
    off_s: float, late_s: float, shown: str, zone: str
) -> None:
    device = Device(NOON, in_zone(zone), bytes_per_day=10)
    for _ in range(5):
        device.fetch_all(1)
        before_s = device.now_s
        device.boot_at(60.0 if shown == "1970" else before_s)
        device.wait(late_s)
        right_s = before_s + off_s + late_s
        device.jump_to(right_s)
        if date_of(device.local(before_s)) != date_of(device.local(right_s)):
            assert device.fetch_all(1) == 10


def test_the_agent_may_be_started_again_and_again_in_one_boot() -> None:
    device = Device(NOON, bytes_per_day=10)
    for _ in range(20):
        device.fetch_all(1)
        device.jump_to(device.now_s + 2 * DAY_S)
        device.ledger = started(device.ledger, str(device.boots), device.uptime_s)
    assert device.fetched_bytes <= 30
    device.boot_at(device.now_s + 2 * DAY_S)
    assert device.fetch_all(1) == 10


def test_a_long_sleep_counts_as_time() -> None:
    device = Device(NOON, bytes_per_day=10)
    for _ in range(5):
        assert device.fetch_all(1) == 10
        device.wait(DAY_S)


@given(
    start=st.integers(0, 2**33),
    jumps=st.lists(st.integers(0, 2**33), max_size=30),
    per_day=st.integers(1, 20),
)
@settings(deadline=None, max_examples=40)
def test_clocks_that_jump_back_and_forth_give_no_more(
    start: int, jumps: list[int], per_day: int
) -> None:
    device = Device(start, bytes_per_day=per_day)
    device.jump_to(2**33)
    for to_s in jumps:
        device.fetch_all(1)
        device.jump_to(to_s)
    assert device.fetched_bytes <= 2 * per_day


@given(
    used_bytes=st.lists(st.integers(1, 30), max_size=6),
    dates=st.lists(st.integers(0, 2**33), min_size=6, max_size=6),
    boots=st.floats(HOUR_S, DAY_S),
)
@settings(deadline=None, max_examples=40)
def test_a_device_that_wakes_up_in_1970_each_time_is_not_held_for_ever(
    used_bytes: list[int], dates: list[int], boots: float
) -> None:
    device = Device(0.0, bytes_per_day=10, bytes_per_month=30)
    for size_bytes, date_s in zip(used_bytes, dates, strict=False):
        device.jump_to(date_s)
        device.use(size_bytes)
    run_s = 0.0
    while device.refusal() is not None:
        device.jump_to(0.0)  # the power was off
        device.wait(boots)
        run_s += boots
        assert run_s <= 34 * DAY_S


def test_the_first_day_of_1970_gives_one_day_more_and_no_month() -> None:
    device = Device(NOON, bytes_per_day=10, bytes_per_month=300)
    device.fetch_all(1)
    for _ in range(20):
        device.jump_to(60.0)
        device.fetch_all(1)
        device.wait(60.0)
        device.jump_to(NOON + 3600)
        device.fetch_all(1)
    assert device.fetched_bytes == 20
    assert used(device.ledger, "2026-11-23", NAME).month_bytes == 10


def test_a_wrong_jump_far_ahead_forgets_no_month() -> None:
    device = Device(NOON, bytes_per_month=30)
    device.use(20)
    device.jump_to(NOON + 30_000 * DAY_S)
    device.wait(60.0)
    device.jump_to(NOON + 120)
    assert device.fetch_all(1) == 10


@given(st.integers(0, 2**33), st.sampled_from(ZONES))
@settings(deadline=None, max_examples=40)
def test_no_time_is_too_strange(now_s: int, zone: str) -> None:
    device = Device(now_s, in_zone(zone), bytes_per_day=1, bytes_per_month=1, hours="01:00-05:00")
    device.use(2**60)
    assert device.refusal() is not None
    assert device.local(now_s).tzinfo is not UTC


@given(
    wrong_s=st.lists(st.integers(0, 2**33), min_size=1, max_size=5),
    on_s=st.floats(60, 8 * HOUR_S),
    zone=st.sampled_from(ZONES),
)
@settings(deadline=None, max_examples=60)
def test_a_device_that_is_mostly_off_has_its_days_again_after_any_wrong_time(
    wrong_s: list[int], on_s: float, zone: str
) -> None:
    device = Device(NOON, in_zone(zone), bytes_per_day=10)
    for now_s in wrong_s:
        device.boot_at(now_s)
        device.fetch_all(1)
    came = []
    for day in range(1, 12):
        device.boot_at(NOON + day * DAY_S)
        came.append(device.fetch_all(1))
        device.wait(on_s)
    assert came[3:] == [10] * 8, "the first days may be held by what came under the wrong dates"


@given(
    boots=st.lists(
        st.tuples(st.floats(0, 3 * HOUR_S), st.floats(0, 3 * HOUR_S), st.booleans()), max_size=40
    ),
    wrong_s=st.integers(0, int(NOON)),
)
@settings(deadline=None, max_examples=60)
def test_boots_that_begin_without_the_time_give_no_more_than_what_passed(
    boots: list[tuple[float, float, bool]], wrong_s: int
) -> None:
    unset_s = min(wrong_s, SET_S - 4 * DAY_S)
    device = Device(NOON)
    device.wait(1)
    right_s, before_s = device.now_s, device.ledger.clock_s
    for off_s, on_s, learns_the_time in boots:
        right_s += off_s
        device.boot_at(unset_s)
        if learns_the_time:
            device.jump_to(right_s)
        device.wait(on_s)
        right_s += on_s
    assert device.ledger.clock_s - before_s <= right_s - NOON + 1


@given(times=st.lists(st.tuples(st.integers(0, 2**33), st.floats(0, DAY_S)), max_size=40))
@settings(deadline=None, max_examples=60)
def test_each_boot_gives_the_ledgers_clock_one_day_more_at_most(
    times: list[tuple[int, float]],
) -> None:
    device = Device(NOON)
    for number, (now_s, wait_s) in enumerate(times):
        before_s, ahead_s = device.ledger.clock_s, 0.0
        if number % 4 == 0:
            device.boot_at(now_s)
        else:
            ahead_s = device.ledger.ahead_s
            device.jump_to(now_s)
        assert before_s <= device.ledger.clock_s <= before_s + DAY_S - ahead_s + 2
        device.wait(wait_s)
