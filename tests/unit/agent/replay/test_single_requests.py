"""Replays of single requests: as the flow where nothing varies, and worse where chance decides."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli.replay import report
from agent.replay.board import Board, Inputs
from agent.replay.plant import ThermalPlant
from agent.replay.requests import Requests
from agent.replay.run import Replay, replay
from agent.replay.server import QUEUE_REQUESTS
from agent.replay.traces import MAX_REQUESTS, Header, Tick, Trace, trace_from_bytes, trace_to_bytes
from agent.select.decisions import Candidate
from wire.errors import WireFormatError
from wire.policy import PolicySpec

MIB = 1024 * 1024
BOARD = Board(thermal=ThermalPlant(resistance_c_per_w=5.0, time_constant_s=60.0))
BEST = Candidate(
    name="best", latency_p50_ms=100.0, peak_memory_bytes=300 * MIB, accuracy=1.0, load_ms=0.0
)
QUICK = Candidate(
    name="quick", latency_p50_ms=10.0, peak_memory_bytes=100 * MIB, accuracy=0.9, load_ms=0.0
)
BOTH = (BEST, QUICK)
RULES, ADAPTIVE = PolicySpec(kind="rules"), PolicySpec(kind="adaptive")
FLOW = Requests()
REGULAR = Requests(arrivals="regular", service_sigma=0.0)
POISSON = Requests(arrivals="poisson", seed=4)


def trace(requests: Requests, *inputs: Inputs, board: Board = BOARD) -> Trace:
    header = Header(
        trace=1, name="test", profile="bench", period_s=1.0, origin="synthetic",
        source="a test", deadline_ms=150.0, board=board, requests=requests,
    )  # fmt: skip
    return Trace(
        header=header, ticks=tuple(Tick(at_s=float(i), inputs=x) for i, x in enumerate(inputs))
    )


def surroundings(**values: float) -> Inputs:
    return msgspec.convert({"ambient_c": 25.0, "demand_per_s": 5.0} | values, Inputs)


def both(*inputs: Inputs, pinned: str = "best", board: Board = BOARD) -> tuple[Replay, Replay]:
    """Return the replays of regular requests and of a flow."""
    regular, flow = (
        replay(trace(requests, *inputs, board=board), BOTH, RULES, pinned=pinned)
        for requests in (REGULAR, FLOW)
    )
    return regular, flow


@pytest.mark.parametrize(
    "inputs",
    [
        (surroundings(demand_per_s=3.0),) * 600,
        (surroundings(demand_per_s=9.0),) * 600,
        tuple(surroundings(demand_per_s=4.0 + 3.0 * math.sin(i / 60.0)) for i in range(600)),
        (surroundings(demand_per_s=5.0, slowdown=1.3),) * 600,
        (surroundings(demand_per_s=5.0, slowdown=1.8),) * 600,
        (surroundings(demand_per_s=7.0, ambient_c=58.0, other_share=0.3),) * 600,
    ],
)
def test_regular_requests_without_spread_are_the_flow(inputs: tuple[Inputs, ...]) -> None:
    """Within a request at each end, and within 1 % where the board is busy."""
    regular, flow = (done.totals for done in both(*inputs))
    assert regular.requests == pytest.approx(flow.requests, abs=1.0)
    assert regular.refused == flow.refused == 0.0
    assert regular.missed == pytest.approx(flow.missed, abs=2.0 + 0.01 * flow.missed)
    assert regular.worth == pytest.approx(flow.worth, abs=2.0 + 0.01 * flow.requests)
    assert regular.energy_j == pytest.approx(flow.energy_j, rel=0.01)
    assert regular.hottest_c == pytest.approx(flow.hottest_c, abs=0.5)
    assert regular.mean_retention == flow.mean_retention


def test_an_overload_answers_and_refuses_as_many_as_the_flow() -> None:
    regular, flow = (done.totals for done in both(*(surroundings(demand_per_s=30.0),) * 300))
    # The flow takes requests for answered that still wait at the end.
    left = regular.unanswered
    assert left == pytest.approx(QUEUE_REQUESTS, abs=1.0)
    assert regular.refused == pytest.approx(flow.refused, abs=2.0)
    assert regular.requests - regular.refused - left == pytest.approx(3000, abs=2.0)
    assert regular.miss_ratio == pytest.approx(flow.miss_ratio, abs=0.02)


def test_the_meter_sees_what_the_agents_would() -> None:
    done = replay(trace(POISSON, *(surroundings(),) * 50), BOTH, RULES, pinned="quick")
    waited = 0.0
    for step in done.steps:
        seen = step.observed
        assert seen is not None
        assert (seen.answered, seen.samples) == (step.served.answered, step.served.answered)
        assert seen.requests == step.served.requests, "one counts when it comes"
        assert waited + seen.requests == seen.answered + step.served.refused + seen.waiting
        waited = seen.waiting
        assert seen.latency_ms == step.served.latency_ms
        assert (seen.log_variance is None) == (seen.answered < 2)
        assert seen.own_load == pytest.approx(seen.compute_s)
    known = [s.observed.log_variance for s in done.steps if s.observed and s.observed.log_variance]
    assert len(known) > 20
    assert any(s.observed.waiting for s in done.steps if s.observed)


def test_a_tick_without_a_request_measures_nothing() -> None:
    quiet = trace(POISSON, *(surroundings(demand_per_s=0.0),) * 3)
    (*_, last) = replay(quiet, BOTH, RULES).steps
    assert last.observed is not None
    assert (last.observed.requests, last.observed.latency_ms) == (0.0, None)
    assert (last.served.latency_ms, last.served.worth) == (None, 0.0)


def test_poisson_requests_miss_where_a_flow_does_not() -> None:
    inputs = (surroundings(demand_per_s=6.0),) * 300
    flow = replay(trace(FLOW, *inputs), BOTH, RULES, pinned="best").totals
    poisson = replay(trace(POISSON, *inputs), BOTH, RULES, pinned="best").totals
    assert flow.missed == 0.0
    assert poisson.miss_ratio > 0.2
    assert poisson.latencies is not None
    assert poisson.latencies.p50_ms < poisson.latencies.p95_ms < poisson.latencies.greatest_ms


def test_hot_answers_have_no_worth() -> None:
    hot = msgspec.structs.replace(BOARD, start_c=95.0)
    done = replay(trace(REGULAR, *(surroundings(),) * 40, board=hot), (QUICK,), RULES)
    below = [s for s in done.steps if s.temperature_c < BOARD.limits.severe_c]
    assert 0 < len(below) < 40
    assert done.totals.worth == pytest.approx(0.9 * sum(s.served.answered for s in below))


def test_little_memory_loses_what_waits_too() -> None:
    slow = surroundings(slowdown=5.0)
    none = surroundings(memory_bytes=50 * MIB, demand_per_s=0.0)
    done = replay(trace(REGULAR, slow, none, slow), (BEST,), RULES)
    before, lost, _ = done.steps
    assert lost.served.refused == before.served.requests - before.served.answered > 0
    assert done.totals.unanswered + done.totals.refused < done.totals.requests


def test_a_handover_makes_requests_wait_and_loses_none() -> None:
    loads = [msgspec.structs.replace(c, load_ms=2500.0) for c in BOTH]
    little = surroundings(memory_bytes=390 * MIB)
    rules = msgspec.structs.replace(RULES, dwell_s=0.0, low_memory_bytes=96 * MIB)
    hand = trace(REGULAR, *(little,) * 30)
    hand = Trace(header=msgspec.structs.replace(hand.header, at_work=True), ticks=hand.ticks)
    done = replay(hand, loads, rules)
    waiting = [s for s in done.steps if s.variant is None]
    assert 0 < len(waiting) < 20
    assert done.totals.refused == 0.0
    assert done.totals.latencies is not None
    assert done.totals.latencies.greatest_ms > 1500.0


some = st.builds(
    Inputs,
    ambient_c=st.floats(0, 60),
    demand_per_s=st.floats(0, 80),
    slowdown=st.sampled_from([1.0, 1.6, 30.0]),
    other_share=st.floats(0, 1),
    memory_bytes=st.sampled_from([None, None, 200 * MIB, 0]),
    charger_w=st.sampled_from([0.0, 10.0]),
)


@settings(max_examples=40)
@given(
    st.lists(some, min_size=1, max_size=20),
    st.sampled_from(["regular", "poisson", "bursts"]),
    st.integers(0, 99),
)
def test_all_policies_meet_the_same_requests_and_none_is_lost(
    inputs: list[Inputs], arrivals: str, seed: int
) -> None:
    requests = msgspec.convert({"arrivals": arrivals, "seed": seed}, Requests)
    board = msgspec.structs.replace(BOARD, battery_wh=0.01)
    asked = trace(requests, *inputs, board=board)
    found = [replay(asked, BOTH, spec) for spec in (RULES, ADAPTIVE)]
    found += [replay(asked, BOTH, RULES, pinned=c.name) for c in BOTH]
    assert len({tuple(s.served.requests for s in done.steps) for done in found}) == 1
    for done in found:
        totals = done.totals
        answered = sum(s.served.answered for s in done.steps)
        assert totals.requests == answered + totals.refused + totals.unanswered
        assert totals.refused <= totals.missed <= totals.requests
        assert totals.worth is not None
        assert 0.0 <= totals.worth <= totals.requests - totals.missed + 1e-9
    assert replay(asked, BOTH, ADAPTIVE) == found[1]


def test_a_trace_keeps_its_requests_and_an_old_one_is_a_flow() -> None:
    made = trace(POISSON, surroundings(), surroundings())
    assert trace_from_bytes(trace_to_bytes(made)) == made
    first, *rest = trace_to_bytes(trace(FLOW, surroundings(), surroundings())).splitlines()
    old = msgspec.json.decode(first)
    del old["requests"]
    read = trace_from_bytes(b"\n".join([msgspec.json.encode(old), *rest]) + b"\n")
    assert read.header.requests == FLOW


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ({"arrivals": "daily"}, "line 1: not a valid Header: Invalid enum value 'daily'"),
        ({"seed": -1}, "line 1: requests: seed is not within"),
        ({"service_sigma": -1}, "line 1: requests: service_sigma is not within 0 to 3"),
        ({"outlier_share": 2}, "line 1: requests: outlier_share is not within 0 to 1"),
        ({"burst_size": 0}, "line 1: requests: burst_size is not within 1 to 1000"),
        ({"rate": 2}, "unknown field `rate`"),
        ({"arrivals": "poisson", "seed": 1.5}, "line 1: not a valid Header"),
    ],
)
def test_impossible_requests_are_refused(requests: dict[str, object], words: str) -> None:
    first, *rest = trace_to_bytes(trace(POISSON, surroundings())).splitlines()
    header = msgspec.json.decode(first) | {"requests": requests}
    with pytest.raises(WireFormatError) as caught:
        trace_from_bytes(b"\n".join([msgspec.json.encode(header), *rest]) + b"\n")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_many_single_requests_are_refused_with_the_line() -> None:
    many = (surroundings(demand_per_s=90_000.0),) * 60
    with pytest.raises(WireFormatError, match=f"line 57: over {MAX_REQUESTS} requests"):
        trace_from_bytes(trace_to_bytes(trace(POISSON, *many)))
    assert len(trace_from_bytes(trace_to_bytes(trace(FLOW, *many))).ticks) == 60


def test_the_command_shows_latencies(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(trace_to_bytes(trace(POISSON, *(surroundings(),) * 20)))
    text = report(str(path), policy="rules")
    assert "\nlatency   " in text
    assert " ms median, " in text
