"""What would come of a variant: each fault by example, and in which direction each input counts."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.battery import BatteryFit
from agent.select.decisions import Candidate
from agent.select.estimates import Estimates
from agent.select.heat import HeatFit
from agent.select.kalman import Line
from agent.select.limits import COOLING_S, SOON_HOT, THROTTLED, Fault
from agent.select.outlook import SHORTFALL, Prediction, predict
from agent.select.rates import Rate, Run
from agent.select.recent import Peak, Scatter, Spread
from agent.select.records import PRIOR, Record
from agent.select.slowdowns import Slowdowns
from agent.select.throttling import Throttling
from agent.select.usual import Usual
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


def rate(per_s: float) -> Rate:
    """Return a rate that is known well."""
    return Rate(runs=(Run(shape=max(per_s, 1e-9) * 1e6, seconds=1e6, weight=1.0),))


CALM = Estimates(
    period_s=1.0,
    slowdown=slowdown(1.0),
    slowdown_lately=Spread().update(1.0, 60.0),
    demand=rate(2.0),
    demand_lately=Spread().update(2.0, 60.0),
    free_bytes=1000 * MIB,
    taken_peak=Peak(value=-1000.0 * MIB),
)


def spec(**aim: float | str | None) -> PolicySpec:
    objective = msgspec.convert({"deadline_ms": 200.0} | aim, Objective)
    return PolicySpec(kind="adaptive", objective=objective)


def known(**fields: object) -> Estimates:
    return msgspec.structs.replace(CALM, **fields)


def predicted(
    known_: Estimates = CALM, c: Candidate = VARIANT, **aim: float | str | None
) -> Prediction:
    return predict(c, known_, spec(**aim))


def faults(
    known_: Estimates = CALM, c: Candidate = VARIANT, **aim: float | str | None
) -> list[str]:
    return [f.kind for f in predicted(known_, c, **aim).faults]


def lasting(known_: Estimates = CALM, **aim: float | str | None) -> list[str]:
    return [f.kind for f in predicted(known_, VARIANT, **aim).lasting]


def test_all_is_well() -> None:
    assert faults() == lasting() == []
    prediction = predicted()
    assert prediction.load == pytest.approx(0.1)
    assert prediction.in_time > 0.99
    assert prediction.turns_per_s == 0.0
    # What is not kept of the quality, and next to nothing for the work.
    assert prediction.loss == pytest.approx(1.0 - 0.9 * prediction.in_time, abs=2e-4)


def test_nothing_is_known_and_nothing_is_refused_but_what_is_late() -> None:
    assert faults(Estimates()) == []
    slow = msgspec.structs.replace(VARIANT, latency_p50_ms=250.0)
    assert faults(Estimates(), slow) == ["deadline"]


@pytest.mark.parametrize("latency_ms", [None, 0.0, -1.0])
def test_a_latency_that_nobody_measured_is_never_in_time(latency_ms: float | None) -> None:
    unknown = msgspec.structs.replace(VARIANT, latency_p50_ms=latency_ms)
    prediction = predicted(CALM, unknown, deadline_ms=None)
    assert [f.kind for f in prediction.faults] == ["deadline"]
    assert (prediction.in_time, prediction.load) == (0.0, 0.0)
    assert prediction.loss == pytest.approx(1.0 + SHORTFALL)


def test_late_is_late() -> None:
    assert faults(deadline_ms=45.0) == ["deadline"]
    assert faults(known(demand=rate(19.0))) == ["deadline"], "they would wait"
    assert faults(known(demand=rate(19.0)), deadline_ms=None) == [], "but the rate is kept"
    assert faults(known(demand=rate(25.0)), deadline_ms=None) == ["deadline"]
    assert faults(known(slowdown=slowdown(5.0))) == ["deadline"]
    assert faults(known(request_samples=5.0)) == ["deadline"], "a request takes as long as five"


def test_a_fault_tells_the_share_and_costs_by_what_is_lacking() -> None:
    prediction = predicted(known(slowdown=slowdown(3.0)))
    (fault,) = prediction.faults
    assert fault.text.startswith("answers within 200 ms with probability 0.")
    assert fault.text.endswith(", 0.95 is required")
    assert fault.cost == pytest.approx(SHORTFALL * (0.95 - prediction.in_time))
    assert not fault.urgent


def test_more_requests_than_can_be_answered_are_lost_beside_being_late() -> None:
    # 20 a second can be answered.
    twice, thrice = (predicted(known(demand=rate(per_s))) for per_s in (40.0, 60.0))
    assert twice.in_time == thrice.in_time == 0.0
    assert thrice.loss - twice.loss == pytest.approx(2.0 / 3.0 - 0.5, abs=1e-3)


def test_requests_that_wait_make_the_next_ones_late() -> None:
    assert predicted(known(waiting=2.0)).in_time == predicted().in_time, "150 ms are allowed"
    # Forty take two seconds, and a little more while others come.
    queue = predicted(known(waiting=40.0))
    assert queue.in_time / predicted().in_time == pytest.approx(0.79, abs=0.02)
    assert queue.in_time > predicted(known(waiting=64.0)).in_time


def off(logit: float) -> Record:
    return Record(line=msgspec.structs.replace(PRIOR, base=logit))


def test_the_record_corrects_what_theory_says_of_all_variants() -> None:
    busy = known(demand=rate(8.0))
    poor = msgspec.structs.replace(busy, record=off(-2.0))
    assert (faults(busy), faults(poor)) == ([], ["deadline"])
    other = msgspec.structs.replace(VARIANT, name="other", latency_p50_ms=40.0)
    assert predicted(poor, other).in_time < predicted(busy, other).in_time
    assert predicted(poor, other).in_time >= predicted(poor).in_time


def test_a_deadline_is_kept_by_single_answers_and_a_rate_by_their_mean() -> None:
    # 50 ms on average and 110 allowed; one of six takes more than 1.9 times as long as usual.
    apart = Scatter().update(0.4, 100.0, 1.0)
    few = rate(0.1)
    assert faults(known(demand=few), deadline_ms=110.0) == []
    assert faults(known(scatter=apart, demand=few), deadline_ms=110.0) == ["deadline"]
    assert faults(known(scatter=apart, demand=few), deadline_ms=400.0) == []
    assert faults(known(scatter=apart), deadline_ms=None) == []


def test_what_is_slow_of_itself_is_late_and_others_are_not() -> None:
    slow = slowdown(1.0, own=4.0)
    assert faults(known(slowdown=slow)) == ["deadline"]
    other = msgspec.structs.replace(VARIANT, name="other")
    assert faults(known(slowdown=slow), other) == []
    assert predicted(known(slowdown=slow), other).load == pytest.approx(0.1)
    assert predicted(known(slowdown=slow)).load == pytest.approx(0.4)


def test_what_an_answer_takes_beside_the_runtime_is_time_too() -> None:
    few = rate(0.1)
    line = Line(base=60.0, slope=0.5, base_variance=1.0, slope_variance=0.1)
    beside = known(waits=line, demand=few)
    assert faults(beside, deadline_ms=130.0) == []
    assert faults(beside, deadline_ms=105.0) == ["deadline"]
    assert faults(known(demand=few), deadline_ms=105.0) == []
    assert faults(beside, deadline_ms=20.0) == ["deadline"], "nothing is left of it"
    below = known(waits=msgspec.structs.replace(line, base=-30.0), demand=few)
    assert faults(below, deadline_ms=45.0) == ["deadline"], "no time is given back"


def risen(limit: float, times: int) -> Spread:
    """Return what rose above a limit so often in the last 100 s, and is below it now."""
    spread = Spread()
    for _ in range(times):
        spread = spread.update(limit / 2.0, 50.0 / times, fades_s=3600.0)
        spread = spread.update(limit * 2.0, 50.0 / times, fades_s=3600.0)
    return spread.update(limit / 2.0, 1e-3, fades_s=3600.0)


@pytest.mark.parametrize(
    ("field", "limit"), [("demand_lately", 15.0), ("slowdown_lately", 4.0), ("memory_lately", 5.0)]
)
def test_each_time_that_conditions_turn_some_answers_are_lost(field: str, limit: float) -> None:
    # They bear 15 requests a second, a slowdown of 4, or a fifth of a GiB.
    turning = predicted(known(**{field: risen(limit, 5)}))
    assert turning.turns_per_s == pytest.approx(0.05, rel=0.05)
    # Until that is noticed and another variant is loaded two seconds pass.
    assert turning.in_time == pytest.approx(0.95 * predicted().in_time, rel=0.01)
    lost = 0.9 * predicted().in_time * (1.0 - 0.95**2)
    late = SHORTFALL * max(0.95 - turning.in_time, 0.0)
    assert turning.loss - predicted().loss == pytest.approx(lost + late, rel=0.05)
    light = msgspec.structs.replace(VARIANT, latency_p50_ms=5.0, peak_memory_bytes=20 * MIB)
    assert predicted(known(**{field: risen(limit, 5)}), light).turns_per_s == 0.0


def test_an_absurd_latency_is_in_time_and_breaks_nothing() -> None:
    assert faults(c=msgspec.structs.replace(VARIANT, latency_p50_ms=5e-324)) == []


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
    assert (faults(scarce), lasting(scarce)) == ([], ["memory"])
    assert faults(known(free_bytes=None, taken_peak=Peak(value=-100.0 * MIB))) == ["memory"]
    assert faults(known(free_bytes=None, taken_peak=Peak())) == []


def test_what_does_not_fit_must_go_and_what_leaves_little_only_costs() -> None:
    (tight,) = predicted(known(free_bytes=216 * MIB)).faults
    (killed,) = predicted(known(free_bytes=199 * MIB)).faults
    assert (tight.urgent, killed.urgent) == (False, True)
    assert tight.cost == pytest.approx(0.25), "half of the reserve is lacking"
    assert tight.cost < 1.0 < killed.cost


def test_of_two_that_do_not_fit_the_smaller_costs_less() -> None:
    smaller = msgspec.structs.replace(VARIANT, peak_memory_bytes=100 * MIB)
    short = known(free_bytes=0)
    assert predicted(short, smaller).loss < predicted(short).loss


def hot(headroom: float, load: float = 0.25, **fields: object) -> Estimates:
    return known(heat=HeatFit().update(headroom, load, 0.0), **fields)


def test_heat() -> None:
    assert faults(hot(0.3)) == lasting(hot(0.3)) == []
    assert faults(hot(1.01)) == ["heat"]
    assert faults(hot(2.5)) == ["heat"]
    assert lasting(hot(-3.0)) == []
    # Below severe now, but nobody knows whether it stays there.
    assert lasting(hot(0.9)) == ["heat"]
    (fault,) = predicted(hot(0.9)).faults
    assert fault.text == "headroom may reach severe within 60 s"
    assert not fault.urgent
    (fault,) = predicted(hot(0.97)).faults
    assert fault.text == "headroom may reach 1.03 in 10 s"
    assert fault.urgent
    blind = known(heat=hot(0.5).heat.update(None, 0.25, 600.0))
    assert [f.urgent for f in predicted(blind).faults] == [True], "unknown is not cool"


def test_more_heat_costs_more_and_less_work_cools_sooner() -> None:
    costs = [sum(f.cost for f in predicted(hot(h)).faults) for h in (0.3, 0.7, 0.85, 0.95, 1.1)]
    assert costs == sorted(costs)
    assert costs[0] == 0.0
    assert costs[-1] > 1.0
    light = msgspec.structs.replace(VARIANT, latency_p50_ms=5.0)
    for headroom in (0.85, 0.97, 1.05, 1.5):
        busy = hot(headroom, demand=rate(10.0))
        assert predicted(busy, light).faults[0].cost < predicted(busy).faults[0].cost


@pytest.mark.parametrize("headroom", [1.0, 1.01, 1.2, 3.0])
@pytest.mark.parametrize("load", [0.0, 0.3, 1.0])
def test_a_reading_at_severe_or_above_is_a_fault_now_whatever_the_forecast_is(
    headroom: float, load: float
) -> None:
    # A steady headroom far below: the board cools within seconds.
    known_ = hot(headroom, load)
    cooled = Line(base=-2.0, slope=0.1, base_variance=1e-6, slope_variance=1e-6)
    cool = msgspec.structs.replace(
        known_.heat,
        models=tuple(msgspec.structs.replace(m, steady=cooled) for m in known_.heat.models),
    )
    for fit in (known_.heat, cool):
        (fault,) = predicted(known(heat=fit)).faults
        assert (fault.kind, fault.urgent) == ("heat", True)
        assert fault.text == f"headroom is {headroom:.2f}: the board is too hot"
        assert fault.cost >= SOON_HOT / (1.0 + len(COOLING_S))


def test_where_the_processor_was_slowed_heat_is_a_fault_below_severe() -> None:
    warm = hot(0.6)
    slowed = msgspec.structs.replace(warm, throttling=Throttling(at=0.5))
    assert faults(warm) == []
    (fault,) = predicted(slowed).faults
    assert fault.text == "headroom may reach 0.50, where it is throttled, within 60 s"
    assert 0.5 * THROTTLED < fault.cost < 2.0 * THROTTLED
    assert not fault.urgent


def discharging(energy_j: float | None, ratio: float = 0.5) -> Estimates:
    """Return a board at noon, of 1 W and 4 W more when busy, whose battery holds 36 kJ."""
    draw = Line(base=1.0, slope=4.0, base_variance=0.1, slope_variance=0.1)
    fit = BatteryFit(
        draw=None if energy_j is None else draw,
        idle=1.0,
        energy_j=energy_j,
        capacity_j=36_000.0,
        ratio=ratio,
        discharging=True,
        usual=Usual(load=0.1),
        local_s=12 * 3600.0,
    )
    return known(battery=fit)


def test_battery() -> None:
    # 1.4 W at this load: an hour takes 5040 J, and a fiftieth of the battery is kept.
    assert faults(discharging(5900.0), battery_lasts_s=3600.0) == []
    assert lasting(discharging(5900.0), battery_lasts_s=3600.0) == ["battery"]
    assert lasting(discharging(6800.0), battery_lasts_s=3600.0) == []
    assert faults(discharging(5700.0), battery_lasts_s=3600.0) == ["battery"]
    assert faults(discharging(5900.0), battery_until="13:00") == []
    assert faults(discharging(5900.0), battery_until="13:10") == ["battery"]
    assert faults(discharging(0.0), battery_lasts_s=0.0) == []
    assert faults(discharging(None, ratio=0.5)) == []
    assert faults(discharging(None, ratio=0.1)) == ["battery"]


def test_a_full_battery_that_is_not_drawn_from_is_on_mains() -> None:
    drained = discharging(5000.0).battery
    assert faults(known(battery=drained), battery_until="11:00") == ["battery"]
    held = msgspec.structs.replace(drained, discharging=False, ratio=1.0)
    assert faults(known(battery=held), battery_until="11:00") == []


def test_the_fault_of_the_battery_says_when_it_would_be_empty() -> None:
    (found,) = predicted(discharging(5760.0), battery_until="18:00").faults
    assert found.text == "the battery would be empty at 13:00, 18:00 is required"
    (later,) = predicted(discharging(35_000.0), battery_until="11:00").faults
    assert later.text == "the battery would be empty at 18:48, 11:00 tomorrow is required"
    # As long as an idle board lasts is the most that can be had.
    assert found.cost == pytest.approx(1.0 - 1.01 / 1.41, abs=0.02)


def test_of_an_unknown_low_battery_more_work_costs_more_than_some_accuracy() -> None:
    low, lighter = discharging(None, ratio=0.04), msgspec.structs.replace(
        VARIANT, name="light", accuracy=0.95 * (VARIANT.accuracy or 1.0),
        latency_p50_ms=0.5 * (VARIANT.latency_p50_ms or 1.0),
    )  # fmt: skip
    assert predicted(low, lighter).loss < predicted(low).loss


def test_accuracy() -> None:
    assert faults(min_retention=0.9) == []
    assert faults(min_retention=0.91) == ["accuracy"]
    unknown = msgspec.structs.replace(VARIANT, accuracy=None)
    assert faults(c=unknown) == []
    assert faults(c=unknown, min_retention=0.1) == ["accuracy"]
    assert predicted(c=unknown).retention == 0.5


def test_losses_tell_variants_apart_whose_accuracy_nobody_measured() -> None:
    unknown = msgspec.structs.replace(VARIANT, accuracy=None)
    assert predicted(c=unknown).loss < predicted(known(free_bytes=0), unknown).loss


figures = st.floats(0.1, 1e4)
estimates = st.builds(
    lambda mean, noise, seen, demand, other, share, beside, wait, free, waiting, shift: Estimates(
        period_s=1.0,
        slowdown=slowdown(math.exp(mean), variance=noise),
        slowdown_lately=Spread().update(1.0, 10.0).update(seen, 10.0),
        demand=rate(demand),
        demand_lately=Spread().update(1.0, 10.0).update(max(demand, 1e-9), 10.0),
        waiting=waiting,
        other_load=other,
        cpu_share=share,
        waits=Line(base=beside, slope=wait, base_variance=1.0, slope_variance=0.1),
        record=off(shift),
        free_bytes=free,
        taken_peak=Peak(value=-0.8 * free),
    ),
    st.floats(-3, 4.6), st.floats(1e-4, 1), st.floats(0.05, 100), st.floats(0, 1e3),
    st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1e3), st.floats(0, 10), st.integers(0, 2**34),
    st.sampled_from([0.0, 3.0, 64.0]), st.floats(-3, 3),
)  # fmt: skip
candidates = st.builds(
    Candidate, name=st.just("v"), latency_p50_ms=st.floats(0.01, 1e4),
    peak_memory_bytes=st.none() | st.integers(0, 2**34), accuracy=st.none() | st.floats(0, 1.1),
)  # fmt: skip
ROUNDING = 1e-7


def kinds(found: tuple[Fault, ...]) -> set[str]:
    return {f.kind for f in found}


def no_worse(better: Prediction, worse: Prediction) -> bool:
    """Tell whether one does no worse; who never does well has no turns for the worse."""
    turns = better.turns_per_s > worse.turns_per_s
    return kinds(better.lasting) <= kinds(worse.lasting) and (
        turns
        or (
            kinds(better.faults) <= kinds(worse.faults)
            and better.in_time >= worse.in_time - ROUNDING
            and better.loss <= worse.loss + 20 * ROUNDING
        )
    )


@given(candidates, estimates, st.none() | st.floats(1.0, 1e3), figures)
def test_more_time_never_makes_it_worse(
    c: Candidate, e: Estimates, times: float | None, deadline_ms: float
) -> None:
    more_ms = None if times is None else times * deadline_ms
    assert no_worse(
        predict(c, e, spec(deadline_ms=more_ms)), predict(c, e, spec(deadline_ms=deadline_ms))
    )


@given(candidates, estimates, st.floats(0, 1), st.none() | figures)
def test_less_demand_never_makes_it_worse(
    c: Candidate, e: Estimates, share: float, deadline_ms: float | None
) -> None:
    e = msgspec.structs.replace(
        e, heat=HeatFit().update(0.6, 0.5, 0.0), battery=discharging(30_000.0).battery
    )
    calmer = msgspec.structs.replace(e, demand=rate(e.demand_per_s * share))
    asked, relieved = (predict(c, x, spec(deadline_ms=deadline_ms)) for x in (e, calmer))
    assert no_worse(relieved, asked)
    assert relieved.load <= asked.load


@given(candidates, estimates, st.floats(0.01, 1.0), st.none() | figures)
def test_a_variant_that_needs_less_time_is_never_said_to_be_later(
    c: Candidate, e: Estimates, share: float, deadline_ms: float | None
) -> None:
    e = msgspec.structs.replace(e, heat=HeatFit().update(0.6, 0.5, 0.0))
    quicker = msgspec.structs.replace(c, latency_p50_ms=share * (c.latency_p50_ms or 0.0))
    slow, quick = (predict(x, e, spec(deadline_ms=deadline_ms)) for x in (c, quicker))
    assert no_worse(quick, slow)
    assert quick.load <= slow.load


@given(candidates, estimates, st.integers(0, 2**34))
def test_more_memory_never_makes_it_worse(c: Candidate, e: Estimates, more_bytes: int) -> None:
    free, taken = e.free_bytes or 0, e.taken_peak.value or 0.0
    roomier = msgspec.structs.replace(
        e, free_bytes=free + more_bytes, taken_peak=Peak(value=taken - more_bytes)
    )
    assert no_worse(predict(c, roomier, spec()), predict(c, e, spec()))


@given(candidates, estimates, st.none() | figures)
def test_figures_are_numbers(c: Candidate, e: Estimates, deadline_ms: float | None) -> None:
    prediction = predict(c, e, spec(deadline_ms=deadline_ms))
    assert 0.0 <= prediction.load <= 1.0
    assert 0.0 <= prediction.in_time <= 1.0
    assert 0.0 <= prediction.turns_per_s < math.inf
    assert -0.2 <= prediction.loss < math.inf
    assert all(0.0 <= f.cost < math.inf and f.text for f in prediction.faults)


def test_of_variants_that_do_not_fit_the_smallest_loses_least_however_late_it_was() -> None:
    crowded = known(free_bytes=50 * MIB, waiting=40.0, demand=rate(5.0))
    small = Candidate(name="small", latency_p50_ms=300.0, peak_memory_bytes=100 * MIB, accuracy=0.9)
    large = Candidate(name="large", latency_p50_ms=10.0, peak_memory_bytes=900 * MIB, accuracy=1.0)
    lost = [predict(c, crowded, spec(deadline_ms=20.0)).loss for c in (small, large)]
    assert lost[0] < lost[1]
