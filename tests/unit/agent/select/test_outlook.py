"""What would come of a variant: each fault by example, and in which direction each input counts."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.select.battery import BatteryFit
from agent.select.decisions import Candidate
from agent.select.estimates import Estimates
from agent.select.heat import HeatFit
from agent.select.kalman import Line
from agent.select.outlook import Prediction, longest_service_s, predict
from agent.select.recent import Peak, Scatter, Spread
from agent.select.slowdowns import Slowdowns
from wire.policy import Objective, PolicySpec

MIB = 1024 * 1024
VARIANT = Candidate(name="v", latency_p50_ms=50.0, peak_memory_bytes=200 * MIB, accuracy=0.9)


def slowdown(common: float, *, own: float = 1.0, variance: float = 0.001) -> Slowdowns:
    return Slowdowns(
        names=("v",),
        means=(math.log(common), math.log(own)),
        covariance=((variance, 0.0), (0.0, 0.0)),
        process=variance,
        noise=variance,
    )


CALM = Estimates(
    period_s=1.0,
    slowdown=slowdown(1.0),
    slowdown_lately=Spread().update(1.0, 60.0),
    demand_per_s=5.0,
    demand_peak=Peak(value=5.0),
    other_peak=Peak(value=0.0),
    free_bytes=1000 * MIB,
    taken_peak=Peak(value=-1000.0 * MIB),
)


def spec(**aim: float | None) -> PolicySpec:
    objective = msgspec.convert({"deadline_ms": 100.0} | aim, Objective)
    return PolicySpec(kind="adaptive", objective=objective)


def known(**fields: object) -> Estimates:
    return msgspec.structs.replace(CALM, **fields)


def faults(
    known_: Estimates = CALM, c: Candidate = VARIANT, *, lately: bool = False,
    **aim: float | None,
) -> list[str]:  # fmt: skip
    return [f.kind for f in predict(c, known_, spec(**aim), lately=lately).faults]


deadlines = st.floats(1e-3, 100)
demands = st.floats(0, 1e4)
wait_factors = st.floats(0, 10)


@given(deadlines, demands, wait_factors)
def test_the_longest_service_just_keeps_the_deadline(
    deadline_s: float, demand: float, factor: float
) -> None:
    s = longest_service_s(deadline_s, demand, factor)
    use = demand * s
    assert 0.0 < s <= deadline_s * (1 + 1e-12)
    assert use <= 1.0 + 1e-9
    # Multiplied out by (1 - use): near a use of 1 the quotient has no digits left.
    left, right = s * (1.0 - use + factor * use), deadline_s * (1.0 - use)
    assert left == pytest.approx(right, rel=1e-6, abs=1e-9 * (deadline_s + s * factor))


@given(deadlines, deadlines, demands, demands, wait_factors, wait_factors)
def test_the_longest_service_is_monotone(
    d1: float, d2: float, q1: float, q2: float, w1: float, w2: float
) -> None:
    base = longest_service_s(min(d1, d2), max(q1, q2), max(w1, w2)) * (1 - 1e-9)
    assert longest_service_s(max(d1, d2), max(q1, q2), max(w1, w2)) >= base
    assert longest_service_s(min(d1, d2), min(q1, q2), max(w1, w2)) >= base
    assert longest_service_s(min(d1, d2), max(q1, q2), min(w1, w2)) >= base


def test_the_longest_service_at_its_ends() -> None:
    assert longest_service_s(0.1, 0.0, 0.5) == pytest.approx(0.1)
    assert longest_service_s(math.inf, 0.0, 0.5) == math.inf
    assert longest_service_s(math.inf, 4.0, 0.5) == 0.25
    assert longest_service_s(1e200, 4.0, 0.5) == pytest.approx(0.25)
    # Regular arrivals do not wait: the whole deadline, or the rate.
    assert longest_service_s(0.1, 5.0, 0.0) == pytest.approx(0.1)
    assert longest_service_s(1.0, 5.0, 0.0) == pytest.approx(0.2)


def test_all_is_well() -> None:
    assert faults() == []
    assert faults(lately=True) == []
    prediction = predict(VARIANT, CALM, spec(), lately=False)
    assert prediction.load == pytest.approx(0.25)
    assert prediction.cost == pytest.approx(0.1)


def test_nothing_is_known_and_nothing_is_refused_but_what_is_late() -> None:
    assert faults(Estimates()) == []
    slow = msgspec.structs.replace(VARIANT, latency_p50_ms=150.0)
    assert faults(Estimates(), slow) == ["deadline"]


@pytest.mark.parametrize("latency_ms", [None, 0.0, -1.0])
def test_a_latency_that_nobody_measured_is_never_in_time(latency_ms: float | None) -> None:
    unknown = msgspec.structs.replace(VARIANT, latency_p50_ms=latency_ms)
    for lately in (False, True):
        prediction = predict(unknown, CALM, spec(deadline_ms=None), lately=lately)
        assert [f.kind for f in prediction.faults] == ["deadline"]
        assert prediction.cost == 1.0
        assert prediction.load == 0.0


def test_late_is_late() -> None:
    assert faults(deadline_ms=45.0) == ["deadline"]
    assert faults(known(demand_per_s=19.0)) == ["deadline"], "they would wait"
    assert faults(known(demand_per_s=19.0), deadline_ms=None) == [], "but the rate is kept"
    assert faults(known(demand_per_s=25.0), deadline_ms=None) == ["deadline"]
    assert faults(known(slowdown=slowdown(3.0))) == ["deadline"]
    assert faults(known(request_samples=3.0)) == ["deadline"], "a request takes three times as long"


def test_a_deadline_is_kept_by_single_answers_and_a_rate_by_their_mean() -> None:
    # 50 ms on average and 80 allowed; half of the answers take a third of the others' time.
    apart = Scatter().update(0.3, 100.0, 1.0)
    assert faults(deadline_ms=80.0) == []
    assert faults(known(scatter=apart), deadline_ms=80.0, deadline_probability=0.9) == ["deadline"]
    assert faults(known(scatter=apart), deadline_ms=200.0, deadline_probability=0.9) == []
    assert faults(known(scatter=apart), deadline_ms=None) == []


def test_what_is_slow_of_itself_is_late_and_others_are_not() -> None:
    slow = slowdown(1.0, own=3.0)
    assert faults(known(slowdown=slow)) == ["deadline"]
    other = msgspec.structs.replace(VARIANT, name="other")
    assert faults(known(slowdown=slow), other) == []
    assert predict(other, known(slowdown=slow), spec(), lately=False).load == pytest.approx(0.25)
    assert predict(VARIANT, known(slowdown=slow), spec(), lately=False).load == pytest.approx(0.75)


def test_what_an_answer_takes_beside_the_runtime_is_time_too() -> None:
    line = Line(base=30.0, slope=0.5, base_variance=1.0, slope_variance=0.1)
    assert faults(known(waits=line), deadline_ms=100.0) == []
    assert faults(known(waits=line), deadline_ms=75.0) == ["deadline"]
    assert faults(deadline_ms=75.0) == []
    assert faults(known(waits=line), deadline_ms=20.0) == ["deadline"], "nothing is left of it"
    below = msgspec.structs.replace(line, base=-30.0)
    assert faults(known(waits=below), deadline_ms=45.0) == ["deadline"], "no time is given back"


def test_a_peak_counts_only_for_lately() -> None:
    peak = known(demand_peak=Peak(value=19.0))
    assert faults(peak) == []
    assert faults(peak, lately=True) == ["deadline"]


@pytest.mark.parametrize("deadline_ms", [1e-320, 1e308])
def test_an_absurd_deadline_is_only_kept_or_not(deadline_ms: float) -> None:
    expected = ["deadline"] if deadline_ms < 1.0 else []
    assert faults(deadline_ms=deadline_ms) == expected
    assert faults(Estimates(), deadline_ms=deadline_ms) == expected


def test_memory() -> None:
    # 200 MiB and half of the 64 that are to stay free.
    assert faults(known(free_bytes=232 * MIB)) == []
    assert faults(known(free_bytes=231 * MIB)) == ["memory"]
    scarce = known(taken_peak=Peak(value=-263.0 * MIB))
    assert faults(scarce) == []
    assert faults(scarce, lately=True) == ["memory"]
    assert faults(known(free_bytes=None, taken_peak=Peak(value=-100.0 * MIB))) == ["memory"]
    assert faults(known(free_bytes=None, taken_peak=Peak())) == []
    killed = predict(VARIANT, known(free_bytes=0), spec(), lately=False)
    assert killed.cost == 1.0


def hot(headroom: float, load: float = 0.25) -> Estimates:
    return known(heat=HeatFit().update(headroom, load, 0.0))


def test_heat() -> None:
    assert faults(hot(0.5)) == []
    assert faults(hot(1.01)) == ["heat"]
    assert faults(hot(2.5)) == ["heat"]
    assert faults(hot(-3.0), lately=True) == []
    # Below severe now, but nobody knows whether it stays there.
    assert faults(hot(0.8)) == []
    assert faults(hot(0.8), lately=True) == ["heat"]
    blind = known(heat=hot(0.5).heat.update(None, 0.25, 600.0))
    assert faults(blind) == ["heat"], "unknown is not cool"


def discharging(energy_j: float | None, ratio: float = 0.5) -> Estimates:
    draw = Line(base=1.0, slope=4.0, base_variance=0.1, slope_variance=0.1)
    fit = BatteryFit(draw=draw, energy_j=energy_j, ratio=ratio, discharging=True)
    return known(battery=fit)


def test_battery() -> None:
    # 2 W at this load: an hour is 7200 J, and what is to last needs a reserve of a quarter.
    assert faults(discharging(7300.0), battery_lasts_s=3600.0) == []
    assert faults(discharging(7300.0), battery_lasts_s=3600.0, lately=True) == ["battery"]
    assert faults(discharging(7100.0), battery_lasts_s=3600.0) == ["battery"]
    assert faults(discharging(0.0), battery_lasts_s=0.0) == []
    assert faults(discharging(None, ratio=0.5)) == []
    assert faults(discharging(None, ratio=0.1)) == ["battery"]


def test_accuracy() -> None:
    assert faults(min_retention=0.9) == []
    assert faults(min_retention=0.91) == ["accuracy"]
    unknown = msgspec.structs.replace(VARIANT, accuracy=None)
    assert faults(c=unknown) == []
    assert faults(c=unknown, min_retention=0.1) == ["accuracy"]


def test_costs_tell_variants_apart_whose_accuracy_nobody_measured() -> None:
    unknown = msgspec.structs.replace(VARIANT, accuracy=None)
    well = predict(unknown, CALM, spec(), lately=False)
    short = predict(unknown, known(free_bytes=0), spec(), lately=False)
    assert well.cost < short.cost


figures = st.floats(0.1, 1e4)
estimates = st.builds(
    lambda mean, noise, seen, demand, other, share, beside, wait, free: Estimates(
        period_s=1.0,
        slowdown=slowdown(math.exp(mean), variance=noise),
        slowdown_lately=Spread().update(seen, 10.0).update(1.0, 10.0),
        demand_per_s=demand,
        demand_peak=Peak(value=demand * 1.5),
        other_load=other,
        other_peak=Peak(value=other),
        cpu_share=share,
        waits=Line(base=beside, slope=wait, base_variance=1.0, slope_variance=0.1),
        free_bytes=free,
        taken_peak=Peak(value=-0.8 * free),
    ),
    st.floats(-3, 4.6), st.floats(1e-4, 1), st.floats(0.05, 100), st.floats(0, 1e3),
    st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1e3), st.floats(0, 10), st.integers(0, 2**34),
)  # fmt: skip
candidates = st.builds(
    Candidate, name=st.just("v"), latency_p50_ms=st.floats(0.01, 1e4),
    peak_memory_bytes=st.none() | st.integers(0, 2**34), accuracy=st.none() | st.floats(0, 1.1),
)  # fmt: skip


def kinds(prediction: Prediction) -> set[str]:
    return {f.kind for f in prediction.faults}


@given(candidates, estimates, st.none() | st.floats(0.1, 1e5), figures, st.booleans())
def test_more_time_never_makes_a_fault(
    c: Candidate, e: Estimates, more_ms: float | None, deadline_ms: float, lately: bool
) -> None:
    assume(more_ms is None or more_ms >= deadline_ms)
    less = kinds(predict(c, e, spec(deadline_ms=deadline_ms), lately=lately))
    more = kinds(predict(c, e, spec(deadline_ms=more_ms), lately=lately))
    assert more <= less


@given(candidates, estimates, st.floats(0, 1), st.none() | figures, st.booleans())
def test_less_demand_never_makes_a_fault(
    c: Candidate, e: Estimates, share: float, deadline_ms: float | None, lately: bool
) -> None:
    e = msgspec.structs.replace(
        e, heat=HeatFit().update(0.6, 0.5, 0.0), battery=discharging(30_000.0).battery
    )
    peak = e.demand_peak.value or 0.0
    calmer = msgspec.structs.replace(
        e, demand_per_s=e.demand_per_s * share, demand_peak=Peak(value=peak * share)
    )
    asked, relieved = (
        predict(c, x, spec(deadline_ms=deadline_ms), lately=lately) for x in (e, calmer)
    )
    assert kinds(relieved) <= kinds(asked)
    assert relieved.load <= asked.load


@given(candidates, estimates, st.integers(0, 2**34), st.booleans())
def test_more_memory_never_makes_a_fault(
    c: Candidate, e: Estimates, more_bytes: int, lately: bool
) -> None:
    free, taken = e.free_bytes or 0, e.taken_peak.value or 0.0
    roomier = msgspec.structs.replace(
        e, free_bytes=free + more_bytes, taken_peak=Peak(value=taken - more_bytes)
    )
    before, after = (predict(c, x, spec(), lately=lately) for x in (e, roomier))
    assert kinds(after) <= kinds(before)
    assert after.cost <= before.cost


@given(candidates, estimates, st.none() | figures, st.booleans())
def test_figures_are_numbers(
    c: Candidate, e: Estimates, deadline_ms: float | None, lately: bool
) -> None:
    prediction = predict(c, e, spec(deadline_ms=deadline_ms), lately=lately)
    assert 0.0 <= prediction.load <= 1.0
    assert -0.2 <= prediction.cost <= 1.0
    assert all(0.0 <= f.cost < math.inf and f.text for f in prediction.faults)
