"""A look compares devices over one time, leaves out what is 0, and counts silence as harm."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from controller.domain.gates.language import parse_gate
from controller.domain.gates.look import Compared, Member, compared, judged, window
from controller.domain.gates.states import LEAST_DEVICES, GateState
from wire.durations import DAY_S, HOUR_S

GATE = parse_gate("mean(inference_latency_ms) <= +20%")
SHARE = parse_gate("inference_failures_total/inference_requests_total <= +20pp in the worst case")
LEVEL = 0.05


def members(first: int, number: int) -> list[Member]:
    return [Member(f"cam-{at:02}", "bench", at) for at in range(first, first + number)]


def sides(number: int) -> Compared:
    """Return a look at so many devices on each side."""
    return Compared(
        treated=members(0, number),
        control=members(number, number),
        span=(0.0, HOUR_S),
        before=(-DAY_S, 0.0),
    )


@pytest.mark.parametrize(
    ("now_s", "complete_for_s", "soak_s", "expected"),
    [
        (1_000.0, None, 0.0, (420.0, 960.0, 420.0, False)),
        (9_999.0, None, HOUR_S, (6_420.0, 9_960.0, 6_420.0, False)),
        (1_000.0, 90.0, HOUR_S, (960.0, 960.0, None, True)),
        (1_000.0, 200.0, HOUR_S, (840.0, 960.0, 1_000.0, True)),
    ],
)
def test_whole_minutes_are_looked_at(
    now_s: float,
    complete_for_s: float | None,
    soak_s: float,
    expected: tuple[float, float, float | None, bool],
) -> None:
    at = window(now_s, complete_for_s=complete_for_s, soak_s=soak_s)
    assert at == (expected if expected[0] < expected[1] else None)


def test_a_running_stage_is_looked_at_when_some_had_the_release_all_the_while() -> None:
    at = window(9_999.0, complete_for_s=None, soak_s=HOUR_S)
    assert at is not None
    few, enough = members(0, LEAST_DEVICES - 1), members(0, LEAST_DEVICES)
    assert compared(few, members(50, 9), at, began_s=0.0, under_way=0) is None
    assert compared(enough, members(50, 9), at, began_s=0.0, under_way=0) is not None


def test_a_running_stage_is_looked_at_when_nearly_all_that_began_have_the_release() -> None:
    """Where most wait for their night, those that have it are those where it is night."""
    running = window(9_999.0, complete_for_s=None, soak_s=HOUR_S)
    complete = window(9_999.0, complete_for_s=HOUR_S, soak_s=HOUR_S)
    assert running is not None
    assert complete is not None
    have_it, others = members(0, 9), members(50, 9)
    assert compared(have_it, others, running, began_s=0.0, under_way=1) is not None
    assert compared(have_it, others, running, began_s=0.0, under_way=2) is None
    assert compared(have_it, others, complete, began_s=0.0, under_way=2) is not None


def test_the_minute_in_which_the_rollout_began_is_not_before_it() -> None:
    """Telemetry is kept by the minute: some have the release in that one already."""
    began_s = 10 * DAY_S + 5.0
    at = window(began_s + HOUR_S, complete_for_s=600.0, soak_s=600.0)
    assert at is not None
    of = compared(members(0, 9), members(50, 9), at, began_s=began_s, under_way=0)
    assert of is not None
    assert of.before == (9 * DAY_S, 10 * DAY_S)


def test_without_a_control_group_the_same_hours_before_the_rollout_are_the_other_side() -> None:
    began_s, now_s = 10 * DAY_S, 12 * DAY_S + 5 * HOUR_S
    at = window(now_s, complete_for_s=HOUR_S, soak_s=HOUR_S)
    assert at is not None
    alone = compared(members(0, 9), [], at, has_control=False, began_s=began_s, under_way=0)
    beside = compared(members(0, 9), members(9, 9), at, began_s=began_s, under_way=0)
    assert alone is not None
    assert beside is not None
    assert alone.before == (at.since_s - 3 * DAY_S, at.until_s - 3 * DAY_S)
    assert alone.before[1] <= began_s
    assert beside.before == (began_s - DAY_S, began_s)


def test_a_control_group_that_is_all_away_tells_nothing() -> None:
    """Other days are no control group, where one was asked for."""
    at = window(12 * DAY_S, complete_for_s=HOUR_S, soak_s=HOUR_S)
    assert at is not None
    of = compared(members(0, 20), [], at, began_s=10 * DAY_S, under_way=0)
    assert of is not None
    worse = {one.device: 2.0 + 0.001 * one.place for one in of.treated}
    before = {one.device: 1.0 + 0.001 * one.place for one in of.treated}
    told = judged(GATE, of, worse, before, worse, LEVEL, trials={})
    assert told.state is GateState.HOLD
    assert told.reason == "no device with the old release is there to compare with"


def test_what_measures_0_is_left_out_of_parts_and_told() -> None:
    of = sides(20)
    after = {one.device: 1.0 + 0.001 * one.place for one in (*of.treated, *of.control)}
    few_at_0 = {f"cam-{at:02}": -math.inf for at in range(5)}
    one_at_0 = judged(GATE, of, after | {"cam-03": -math.inf}, after, after, LEVEL, trials={})
    many = judged(GATE, of, after | few_at_0, after, after, LEVEL, trials={})
    assert (one_at_0.state, one_at_0.treated) == (GateState.PASS, 19)
    assert many.state is GateState.HOLD
    assert "5 of 20 devices with the new release measure 0" in many.reason


def test_in_the_worst_case_a_device_that_fell_silent_counts_as_harmed() -> None:
    of = sides(60)
    before = {one.device: 0.001 * (one.place % 7) for one in (*of.treated, *of.control)}
    silent = {name: value for name, value in before.items() if name not in {"cam-00", "cam-01"}}
    all_tell, two_do_not = (
        judged(SHARE, of, after, before, after, LEVEL, trials={}) for after in (before, silent)
    )
    assert all_tell.high is not None
    assert two_do_not.high is not None
    assert two_do_not.high > all_tell.high
    assert two_do_not.state is not GateState.FAIL
    assert "silent devices that count as hit: 2" in two_do_not.reason


def told(of: Compared) -> dict[str, float]:
    return {one.device: 1.0 + 0.001 * (one.place % 7) for one in (*of.treated, *of.control)}


def test_a_device_that_died_does_not_tell_although_it_measured_enough_before() -> None:
    of = sides(20)
    after = told(of)
    alive = after.keys() - {"cam-00", "cam-01"}
    without_two = judged(GATE, of, after, after, alive, LEVEL, trials={})
    assert without_two.state is GateState.HOLD
    assert "2 of 20 devices with the new release that told enough before" in without_two.reason
    both_silent = alive - {"cam-20", "cam-21"}
    assert judged(GATE, of, after, after, both_silent, LEVEL, trials={}).state is GateState.PASS


def test_where_nobody_tells_towards_the_end_nobody_has_to() -> None:
    """As where devices report each ten minutes and the stage soaks for ten."""
    of = sides(20)
    after = told(of)
    with_release = [one.device for one in of.treated]
    for late in ((), with_release[:5]):
        assert judged(GATE, of, after, after, late, LEVEL, trials={}).state is GateState.PASS


def test_the_silence_of_those_that_went_away_with_the_release_counts() -> None:
    of = replace(sides(20), away=members(90, 3))
    after = told(of)
    before = after | {one.device: 1.0 for one in of.away}
    gone = judged(GATE, of, after, before, after, LEVEL, trials={})
    assert (gone.state, gone.treated) == (GateState.HOLD, 20)
    assert "3 of 23 devices with the new release that told enough before" in gone.reason
    back = judged(GATE, of, before, before, before, LEVEL, trials={})
    assert (back.state, back.treated) == (GateState.PASS, 20)


def test_a_few_that_have_not_begun_are_no_control_group() -> None:
    at = window(9_999.0, complete_for_s=HOUR_S, soak_s=HOUR_S)
    assert at is not None
    left = members(20, LEAST_DEVICES - 1)
    for has_control, control in ((False, 0), (True, len(left))):
        of = compared(members(0, 20), left, at, began_s=0.0, under_way=0, has_control=has_control)
        assert of is not None
        assert len(of.control) == control


def test_the_end_of_a_time_is_its_last_third_and_five_minutes_at_least() -> None:
    for span, late in (((0.0, 3_600.0), 2_400.0), ((0.0, 600.0), 300.0), ((0.0, 120.0), 0.0)):
        of = replace(sides(5), span=span)
        assert of.late == (late, span[1])


FAILS = parse_gate("inference_failures_total/inference_requests_total <= +0.5pp")


@pytest.mark.parametrize(("requests", "state"), [(20.0, GateState.HOLD), (100.0, GateState.PASS)])
def test_a_few_requests_without_a_failure_do_not_show_that_none_fails(
    requests: float, state: GateState
) -> None:
    of = sides(20)
    none = dict.fromkeys((one.device for one in (*of.treated, *of.control)), 0.0)
    trials = dict.fromkeys(none, requests)
    told = judged(FAILS, of, none, none, none, LEVEL, trials=trials)
    assert told.state is state
    if state is GateState.HOLD:
        assert (
            "cannot tell yet; at least 1.8 times as long, or as many requests, would" in told.reason
        )


def test_devices_that_no_trial_is_known_of_are_compared_by_their_number() -> None:
    of = sides(20)
    none = dict.fromkeys((one.device for one in (*of.treated, *of.control)), 0.0)
    assert judged(FAILS, of, none, none, none, LEVEL, trials={}).state is GateState.PASS


def test_a_device_with_few_requests_makes_the_mean_less_known() -> None:
    of = sides(20)
    none = dict.fromkeys((one.device for one in (*of.treated, *of.control)), 0.0)
    many = dict.fromkeys(none, 1_000.0)
    even, uneven = (
        judged(FAILS, of, none, none, none, LEVEL, trials=trials)
        for trials in (many, many | {"cam-00": 20.0, "cam-01": 20.0})
    )
    assert even.high is not None
    assert uneven.high is not None
    assert uneven.high > even.high


def test_silence_is_compared_among_devices_of_one_profile() -> None:
    """Of the control group only the servers sleep."""
    cameras, servers = members(0, 40), [Member(f"srv-{at}", "rack", at) for at in range(40)]
    of = replace(
        sides(20), treated=[*cameras[:20], *servers[:10]], control=[*cameras[20:], *servers[10:]]
    )
    before = told(of)
    awake = {name: value for name, value in before.items() if name.startswith("cam-")}
    assert judged(GATE, of, awake, before, awake, LEVEL, trials={}).state is GateState.PASS
    fewer = {name: value for name, value in awake.items() if name not in {"cam-00", "cam-01"}}
    silent = judged(GATE, of, fewer, before, fewer, LEVEL, trials={})
    assert silent.state is GateState.HOLD
    assert silent.silence.part() == pytest.approx(0.1)
