"""A gate passes or fails only when its whole interval says so."""

from __future__ import annotations

import math

import pytest

from controller.domain.gates.contrast import Contrast, Observed, contrast
from controller.domain.gates.language import parse_gate
from controller.domain.gates.states import GateState
from controller.domain.gates.verdicts import Coverage, verdict

GROWS = parse_gate("p95(inference_latency_ms) <= +10%")
FALLS = parse_gate("mean(feedback_accuracy_ratio) >= -2pp")
ALL = Coverage(treated=30, control=30, treated_told=30, control_told=30)


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
    assert (told.state, told.reason, told.low) == (GateState.HOLD, lacks.lacks, None)


def test_a_release_that_makes_devices_silent_does_not_pass() -> None:
    silent = Coverage(treated=30, control=30, treated_told=20, control_told=30)
    told = verdict(GROWS, found(0.0, 0.01, treated=20), 0.05, silent)
    assert told.state is GateState.HOLD
    assert told.reason.startswith("10 of 30 devices with the new release do not tell enough")
    both = Coverage(treated=30, control=30, treated_told=20, control_told=19)
    assert verdict(GROWS, found(0.0, 0.01, 20, 19), 0.05, both).state is GateState.PASS
    assert verdict(GROWS, found(0.3, 0.01, treated=20), 0.05, silent).state is GateState.FAIL


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
    assert told.reason == (
        "+0 %, -18.2 % to +22.3 %: cannot tell yet; about 134 devices on each side would"
    )
