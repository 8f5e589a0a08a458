"""A share is no better known than the requests that it rests on can tell."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest

from controller.domain.gates.language import parse_gate
from controller.domain.gates.trials import Trials, apart, has_trials, times_needed

LEVEL = 0.002
Z = -NormalDist().inv_cdf(LEVEL / 2.0)


def at_most(events: int, mean: float) -> float:
    """Return the chance of at most so many events."""
    return sum(
        math.exp(number * math.log(mean) - mean - math.lgamma(number + 1))
        for number in range(events + 1)
    )


@pytest.mark.parametrize("events", [0, 1, 2, 5, 20, 200])
def test_the_limits_of_a_count_leave_out_the_truth_as_seldom_as_they_say(events: int) -> None:
    below, above = Trials(events / 1e6, 1e6).apart(Z)
    most, least = events + 1e6 * above, events - 1e6 * below
    assert 0.7 * LEVEL / 2.0 < at_most(events, most) < 1.05 * LEVEL / 2.0
    if least > 0.0:
        assert LEVEL / 20.0 < 1.0 - at_most(events - 1, least) < 1.05 * LEVEL / 2.0


def test_where_no_request_failed_the_bound_is_that_of_their_number() -> None:
    below, above = Trials(0.0, 1_000.0).apart(Z)
    assert below == 0.0
    assert -math.log(LEVEL / 2.0) / 1_000.0 <= above <= 1.05 * -math.log(LEVEL / 2.0) / 1_000.0


def test_where_nearly_all_answers_are_right_the_wrong_ones_are_counted() -> None:
    below, above = Trials(0.003, 1_000.0).apart(Z)
    assert Trials(0.997, 1_000.0).apart(Z) == pytest.approx((above, below))
    assert Trials(1.5, 1_000.0).apart(Z)[1] > 0.0, "a rate may be above 1"


def test_of_what_is_no_share_nothing_is_known_by_trials() -> None:
    none = Trials(0.5, math.inf)
    assert apart((none, none), LEVEL) == (0.0, 0.0)
    assert apart((Trials(0.0, 100.0), none), LEVEL)[0] == 0.0


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.99])
@pytest.mark.parametrize("distance", [0.004, -0.004])
def test_as_many_more_as_are_needed_tell(share: float, distance: float) -> None:
    sides = Trials(share, 500.0), Trials(share / 2.0, 4_000.0)
    times = times_needed(sides, LEVEL, distance)
    for factor, tells in ((1.01, True), (0.99, False)):
        new, old = (side._replace(number=side.number * times * factor) for side in sides)
        below, above = apart((new, old), LEVEL)
        assert ((above if distance > 0.0 else below) < abs(distance)) is (tells or times < 1.001)
    assert times_needed(sides, LEVEL, 1e-9) == math.inf
    assert times_needed(sides, LEVEL, 1.0) == pytest.approx(1.0)


def test_only_the_side_of_the_limit_is_waited_for() -> None:
    """Few devices with the old release bound what is below."""
    sides = Trials(0.0, 5_400.0), Trials(0.0, 600.0)
    assert times_needed(sides, LEVEL, 0.001) < 1.5
    assert times_needed(sides, LEVEL, -0.001) > 9.0


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("inference_failures_total/inference_requests_total <= +1pp", True),
        ("rate(worker_crashes_total) <= +0.1", True),
        ("shift(model_samples_total) <= +5pp", True),
        ("mean(feedback_accuracy_ratio) >= -2pp", True),
        ("mean(golden_agreement_ratio) >= -2pp", False),
        ("mean(own_quality_ratio) >= -2pp", False),
        ("mean(temperature_c) <= +3", False),
        ("p95(inference_latency_ms) <= +10%", False),
    ],
)
def test_which_figures_rest_on_a_number_of_trials(text: str, *, has: bool) -> None:
    gate = parse_gate(text)
    assert has_trials(gate) is has
    assert has_trials(replace(gate, limit=2 * gate.limit)) is has
