"""What the device adds over all models: never less for more, and the others' part of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.select.estimates import Estimates
from agent.select.heat import HeatFit
from agent.select.joint_costs import DeviceCost, Party
from agent.select.limits import heat, lasting_heat
from agent.select.others import Others
from agent.select.recent import Peak
from wire.policy import Objective, PolicySpec

MIB = 1024 * 1024
MOST = Others(load=1.5, usual_load=1.5)
SPEC = PolicySpec(objective=Objective(battery_lasts_s=0.0))


def warmed(headroom: float, load: float = 0.5) -> HeatFit:
    """Return a fit that has seen some minutes of a board."""
    fit, now = HeatFit(), 0.2
    for second in range(300):
        busy = load if second % 100 < 50 else 0.1
        now += (headroom - 0.5 + busy - now) / 60.0
        fit = fit.update(now, busy, 1.0)
    return fit


def known(headroom: float = 0.9, free_mib: int = 1000) -> Estimates:
    return Estimates(
        period_s=1.0,
        heat=warmed(headroom),
        free_bytes=free_mib * MIB,
        taken_peak=Peak(value=-free_mib * MIB),
        other_load=0.1,
    )


def device(*answers: float, headroom: float = 0.9) -> DeviceCost:
    there = known(headroom)
    return DeviceCost([Party(a, SPEC, there) for a in answers], Others(), MOST)


SUMS = st.tuples(st.floats(0.0, 1.5), st.floats(0.0, 1.5), st.floats(0.0, 1200.0 * MIB))


@settings(max_examples=60, deadline=None)
@given(st.floats(0.3, 1.4), SUMS, SUMS)
def test_more_never_costs_less_and_what_is_not_borne_is_not_borne_with_more(
    headroom: float, one: tuple[float, float, float], more: tuple[float, float, float]
) -> None:
    there = device(1.0, 3.0, headroom=headroom)
    least, most = (tuple(map(pick, zip(one, more, strict=True))) for pick in (min, max))
    assert there.cost(*most) >= there.cost(*least) - 1e-9
    assert there.bears(*least) or not there.bears(*most)


def test_an_answer_costs_what_one_model_alone_would_lose() -> None:
    there = device(2.0)
    for load in (0.0, 0.5, 0.75):
        fault = heat(known(), 0.1 + load)
        expected = (fault.cost if fault else 0.0) + 0.001 * (0.1 + load)
        assert there.cost(load, 0.0, 0.0) == pytest.approx(2.0 * expected, rel=0.1, abs=0.01)


def test_the_others_part_and_the_own_part_are_the_whole() -> None:
    there = device(1.0, 3.0)
    for load, held in ((0.4, 0.0), (0.8, 980.0 * MIB)):
        whole = there.cost(load, 0.0, held)
        # Of the same device each answer costs the same, whichever model gives it.
        assert there.harm(0, load, 0.0, held) == pytest.approx(0.75 * whole)
        assert 3.0 * there.harm(1, load, 0.0, held) == pytest.approx(0.25 * whole)


def test_what_does_not_fit_costs_more_than_anything_else() -> None:
    there = device(1.0, 1.0, headroom=1.3)
    assert there.fits(1000 * MIB)
    assert not there.fits(1001 * MIB)
    assert there.cost(0.0, 0.0, 1001 * MIB) > there.cost(1.5, 1.5, 1000 * MIB)
    assert there.cost(0.0, 0.0, 1500 * MIB) > there.cost(0.0, 0.0, 1100 * MIB)


def test_a_processor_that_is_full_costs_the_answers_that_nobody_can_give() -> None:
    there = device(1.0, 1.0, headroom=0.3)
    assert there.cost(0.9, 0.0, 0.0) < 0.1
    assert there.cost(1.4, 0.0, 0.0) > 2.0 * (1.0 - 1.0 / 1.5)


def test_what_is_borne_lasts() -> None:
    there = device(1.0, headroom=1.0)
    assert not there.bears(1.0, 0.0, 0.0)
    for load in (0.1, 0.3, 0.5):
        if there.bears(load, 0.0, 0.0):
            assert lasting_heat(known(1.0), 0.1 + load) is None
    assert not there.bears(0.0, 0.0, 940 * MIB)  # the reserve is not free
    assert math.isfinite(there.cost(0.0, 0.0, 0.0))
