"""The adaptive policy: by example, over the shipped traces, and whatever is read."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli.replay import EXAMPLE, VariantList
from agent.replay.run import Replay, Totals, replay
from agent.replay.trace_file import load_trace, shipped_names
from agent.select.adaptive import choose
from agent.select.decisions import Candidate, Decision, PolicyContext, PolicyState
from agent.select.estimates import Estimates, Observed
from agent.select.policies import POLICIES
from wire.codec import from_json, to_json
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec

MIB = 1024 * 1024
BEST = Candidate(
    name="best", latency_p50_ms=60.0, peak_memory_bytes=300 * MIB, accuracy=0.99, worst_error=0.1,
    load_ms=500.0,
)  # fmt: skip
QUICK = Candidate(
    name="quick", latency_p50_ms=10.0, peak_memory_bytes=100 * MIB, accuracy=0.95, worst_error=0.4
)
TINY = Candidate(
    name="tiny", latency_p50_ms=12.0, peak_memory_bytes=20 * MIB, accuracy=0.90, worst_error=0.9
)
ALL = (BEST, QUICK, TINY)
SPEC = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=100.0))
DEMAND = 5.0


def read(**readings: float | bool | None) -> HealthSnapshot:
    known = {"headroom": 0.2, "memory_available_bytes": 2000 * MIB, "cpu_busy_ratio": 0.3}
    return HealthSnapshot(at_s=0.0, **(known | readings))  # type: ignore[arg-type]  # mixed types


def observed(c: Candidate, *, slowdown: float = 1.0) -> Observed:
    service_ms = (c.latency_p50_ms or 0.0) * slowdown
    return Observed(
        variant=c.name, alone_ms=c.latency_p50_ms, held_bytes=c.peak_memory_bytes or 0,
        requests=DEMAND, answered=DEMAND, samples=DEMAND,
        compute_s=DEMAND * service_ms / 1000.0,
        latency_ms=service_ms, own_load=min(DEMAND * service_ms / 1000.0, 1.0),
    )  # fmt: skip


def live(
    seconds: int,
    context: PolicyContext,
    spec: PolicySpec = SPEC,
    candidates: tuple[Candidate, ...] = ALL,
    *,
    slowdown: float = 1.0,
    **readings: float | bool | None,
) -> tuple[list[Decision], PolicyContext]:
    """Let seconds pass in which all goes on as it is, but for what is decided."""
    by_name = {c.name: c for c in candidates}
    decisions = []
    for _ in range(seconds):
        serving = by_name.get(context.variant or "")
        context = msgspec.structs.replace(
            context,
            period_s=1.0,
            observed=observed(serving, slowdown=slowdown) if serving else None,
        )
        decision = choose(read(**readings), candidates, spec, context)
        since_s = 1.0 if decision.variant != context.variant else context.since_switch_s + 1.0
        context = msgspec.structs.replace(
            context, variant=decision.variant, state=decision.state, since_switch_s=since_s
        )
        decisions.append(decision)
    return decisions, context


def decide(
    context: PolicyContext | None = None,
    candidates: Iterable[Candidate] = ALL,
    spec: PolicySpec = SPEC,
    **readings: float | bool | None,
) -> Decision:
    return choose(read(**readings), candidates, spec, context or PolicyContext())


def test_with_nothing_against_it_the_most_accurate_serves() -> None:
    decision = decide()
    assert (decision.variant, decision.reason) == ("best", "no variant of this release serves yet")
    assert decision.verdicts == {
        "quick": "less accurate: 0.95 against 0.99",
        "tiny": "less accurate: 0.9 against 0.99",
    }
    assert decision.switch is not None
    assert (decision.switch.load_ms, decision.switch.gap) == (500.0, False)


def test_of_two_that_are_alike_none_is_said_to_be_worse() -> None:
    decision = decide(candidates=(BEST, msgspec.structs.replace(BEST, name="twin")))
    assert (decision.variant, decision.verdicts) == (
        "best", {"twin": "about as accurate, with as much work"},
    )  # fmt: skip


def test_a_slow_device_calls_for_less_work_and_a_quick_one_for_more() -> None:
    _, context = live(30, PolicyContext())
    assert context.variant == "best"
    slow, context = live(30, context, slowdown=3.0)
    assert context.variant == "quick"
    assert slow[-1].verdicts["best"].startswith("answers within 100 ms with probability 0.0")
    _, soon = live(30, context)
    assert soon.variant == "quick", "it was too slow a moment ago"
    back, later = live(900, context)
    assert later.variant == "best"
    assert sum(a.variant != b.variant for a, b in itertools.pairwise(back)) == 1


def test_a_small_gain_is_worth_waiting_for_but_not_for_ever() -> None:
    near = msgspec.structs.replace(QUICK, accuracy=0.987)
    _, context = live(30, PolicyContext(), candidates=(BEST, near), slowdown=3.0)
    assert context.variant == "quick"
    _, context = live(1800, context, candidates=(BEST, near))
    assert context.variant == "best"


@pytest.mark.parametrize(("kept", "between"), [(0.987, "quick"), (0.5, "best")])
def test_what_is_gained_between_bursts_pays_for_the_mistakes_or_does_not(
    kept: float, between: str
) -> None:
    other = msgspec.structs.replace(QUICK, accuracy=kept, load_ms=200.0)
    context, calm = PolicyContext(), list[Decision]()
    for _ in range(6):
        _, context = live(5, context, candidates=(BEST, other), slowdown=3.0)
        assert context.variant == "quick"
        calm, context = live(25, context, candidates=(BEST, other))
    assert context.variant == between
    if between == "quick":
        # Two bursts a minute, which fade.
        assert re.search(r"lost in 1\.\d turns a minute$", calm[-1].verdicts["best"])


def test_more_work_for_less_quality_is_called_what_it_is() -> None:
    vain = msgspec.structs.replace(BEST, name="vain", accuracy=0.9)
    decisions, _ = live(30, PolicyContext(variant="quick"), candidates=(QUICK, vain))
    assert decisions[-1].verdicts["vain"] == (
        "over the last minutes: more work and no gain, 100.0% would be in time"
    )


def test_among_equals_the_least_work_serves() -> None:
    equal = msgspec.structs.replace(QUICK, accuracy=0.9895)
    _, context = live(10, PolicyContext(variant="best"), candidates=(BEST, equal))
    assert context.variant == "quick"


def test_heat_is_left_before_it_is_severe() -> None:
    _, context = live(60, PolicyContext(), headroom=0.5)
    assert context.variant == "best"
    headroom, decision = 0.5, decide(context)
    while context.variant == "best":
        headroom += 0.005
        (decision,), context = live(1, context, headroom=headroom)
    assert headroom < 1.0
    assert context.variant == "quick"
    assert "heat" in decision.state.pressures
    assert decision.verdicts["best"].startswith("headroom may reach 1.0")


@pytest.mark.parametrize("headroom", [0.5, 0.97, 1.1])
def test_a_lost_thermometer_is_not_cool(headroom: float) -> None:
    _, context = live(120, PolicyContext(variant="quick"), headroom=headroom)
    before = context.variant
    blind, _ = live(3600, context, headroom=None)
    assert all(d.variant in {before, "quick"} for d in blind)
    assert "heat" in blind[-1].state.pressures


def test_a_device_that_starts_hot_starts_with_the_least_work() -> None:
    decision = decide(headroom=1.2)
    assert decision.variant == "quick"
    assert decision.reason.startswith("no variant keeps the objective")


def test_a_device_without_a_thermometer_is_never_hot() -> None:
    _, context = live(300, PolicyContext(), headroom=None)
    assert context.variant == "best"


def test_little_memory_calls_for_what_fits_in_it() -> None:
    decision = decide(memory_available_bytes=150 * MIB)
    assert decision.variant == "quick"
    assert decision.verdicts["best"].startswith("needs 332 MiB")
    assert decide(memory_available_bytes=60 * MIB).variant == "tiny"
    assert decide(memory_available_bytes=0).variant is not None, "the least bad serves"


def test_where_all_are_too_late_what_is_late_least_often_serves() -> None:
    hasty = msgspec.structs.replace(SPEC, objective=Objective(deadline_ms=9.0))
    decision = decide(spec=hasty)
    assert decision.variant == "quick"
    assert decision.reason.startswith("no variant keeps the objective")


def test_what_may_not_serve_is_not_chosen() -> None:
    benched = msgspec.structs.replace(BEST, benched="crashed")
    decision = decide(PolicyContext(variant="best", since_switch_s=0.1), (benched, QUICK))
    assert decision.variant == "quick"
    assert decision.verdicts == {"best": "benched: crashed"}
    none = decide(candidates=(benched,))
    assert (none.variant, none.reason) == (None, "no variant may serve")
    nothing = decide(candidates=())
    assert (nothing.variant, nothing.verdicts) == (None, {})


def test_a_pin_holds_whatever_happens_but_not_against_a_bench() -> None:
    pinned = PolicyContext(variant="quick", pinned="best", since_switch_s=0.0)
    assert decide(pinned, headroom=1.5).variant == "best"
    _, context = live(600, PolicyContext())
    tiny = decide(msgspec.structs.replace(context, pinned="tiny"))
    assert tiny.verdicts == {"best": "pinned to tiny", "quick": "pinned to tiny"}
    benched = msgspec.structs.replace(BEST, benched="crashed")
    assert decide(pinned, (benched, QUICK)).variant == "quick"
    assert decide(PolicyContext(pinned="unheard-of")).variant == "best"


def test_a_switch_for_the_better_waits_for_the_dwell_time() -> None:
    candidates = (QUICK, TINY)
    _, context = live(300, PolicyContext(variant="quick"), candidates=candidates)
    waits = msgspec.structs.replace(context, variant="tiny", since_switch_s=2.0)
    decision = decide(waits, candidates)
    assert decision.variant == "tiny"
    assert decision.reason == "held: 2.0 of 5 s since the last switch"
    assert decision.verdicts == {"quick": decision.reason}


def test_what_was_not_measured_is_never_preferred() -> None:
    unknown = Candidate(name="a")
    assert decide(candidates=(unknown, TINY)).variant == "tiny"
    assert decide(candidates=(unknown, TINY), headroom=1.2).variant == "tiny"
    assert decide(candidates=(unknown,)).variant == "a", "better than nothing"
    measured = msgspec.structs.replace(unknown, name="b", accuracy=0.9)
    assert decide(candidates=(unknown, measured)).variant == "b"


def test_what_does_not_fit_gives_way_though_nobody_measured_an_accuracy() -> None:
    bare = tuple(msgspec.structs.replace(c, accuracy=None) for c in ALL)
    late = msgspec.structs.replace(SPEC, objective=Objective(deadline_ms=5.0))
    little = {"memory_available_bytes": 60 * MIB}
    assert decide(None, bare, late, **little).variant == "tiny"


# Whatever is read.

floats = st.none() | st.floats(-100, 100)
shares = st.none() | st.floats(0, 1)
snapshots = st.builds(
    HealthSnapshot,
    at_s=st.floats(-1e12, 1e12),
    headroom=floats,
    temperature_c=floats,
    fan_ratio=shares,
    load_ratio=st.none() | st.floats(0, 1e6),
    cpu_busy_ratio=shares,
    battery_ratio=shares,
    battery_discharging=st.none() | st.booleans(),
    battery_energy_j=st.none() | st.floats(0, 1e9),
    battery_capacity_j=st.none() | st.floats(0, 1e9),
    power_mw=st.none() | st.floats(0, 1e6),
    memory_available_bytes=st.none() | st.integers(0, 2**50),
)
figures = st.none() | st.floats(-1, 1e6)
candidate_lists = st.lists(
    st.builds(
        Candidate,
        name=st.sampled_from("abcdef"),
        latency_p50_ms=figures,
        peak_memory_bytes=st.none() | st.integers(0, 10**10),
        accuracy=st.none() | st.floats(0, 1.1),
        worst_error=figures,
        load_ms=figures,
        benched=st.sampled_from(["", "", "crashed"]),
    ),
    unique_by=lambda c: c.name,
)
seen = st.none() | st.builds(
    Observed,
    variant=st.sampled_from("abcdefgh"),
    alone_ms=figures,
    log_variance=st.none() | st.floats(0, 100),
    held_bytes=st.integers(0, 10**10),
    requests=st.floats(0, 1e6),
    answered=st.floats(0, 1e6),
    samples=st.floats(0, 1e9),
    compute_s=st.floats(0, 1e6),
    latency_ms=st.none() | st.floats(0, 1e9),
    own_load=st.floats(0, 1),
    cpu_share=st.floats(0, 1),
    mixed=st.booleans(),
)
objectives = st.builds(
    Objective,
    min_retention=st.floats(0, 1),
    deadline_ms=st.none() | st.floats(0, 1e12, exclude_min=True),
    deadline_probability=st.floats(0.5, 1, exclude_max=True),
    battery_lasts_s=st.floats(0, 1e9),
)
specs = st.builds(
    PolicySpec,
    kind=st.just("adaptive"),
    dwell_s=st.floats(0, 100),
    low_memory_bytes=st.integers(0, 2**40),
    objective=st.just(msgspec.UNSET) | objectives,
)
periods = st.sampled_from([0.0, 1e-6, 1.0, 1.0, 60.0, 1e7])
moments = st.lists(st.tuples(snapshots, seen, periods), min_size=1, max_size=12)


@given(
    moments, candidate_lists, specs, st.none() | st.sampled_from("abcdefg"),
    st.none() | st.sampled_from("abcdefg"), st.floats(0, 20) | st.just(math.inf),
)  # fmt: skip
def test_a_decision_always_exists_and_every_loser_knows_why(
    moments_: list[tuple[HealthSnapshot, Observed | None, float]], candidates: list[Candidate],
    spec: PolicySpec, variant: str | None, pinned: str | None, since_s: float,
) -> None:  # fmt: skip
    able = {c.name for c in candidates if not c.benched}
    state = PolicyState()
    for snapshot, observed_, period_s in moments_:
        context = PolicyContext(
            variant=variant, since_switch_s=since_s, state=state, period_s=period_s,
            observed=observed_, pinned=pinned,
        )  # fmt: skip
        decision = choose(snapshot, candidates, spec, context)
        assert (decision.variant in able) if able else decision.variant is None
        assert set(decision.verdicts) == {c.name for c in candidates} - {decision.variant}
        assert all(decision.verdicts.values())
        assert decision.reason
        assert decision == choose(snapshot, list(reversed(candidates)), spec, context)
        assert from_json(to_json(decision), Decision) == decision, "all is finite and can be told"
        variant, state = decision.variant, decision.state


@given(moments, candidate_lists, specs)
def test_who_serves_well_is_not_left_before_the_dwell_time(
    moments_: list[tuple[HealthSnapshot, Observed | None, float]], candidates: list[Candidate],
    spec: PolicySpec,
) -> None:  # fmt: skip
    context, since_s = PolicyContext(), math.inf
    for snapshot, observed_, period_s in moments_:
        context = msgspec.structs.replace(
            context, since_switch_s=since_s, period_s=period_s, observed=observed_
        )
        decision = choose(snapshot, candidates, spec, context)
        serving = context.variant
        if serving is not None and decision.variant != serving:
            assert since_s >= spec.dwell_s or decision.reason.startswith(
                (f"{serving}: ", "no variant keeps")
            )
        since_s = (0.0 if decision.variant != serving else since_s) + period_s
        context = msgspec.structs.replace(context, variant=decision.variant, state=decision.state)


@given(
    st.lists(st.tuples(st.floats(-0.2, 1.3), st.floats(0, 1)), min_size=1, max_size=15),
    st.sampled_from([None, "best", "quick", "tiny"]), st.floats(0.5, 3),
)  # fmt: skip
def test_to_hide_the_temperature_makes_no_more_work_acceptable(
    days: list[tuple[float, float]], variant: str | None, slowdown: float
) -> None:
    serving = next((c for c in ALL if c.name == variant), None)
    did = observed(serving, slowdown=slowdown) if serving else None
    known = Estimates()
    for headroom, busy in days:
        health = read(headroom=headroom, cpu_busy_ratio=busy)
        known = known.update(health, did, 30.0)
    busy = days[-1][1]
    # What the thermometer would show, did all go on as is foreseen.
    foreseen = known.heat.forecast(busy, 1.0)
    assert foreseen is not None
    context = PolicyContext(
        variant=variant, state=PolicyState(estimates=known), period_s=1.0, observed=did
    )
    shown, hidden = (
        decide(context, headroom=h, cpu_busy_ratio=busy) for h in (foreseen.mean, None)
    )

    def works(decision: Decision) -> float:
        return next(c.latency_p50_ms or 0.0 for c in ALL if c.name == decision.variant)

    cool = "heat" not in shown.state.pressures
    assert cool or "heat" in hidden.state.pressures
    if serving is None or works(hidden) > (serving.latency_p50_ms or 0.0):
        assert works(hidden) <= works(shown)


# The shipped traces.


class Judged(msgspec.Struct, frozen=True):
    """A policy and the variants alone over one trace."""

    adaptive: Replay
    rules: Totals
    pinned: dict[str, Totals]


def value(totals: Totals) -> float:
    """Return the worth of the answers, less an answer for each switch."""
    assert totals.worth is not None
    return totals.worth - totals.switches


@pytest.fixture(scope="module")
def shipped() -> dict[str, Judged]:
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    judged = {}
    for name in shipped_names():
        trace = load_trace(name)
        judged[name] = Judged(
            replay(trace, variants, PolicySpec(kind="adaptive")),
            replay(trace, variants, PolicySpec()).totals,
            {c.name: replay(trace, variants, PolicySpec(), pinned=c.name).totals for c in variants},
        )
    return judged


@pytest.mark.parametrize("name", shipped_names())
def test_it_is_about_as_good_as_the_best_variant_alone(
    shipped: dict[str, Judged], name: str
) -> None:
    best = max(value(totals) for totals in shipped[name].pinned.values())
    assert value(shipped[name].adaptive.totals) >= 0.98 * best


@pytest.mark.parametrize("name", shipped_names())
def test_it_is_late_far_less_often_than_rules(shipped: dict[str, Judged], name: str) -> None:
    mine, rules = shipped[name].adaptive.totals.miss_ratio, shipped[name].rules.miss_ratio
    assert mine <= max(rules / 3.0, 0.03)
    if rules > 0.01:
        assert mine <= rules / 3.0


def test_it_is_better_than_rules_over_all(shipped: dict[str, Judged]) -> None:
    shares = [
        (value(j.adaptive.totals) - value(j.rules)) / j.rules.requests for j in shipped.values()
    ]
    assert min(shares) > -0.01
    assert sum(shares) / len(shares) > 0.05


@pytest.mark.parametrize("name", shipped_names())
def test_it_does_not_flap_nor_overheat(shipped: dict[str, Judged], name: str) -> None:
    totals = shipped[name].adaptive.totals
    assert totals.flaps <= 3
    assert totals.switches <= 20
    assert totals.severe_s == 0.0
    assert totals.off_s == 0.0


def test_a_decision_takes_about_a_millisecond(shipped: dict[str, Judged]) -> None:
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    steps = [s for s in shipped["hot-afternoon"].adaptive.steps if s.decision is not None][:300]
    context = PolicyContext(variant="int8", period_s=1.0, observed=observed(QUICK))
    begun = time.process_time()
    for step in steps:
        decision = choose(step.readings, variants, SPEC, context)
        context = msgspec.structs.replace(context, state=decision.state)
    assert (time.process_time() - begun) / len(steps) < 0.005


def test_it_is_known_by_its_name() -> None:
    assert POLICIES["adaptive"] is choose


@settings(max_examples=20)
@given(st.integers(1, 200))
def test_the_state_between_decisions_does_not_grow(seconds: int) -> None:
    _, context = live(seconds, PolicyContext())
    assert len(to_json(context.state)) < 20_000
