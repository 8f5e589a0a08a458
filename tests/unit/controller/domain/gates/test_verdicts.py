"""A gate passes or fails only when its whole interval says so."""

from __future__ import annotations

import math

import pytest

from controller.domain.gates.contrast import Contrast, Observed, contrast
from controller.domain.gates.language import parse_gate
from controller.domain.gates.shift import of_all_classes
from controller.domain.gates.silence import Coverage, Silence, Telling
from controller.domain.gates.states import GateState
from controller.domain.gates.verdicts import verdict

GROWS = parse_gate("p95(inference_latency_ms) <= +10%")
FALLS = parse_gate("mean(feedback_accuracy_ratio) >= -2pp")
ALL_30 = Telling(devices=30, told=30)
ALL = Coverage({"": ALL_30}, {"": ALL_30})


def told_by(treated: Telling, control: Telling = ALL_30) -> Coverage:
    return Coverage({"": treated}, {"": control})


def found(difference: float, error: float, treated: int = 30, control: int = 30) -> Contrast:
    return Contrast(difference, error, 50.0, treated, control)


@pytest.mark.parametrize(
    ("difference", "error", "state"),
    [
        (0.0, 0.01, GateState.PASS),
        (-0.5, 0.01, GateState.PASS),
        (0.3, 0.01, GateState.FAIL),
        (0.08, 0.02, GateState.HOLD),
        (0.12, 0.02, GateState.HOLD),
        (0.0, 0.2, GateState.HOLD),
    ],
)
def test_what_may_grow(difference: float, error: float, state: GateState) -> None:
    told = verdict(GROWS, found(difference, error), 0.05, ALL)
    assert told.state is state
    assert told.estimate == pytest.approx(math.expm1(difference))


@pytest.mark.parametrize(
    ("difference", "state"),
    [
        (0.0, GateState.PASS),
        (0.1, GateState.PASS),
        (-0.05, GateState.FAIL),
        (-0.02, GateState.HOLD),
    ],
)
def test_what_may_fall(difference: float, state: GateState) -> None:
    assert verdict(FALLS, found(difference, 0.001), 0.05, ALL).state is state


def test_too_few_devices_hold() -> None:
    lacks = Contrast(math.nan, math.nan, math.nan, 2, 9, "2 devices can be compared; 5 must")
    told = verdict(GROWS, lacks, 0.05, ALL)
    why = "28 new have too few of their kind on the other side, 21 old have too few of their kind"
    assert told.reason.startswith(f"{lacks.lacks}; not counted: {why}")
    assert (told.state, told.low) == (GateState.HOLD, None)


def test_a_release_that_makes_devices_silent_does_not_pass() -> None:
    silent = told_by(Telling(devices=30, told=20))
    told = verdict(GROWS, found(0.0, 0.01, treated=20), 0.05, silent)
    assert told.state is GateState.HOLD
    assert told.reason.startswith("10 of 30 devices with the new release do not tell enough")
    both = told_by(Telling(devices=30, told=20), Telling(devices=30, told=19))
    assert verdict(GROWS, found(0.0, 0.01, 20, 19), 0.05, both).state is GateState.PASS
    assert verdict(GROWS, found(0.3, 0.01, treated=20), 0.05, silent).state is GateState.FAIL


@pytest.mark.parametrize(("silent", "state"), [(2, GateState.PASS), (3, GateState.HOLD)])
def test_silence_is_a_part_of_those_that_told_before(silent: int, state: GateState) -> None:
    """Of 300 devices 30 measure the thing at all: to silence three of them is a tenth."""
    control = Telling(devices=300, told=30, known=30, still=30)
    treated = Telling(devices=300, told=30 - silent, known=30, still=30 - silent)
    told = verdict(GROWS, found(0.0, 0.01), 0.05, told_by(treated, control))
    assert told.state is state
    if state is GateState.HOLD:
        why = "3 of 30 devices with the new release that told enough before do not tell enough"
        assert told.reason.startswith(why)


@pytest.mark.parametrize(
    ("earlier", "state"),
    [
        ([Silence(40, 40), Silence(34, 40)], GateState.PASS),
        ([Silence(34, 40), Silence(34, 40)], GateState.HOLD),
        ([Silence(40, 30), Silence(20, 40), Silence(18, 30)], GateState.HOLD),
        ([Silence(0, 0), Silence(0, 0)], GateState.PASS),
        ([Silence(1, 2), Silence(2, 3)], GateState.PASS),
    ],
)
def test_silence_counts_over_all_looks_together(earlier: list[Silence], state: GateState) -> None:
    """At one of many looks chance makes the others as silent. Where few tell yet it says little."""
    silent = told_by(Telling(devices=40, told=38))
    told = verdict(GROWS, found(0.0, 0.01), 0.05, silent, earlier=earlier)
    assert (told.state, told.silence) == (state, Silence(38, 40))
    if state is GateState.HOLD:
        assert told.reason.startswith("over the looks of the stage 1")
        why = " % fewer devices with the new release told enough than with the old one; those that "
        assert why in told.reason


def test_what_is_new_to_most_devices_is_counted_of_all() -> None:
    control = Telling(devices=100, told=100, known=2, still=2)
    treated = Telling(devices=100, told=100, known=2, still=1)
    passes = verdict(GROWS, found(0.0, 0.01), 0.05, told_by(treated, control))
    assert passes.state is GateState.PASS


def test_a_share_that_passes_says_how_many_devices_may_be_off_unseen() -> None:
    told = verdict(FALLS, found(0.0, 0.001), 0.05, ALL)
    assert told.state is GateState.PASS
    assert told.reason.endswith("; up to 9.5 % of devices may do otherwise, unseen")
    assert told.unseen == pytest.approx(0.095, abs=0.001)
    assert verdict(FALLS, found(-0.05, 0.001), 0.05, ALL).unseen is None, "of a pass alone"


@pytest.mark.parametrize(("zero", "state"), [(3, GateState.PASS), (4, GateState.HOLD)])
def test_a_part_of_0_is_no_limit(zero: int, state: GateState) -> None:
    """Devices that began to throttle would have no part to grow by, and be left out."""
    none = some(0)
    for few in (told_by(some(zero), none), told_by(none, some(zero))):
        told = verdict(GROWS, found(0.0, 0.001), 0.05, few)
        assert told.state is state
        assert ("measure 0, now or before" in told.reason) == (state is GateState.HOLD)


def some(zero: int) -> Telling:
    """Return a side of which few devices measure the thing at all, some of them 0."""
    return Telling(devices=300, told=30, zero=zero, known=30, still=30)


def test_devices_that_nobody_can_be_compared_with_are_not_silent() -> None:
    assert verdict(GROWS, found(0.0, 0.01, treated=10), 0.05, ALL).state is GateState.PASS


def test_devices_that_all_measured_the_same_may_be_followed_by_one_that_does_not() -> None:
    gate = parse_gate("a_total/b_total <= +1pp")
    few, many = ([Observed(0.0, 0.0, "a")] * devices for devices in (5, 30))
    assert verdict(gate, contrast(few, few), 0.001, ALL).state is GateState.HOLD
    assert verdict(gate, contrast(many, many), 0.001, ALL).state is GateState.PASS


@pytest.mark.parametrize("error", [400.0, 1e200, math.inf, math.nan])
def test_an_interval_without_end_holds(error: float) -> None:
    told = verdict(GROWS, found(0.0, error), 1e-6, ALL)
    assert (told.state, told.low, told.high) == (GateState.HOLD, None, None)


def test_a_gate_that_holds_says_how_many_devices_would_do() -> None:
    told = verdict(GROWS, found(0.0, 0.1), 0.05, ALL)
    would = "+0 %, -18.2 % to +22.3 %: cannot tell yet; about 134 devices on each side would"
    assert told.reason == f"{would}, more than the rollout has"
    many = Telling(devices=200, told=200)
    large = told_by(many, many)
    large_reason = verdict(GROWS, found(0.0, 0.1), 0.05, large).reason
    assert large_reason.partition("; not counted: ")[0] == would


def test_devices_that_do_not_count_are_told_with_why() -> None:
    few = told_by(Telling(devices=16, told=11), Telling(devices=24, told=17))
    told = verdict(GROWS, found(0.0, 0.01, 11, 15), 0.05, few)
    assert told.reason.endswith(
        "; not counted: 5 new measured too little, 7 old measured too little, "
        "2 old have too few of their kind on the other side"
    )
    assert "not counted" not in verdict(GROWS, found(0.0, 0.01), 0.05, ALL).reason


def test_the_worst_case_bounds_what_the_interval_does_not() -> None:
    for text, reaches in (("mean(a) <= +5pp", "high"), ("mean(a) >= -5pp", "low")):
        gate = parse_gate(f"{text} in the worst case")
        sure = verdict(gate, found(0.0, 0.001), 0.05, ALL, most=0.04)
        assert sure.state is GateState.PASS
        unsure = verdict(gate, found(0.0, 0.001), 0.05, ALL, most=0.2)
        assert unsure.state is GateState.HOLD
        assert abs(getattr(unsure, reaches)) == 0.2
        assert "about 120 devices on each side would" in unsure.reason
        harm = 0.3 if reaches == "high" else -0.3
        assert verdict(gate, found(harm, 0.01), 0.05, ALL, most=0.9).state is GateState.FAIL


@pytest.mark.parametrize(
    ("difference", "state"),
    [(0.0, GateState.PASS), (0.2, GateState.FAIL), (-0.2, GateState.FAIL), (-0.05, GateState.HOLD)],
)
def test_a_shift_goes_both_ways(difference: float, state: GateState) -> None:
    gate = parse_gate("shift(model_samples_total) <= +5pp")
    assert verdict(gate, found(difference, 0.001), 0.05, ALL).state is state


def test_a_shift_is_of_the_class_that_moved_most() -> None:
    gate = parse_gate("shift(model_samples_total) <= +5pp")
    of = {n: verdict(gate, found(by, 0.001), 0.05, ALL) for n, by in enumerate((0.0, -0.2, 0.1))}
    told = of_all_classes(of)
    assert (told.state, told.estimate) == (GateState.FAIL, -0.2)
    assert told.reason.startswith("class 1: -20 pp")


def test_a_gate_that_is_held_for_silence_also_says_whether_the_others_tell_enough() -> None:
    silent = told_by(Telling(devices=30, told=20))
    told = verdict(GROWS, found(0.0, 0.1), 0.05, silent)
    assert "those that tell: +0 %, " in told.reason
    assert "cannot tell yet; about 134 devices on each side would" in told.reason
