"""The selector: each rule by example, and what holds whatever the device says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.decisions import (
    Candidate,
    Decision,
    PolicyContext,
    PolicyState,
    candidate,
    preference,
)
from agent.select.rules import choose
from tests.simulators.packages import variant
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

MIB = 1024 * 1024
POLICY = PolicySpec(kind="rules")
BEST = Candidate(
    name="best", latency_p50_ms=40, peak_memory_bytes=300 * MIB, accuracy=0.99, worst_error=0.1
)
QUICK = Candidate(
    name="quick", latency_p50_ms=5, peak_memory_bytes=100 * MIB, accuracy=0.95, worst_error=0.4
)
TINY = Candidate(
    name="tiny", latency_p50_ms=8, peak_memory_bytes=20 * MIB, accuracy=0.90, worst_error=0.9
)
ALL = (BEST, QUICK, TINY)


def health(**readings: float | bool | None) -> HealthSnapshot:
    known = {"headroom": 0.2, "memory_available_bytes": 2000 * MIB}
    return HealthSnapshot(at_s=0, **(known | readings))  # type: ignore[arg-type]  # mixed types


def decide(
    context: PolicyContext | None = None,
    candidates: tuple[Candidate, ...] = ALL,
    **readings: float | bool | None,
) -> Decision:
    return choose(health(**readings), candidates, POLICY, context or PolicyContext())


def test_without_pressure_the_most_accurate_serves() -> None:
    decision = decide()
    assert decision.variant == "best"
    assert decision.verdicts == {
        "quick": "less accurate: 0.95 against 0.99",
        "tiny": "less accurate: 0.9 against 0.99",
    }
    assert decision.inputs["headroom"] == 0.2


def test_equal_accuracy_is_decided_by_worst_error_then_latency_then_name() -> None:
    same = {"accuracy": 0.9, "worst_error": 0.5, "latency_p50_ms": 5.0}
    a = Candidate(name="a", **same)  # type: ignore[arg-type]  # mixed types
    b = Candidate(name="b", **(same | {"latency_p50_ms": 4.0}))  # type: ignore[arg-type]  # mixed
    c = Candidate(name="c", **(same | {"worst_error": 0.4, "latency_p50_ms": 9.0}))  # type: ignore[arg-type]  # mixed
    d = Candidate(name="d", **same)  # type: ignore[arg-type]  # mixed types
    assert preference((d, a, b, c)) == ("c", "b", "a", "d")
    assert "worst error" in decide(candidates=(a, c)).verdicts["a"]


def test_heat_calls_for_the_cheapest_and_ends_only_when_it_is_cool() -> None:
    hot = decide(PolicyContext(variant="best"), headroom=0.9)
    assert (hot.variant, hot.state.pressures) == ("quick", frozenset({"heat"}))
    assert hot.verdicts["best"] == "slower: 40 against 5 ms"
    warm = decide(PolicyContext(variant="quick", state=hot.state), headroom=0.8)
    assert warm.variant == "quick"
    cool = decide(PolicyContext(variant="quick", state=warm.state), headroom=0.6)
    assert (cool.variant, cool.state.pressures) == ("best", frozenset())


def test_a_lost_sensor_is_not_cool() -> None:
    hot = PolicyContext(variant="quick", state=PolicyState(pressures=frozenset({"heat"})))
    assert decide(hot, headroom=None).variant == "quick"


def test_a_device_without_a_sensor_is_never_hot() -> None:
    assert decide(headroom=None).variant == "best"


@pytest.mark.parametrize(
    ("ratio", "discharging", "before", "variant_name"),
    [
        (0.1, True, frozenset(), "quick"),
        (0.1, False, frozenset(), "best"),
        (0.1, None, frozenset(), "best"),
        (0.25, True, frozenset(), "best"),
        (0.25, True, frozenset({"battery"}), "quick"),
        (None, True, frozenset({"battery"}), "quick"),
        (0.35, True, frozenset({"battery"}), "best"),
        (0.1, False, frozenset({"battery"}), "best"),
    ],
)
def test_battery(
    ratio: float | None,
    discharging: bool | None,
    before: frozenset[str],
    variant_name: str,
) -> None:
    context = PolicyContext(state=PolicyState(pressures=before))  # type: ignore[arg-type]  # literals from the table
    decision = decide(context, battery_ratio=ratio, battery_discharging=discharging)
    assert decision.variant == variant_name


def test_little_memory_calls_for_the_smallest_until_the_best_has_room_beside_it() -> None:
    low = decide(memory_available_bytes=40 * MIB)
    assert low.variant == "tiny"
    assert low.verdicts["best"].startswith("larger")
    context = PolicyContext(variant="tiny", state=low.state)
    assert decide(context, memory_available_bytes=300 * MIB).variant == "tiny"
    assert decide(context, memory_available_bytes=400 * MIB).variant == "best"


def test_memory_weighs_more_than_heat() -> None:
    assert decide(headroom=0.95, memory_available_bytes=1 * MIB).variant == "tiny"


def test_a_switch_waits_for_the_dwell_time() -> None:
    context = PolicyContext(variant="best", since_switch_s=2.0)
    decision = decide(context, headroom=0.95)
    assert decision.variant == "best"
    assert decision.reason == "held: 2.0 of 5 s since the last switch"
    assert decision.state.pressures == frozenset({"heat"})


def test_what_may_not_go_on_does_not_wait() -> None:
    benched = Candidate(name="best", accuracy=0.99, benched="crashed")
    decision = decide(PolicyContext(variant="best", since_switch_s=0.1), (benched, QUICK))
    assert decision.variant == "quick"
    assert decision.verdicts["best"] == "benched: crashed"


def test_a_pin_holds_whatever_happens_but_not_against_a_bench() -> None:
    pinned = PolicyContext(variant="quick", pinned="best", since_switch_s=0.0)
    assert decide(pinned, headroom=0.99).variant == "best"
    benched = Candidate(name="best", accuracy=0.99, benched="crashed")
    assert decide(pinned, (benched, QUICK)).variant == "quick"
    assert decide(PolicyContext(pinned="unheard-of")).variant == "best"


def test_with_nothing_to_choose_from_nothing_is_chosen() -> None:
    benched = Candidate(name="best", benched="crashed")
    decision = decide(candidates=(benched,))
    assert decision.variant is None
    assert decision.verdicts == {"best": "benched: crashed"}


def test_what_was_not_measured_is_never_preferred() -> None:
    unknown = Candidate(name="a")
    assert decide(candidates=(unknown, TINY)).variant == "tiny"
    assert decide(candidates=(unknown, TINY), headroom=0.9).variant == "tiny"
    assert decide(candidates=(unknown, TINY), memory_available_bytes=0).variant == "tiny"


def test_a_candidate_is_what_its_manifest_says() -> None:
    made = candidate(variant("v", accuracy=0.8, latency_ms=7, memory_bytes=99), benched="why")
    assert (made.accuracy, made.latency_p50_ms, made.peak_memory_bytes) == (0.8, 7, 99)
    assert made.benched == "why"


maybe_ratio = st.none() | st.floats(0, 1.5)
snapshots = st.builds(
    HealthSnapshot,
    at_s=st.just(0.0),
    headroom=st.none() | st.floats(-1, 2),
    battery_ratio=maybe_ratio,
    battery_discharging=st.none() | st.booleans(),
    memory_available_bytes=st.none() | st.integers(0, 10**10),
)
figures = st.none() | st.floats(0, 1000)
candidate_lists = st.lists(
    st.builds(
        Candidate,
        name=st.sampled_from("abcdef"),
        latency_p50_ms=figures,
        peak_memory_bytes=st.none() | st.integers(0, 10**10),
        accuracy=figures,
        worst_error=figures,
        benched=st.sampled_from(["", "", "crashed"]),
    ),
    unique_by=lambda c: c.name,
)
presents = st.builds(
    PolicyContext,
    variant=st.none() | st.sampled_from("abcdefg"),
    since_switch_s=st.floats(0, 20) | st.just(math.inf),
    state=st.builds(
        PolicyState, pressures=st.frozensets(st.sampled_from(["heat", "battery", "memory"]))
    ),
    pinned=st.none() | st.sampled_from("abcdefg"),
)


@given(snapshots, candidate_lists, presents)
def test_only_candidates_that_may_serve_are_chosen_and_every_loser_knows_why(
    snapshot: HealthSnapshot, candidates: list[Candidate], context: PolicyContext
) -> None:
    decision = choose(snapshot, candidates, POLICY, context)
    able = {c.name for c in candidates if not c.benched}
    assert (decision.variant in able) if able else decision.variant is None
    assert set(decision.verdicts) == {c.name for c in candidates} - {decision.variant}
    assert all(decision.verdicts.values())
    assert decision.reason
    assert decision == choose(snapshot, list(reversed(candidates)), POLICY, context)


@given(st.lists(snapshots, max_size=40), candidate_lists)
def test_two_switches_are_never_closer_than_the_dwell_time(
    snapshots_: list[HealthSnapshot], candidates: list[Candidate]
) -> None:
    context, switched_s = PolicyContext(), -math.inf
    for second, snapshot in enumerate(snapshots_):
        decision = choose(snapshot, candidates, POLICY, context)
        if decision.variant != context.variant and context.variant is not None:
            assert second - switched_s >= POLICY.dwell_s
        if decision.variant != context.variant:
            switched_s = second
        context = PolicyContext(
            variant=decision.variant,
            since_switch_s=second + 1 - switched_s,
            state=decision.state,
        )


@given(snapshots, candidate_lists, presents)
def test_unknown_never_ends_a_pressure(
    snapshot: HealthSnapshot, candidates: list[Candidate], context: PolicyContext
) -> None:
    decision = choose(snapshot, candidates, POLICY, context)
    if snapshot.headroom is None:
        assert ("heat" in decision.state.pressures) == ("heat" in context.state.pressures)
    if snapshot.memory_available_bytes is None:
        assert ("memory" in decision.state.pressures) == ("memory" in context.state.pressures)
    if snapshot.battery_ratio is None and snapshot.battery_discharging is not False:
        assert ("battery" in decision.state.pressures) == ("battery" in context.state.pressures)
