"""What is printed of what was counted."""

from __future__ import annotations

import pytest

from benchmarks.transfers.figures import (
    Run,
    costs,
    incomplete,
    last_of_many,
    link_share,
    needed_of_asked,
    rate_mb_per_s,
    sent_again_percent,
)
from benchmarks.transfers.orders import Result


def result(ended_s: float, *, got: int = 4, asked: int = 4, fault: str = "") -> Result:
    return Result(
        device="d",
        ended_s=ended_s,
        useful_bytes=got * 250_000,
        asked_bytes=asked * 250_000,
        fault=fault,
    )


def run(*results: Result, began_s: float = 10.0, sent_bytes: int = 0) -> Run:
    return Run(
        began_s=began_s,
        results=results,
        sent_bytes=sent_bytes,
        broker_peak_mb=12.0,
        controller_cpu_s=0.02,
        broker_cpu_s=0.01,
        devices_cpu_s=0.04,
    )


def test_the_last_device_ends_a_run() -> None:
    both = run(result(11.0), result(14.0))
    assert both.last_s == pytest.approx(4.0)
    assert both.useful_bytes == 2_000_000
    assert rate_mb_per_s(both) == pytest.approx(0.5)


def test_many_are_compared_with_as_many_times_one_round_by_round() -> None:
    ones = [run(result(10.0 + took_s)) for took_s in (1.0, 1.0, 9.0, 2.0, 2.0, 2.0)]
    many = [run(result(11.0), result(12.0)), run(result(16.0), result(13.0))]
    row = last_of_many("two", many, ones, at_most=1.2)
    assert row.value == pytest.approx(4.0)
    assert row.peer == "2 x the time of one device"
    assert row.peer_value == pytest.approx(3.0)
    assert row.ratio == pytest.approx((2 / 2 + 6 / 4) / 2)
    assert row.met is False
    assert last_of_many("two", many, ones, at_most=None).met is None


def test_a_run_that_did_not_complete_has_no_figure_and_misses_its_aim() -> None:
    bad = run(result(11.0), result(14.0, got=1, fault="not complete after 4 s"))
    row = last_of_many("two", [bad], [run(result(11.0))], at_most=1.2)
    assert (row.value, row.ratio, row.met, row.aim) == (None, None, False, "ratio <= 1.2")
    assert row.spread == "1 of 2 devices incomplete: not complete after 4 s"
    fine = run(result(11.0), result(12.0))
    assert last_of_many("two", [fine], [bad], at_most=1.2).met is False
    assert incomplete("fine", [run(result(11.0))], unit="s") is None
    without_aim = incomplete("two", [bad], unit="s")
    assert without_aim is not None
    assert without_aim.met is None


def test_costs_are_by_useful_data() -> None:
    rows = {row.name: row for row in costs(
        "x", [run(result(11.0, asked=6), sent_bytes=1_250_000)], useful=0.95, memory_mb=50.0
    )}  # fmt: skip
    assert rows["x: useful bytes"].ratio == pytest.approx(0.8)
    assert rows["x: useful bytes"].met is False
    assert rows["x: asked for again"].value == pytest.approx(0.5)
    assert rows["x: broker's peak memory"].met is True
    assert rows["x: processor time of the controller"].value == pytest.approx(20.0)
    assert rows["x: processor time of all devices"].value == pytest.approx(40.0)


def test_the_share_of_a_link_counts_what_arrived_even_if_not_all_did() -> None:
    row = link_share("slow", run(result(20.0, got=2, fault="not complete")), 100_000, at_least=0.9)
    assert (row.value, row.ratio, row.met) == (50.0, 0.5, False)
    assert row.spread == "not complete"
    assert link_share("slow", run(result(20.0)), 100_000, at_least=0.9).met is True
    assert link_share("slow", run(result(20.0)), 100_000).met is None


def test_what_was_needed_of_what_was_asked_for() -> None:
    row = needed_of_asked("slow", run(result(20.0, got=2, asked=8)), at_least=0.95)
    assert (row.value, row.peer_value, row.ratio, row.met) == (0.5, 2.0, 0.25, False)
    assert needed_of_asked("none", run(result(20.0, got=0, asked=0)), at_least=0.95).ratio == 0


def test_what_is_sent_again_is_a_share_of_the_file() -> None:
    assert sent_again_percent(102, 100) == pytest.approx(2.0)
