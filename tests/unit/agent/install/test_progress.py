"""The rate of a transfer, what came which way, and how often it is reported."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.install.progress import RATE_AGE_S, Rate, TransferMeter
from tests.simulators.clock import FakeClock
from wire.progress import FILE, FOUND, HTTP, LOCAL, MQTT, REPORT_MAX_S

GAPS_S = st.lists(st.floats(0.001, 60.0), min_size=1, max_size=50)
STEPS = st.lists(
    st.tuples(st.floats(0.01, 30.0), st.integers(1, 2**30)), min_size=1, max_size=50
)  # fmt: skip
GAINS = st.lists(
    st.tuples(st.integers(1, 1000), st.sampled_from([LOCAL, MQTT, HTTP, "a later one"])),
    max_size=30,
)


def rate_of(steps: list[tuple[float, float]]) -> Rate:
    rate, now_s = Rate(), 0.0
    rate.pause(now_s)
    for gap_s, size in steps:
        now_s += gap_s
        rate.add(size, now_s)  # type: ignore[arg-type] # parts of a byte, to be exact
    return rate


@given(GAPS_S, st.floats(1.0, 1e9))
def test_what_comes_evenly_has_exactly_its_rate_in_whatever_parts(
    gaps_s: list[float], bytes_per_s: float
) -> None:
    told = rate_of([(gap_s, gap_s * bytes_per_s) for gap_s in gaps_s]).bytes_per_s
    if sum(gaps_s) > 1.001:
        assert told == pytest.approx(bytes_per_s, rel=1e-6)
    if sum(gaps_s) < 0.999:
        assert told is None, "it is too early to tell"


@given(STEPS)
def test_a_rate_is_within_those_that_it_is_made_of(steps: list[tuple[float, int]]) -> None:
    told = rate_of([(gap, float(size)) for gap, size in steps]).bytes_per_s
    rates = [size / gap for gap, size in steps]
    if told is not None:
        assert min(rates) * (1 - 1e-6) <= told <= max(rates) * (1 + 1e-6)


@given(STEPS, st.floats(1.0, 1e7))
def test_three_ages_later_the_rate_is_the_new_one(
    steps: list[tuple[float, int]], new_bytes_per_s: float
) -> None:
    before = [(gap, float(size)) for gap, size in steps]
    changed = [*before, *[(0.5, 0.5 * new_bytes_per_s)] * int(3 * RATE_AGE_S / 0.5)]
    told = rate_of(changed).bytes_per_s
    assert told is not None
    furthest = max(abs(size / gap - new_bytes_per_s) for gap, size in before)
    assert abs(told - new_bytes_per_s) <= 0.051 * furthest + 1e-6 * new_bytes_per_s


def test_bytes_at_one_instant_are_no_fault() -> None:
    rate = rate_of([(0.0, 100.0), (0.0, 100.0)])
    assert rate.bytes_per_s is None
    rate.add(0, 10.0)
    assert rate.bytes_per_s is not None


@given(st.integers(0, 5000), GAINS, st.integers(0, 3))
def test_what_came_is_counted_once_whichever_way_it_came(
    here_bytes: int, gains: list[tuple[int, str]], tries: int
) -> None:
    clock, told = FakeClock(), dict[str, int]()

    def tell(size_bytes: int, source: str) -> None:
        told[source] = told.get(source, 0) + size_bytes

    meter = TransferMeter(clock.monotonic_s, tell)
    meter.begin_install()
    total = here_bytes + sum(size for size, _ in gains)
    meter.begin(total, here_bytes)
    for size, source in gains:
        clock.advance(0.1)
        meter.came(size, source)
    for _ in range(tries):  # nothing is lost: all of it is found
        meter.begin(total, total)
    figures = meter.figures
    assert figures.done_bytes == total
    assert sum(figures.bytes_by_source.values()) == total
    assert told == figures.bytes_by_source
    local = here_bytes + sum(size for size, source in gains if source == LOCAL)
    assert figures.bytes_by_source.get(LOCAL, 0) == local


def test_what_is_found_in_a_partial_file_after_a_break_is_not_counted_as_local() -> None:
    meter = TransferMeter(FakeClock().monotonic_s)
    meter.begin_install()
    meter.begin(100, 10)
    meter.came(60, MQTT)
    meter.begin(100, 10)  # the file is not whole, so nothing of it is here yet
    assert meter.figures.done_bytes == 10
    meter.came(60, LOCAL)
    meter.came(30, MQTT)
    assert meter.figures.bytes_by_source == {LOCAL: 10, MQTT: 90}
    assert meter.figures.done_bytes == 100


@pytest.mark.parametrize("source", sorted(FOUND))
def test_what_the_device_had_has_no_rate(source: str) -> None:
    clock = FakeClock()
    meter = TransferMeter(clock.monotonic_s)
    meter.begin_install()
    meter.begin(3 * 10**9, 10**9, source)
    for _ in range(10):
        clock.advance(1.0)
        meter.came(10**8, source)
    assert meter.figures.rate_bytes_per_s is None
    assert meter.figures.bytes_by_source == {source: 2 * 10**9}
    for _ in range(3):
        clock.advance(1.0)
        meter.came(1000, MQTT)
    assert meter.figures.rate_bytes_per_s == pytest.approx(1000)
    assert meter.figures.rest_s == pytest.approx((10**9 - 3000) / 1000)


def test_the_wait_between_two_tries_does_not_slow_the_rate() -> None:
    clock = FakeClock()
    meter = TransferMeter(clock.monotonic_s)
    meter.begin_install()
    for _ in range(2):
        meter.begin(10**6, 0)
        for _ in range(4):
            clock.advance(1.0)
            meter.came(1000, HTTP)
        clock.advance(3600.0)
    assert meter.figures.rate_bytes_per_s == pytest.approx(1000)
    assert meter.figures.news_age_s == 3600.0
    assert meter.figures.rest_s is None, "nobody knows when it goes on"


def test_each_install_begins_anew() -> None:
    clock = FakeClock()
    meter = TransferMeter(clock.monotonic_s)
    durations_s = [meter.duration_s]  # after a restart nobody knows when the install began
    meter.begin_install()
    meter.begin(100, 0, FILE)
    clock.advance(2.0)
    meter.came(100, MQTT)
    durations_s.append(meter.duration_s)
    meter.begin_install()
    durations_s.append(meter.duration_s)
    assert durations_s == [None, 2.0, 0.0]
    assert (meter.figures.done_bytes, meter.figures.bytes_by_source) == (0, {})
    assert meter.figures.rate_bytes_per_s is None


def reported_s(chunk_s: float, chunks: int) -> list[float]:
    """Return when a transfer is reported whose chunks come so far apart."""
    clock, found = FakeClock(), list[float]()
    meter = TransferMeter(clock.monotonic_s)
    meter.begin_install()
    meter.begin(chunks, 0)
    for _ in range(chunks):
        clock.advance(chunk_s)
        meter.came(1, MQTT)
        if meter.is_due():
            meter.reported()
            found.append(clock.monotonic_s())
    return found


@given(st.floats(0.01, 5.0))
def test_reports_get_rarer_but_are_never_further_apart_than_told(chunk_s: float) -> None:
    at_s = reported_s(chunk_s, 2000)
    for before_s, after_s in pairwise(at_s):
        gap_s = after_s - before_s
        least_s = min(max(1.0, 0.1 * after_s), REPORT_MAX_S)
        assert least_s - chunk_s - 1e-6 <= gap_s <= least_s + chunk_s + 1e-6


def test_a_transfer_of_ten_minutes_costs_fewer_than_a_hundred_reports() -> None:
    assert len(reported_s(0.1, 6000)) == pytest.approx(84, abs=5)
