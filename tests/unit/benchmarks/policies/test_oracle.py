"""The oracle: as good as trying everything, and never worse than what did not know the trace."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli.replay import EXAMPLE, VariantList
from agent.errors import ReplayError
from agent.replay.board import Board, Inputs
from agent.replay.cell import Cell
from agent.replay.controllers import Fan, Governor
from agent.replay.heat import Case, Leak
from agent.replay.plant import ThermalPlant
from agent.replay.requests import Requests
from agent.replay.run import replay
from agent.replay.sensors import Sensors
from agent.replay.server import Arrived
from agent.replay.simulation import World, serve, start_loading
from agent.replay.trace_file import load_trace, shipped_names
from agent.replay.traces import Header, Tick, Trace
from agent.select.decisions import Candidate
from benchmarks.policies.oracle import SWITCH_WORTH, WAITING_BIN, Best, best_possible
from wire.codec import from_json
from wire.policy import PolicySpec

MIB = 1024 * 1024
PLANT = ThermalPlant(resistance_c_per_w=8.0, time_constant_s=5.0, idle_w=1.0, busy_w=8.0)
BEST = Candidate(
    name="best", latency_p50_ms=100.0, peak_memory_bytes=300 * MIB, accuracy=1.0, load_ms=0.0
)
QUICK = Candidate(
    name="quick", latency_p50_ms=10.0, peak_memory_bytes=100 * MIB, accuracy=0.8, load_ms=0.0
)
BOTH = (BEST, QUICK)
DEADLINE_MS = 150.0
FLOW, REGULAR = Requests(), Requests(arrivals="regular")
POISSON, BURSTS = Requests(arrivals="poisson"), Requests(arrivals="bursts", outlier_share=0.05)
FOUR_HOURS_S = 4 * 3600.0


def trace(
    *inputs: Inputs,
    start_c: float = 60.0,
    requests: Requests = FLOW,
    board: Board = Board(thermal=PLANT),  # noqa: B008 - frozen
) -> Trace:
    board = msgspec.structs.replace(board, start_c=start_c)
    header = Header(
        trace=1, name="test", profile="bench", period_s=1.0, origin="synthetic",
        source="a test", deadline_ms=DEADLINE_MS, board=board, requests=requests,
    )  # fmt: skip
    return Trace(
        header=header, ticks=tuple(Tick(at_s=float(i), inputs=x) for i, x in enumerate(inputs))
    )


def surroundings(**values: float) -> Inputs:
    return msgspec.convert({"ambient_c": 25.0, "demand_per_s": 5.0} | values, Inputs)


def worth_of(trace_: Trace, choices: tuple[Candidate | None, ...]) -> float:
    """Return what it is worth to let these serve, tick after tick."""
    board, score = trace_.header.board, 0.0
    world = World(board.start())
    for tick, choice, came in zip(trace_.ticks, choices, trace_.arrivals(), strict=True):
        arrived = None if came is None else Arrived(came)
        # The oracle names what serves: nothing does while the board is off.
        if choice is not None and choice is not world.serving:
            score -= SWITCH_WORTH * (world.serving is not None)
            world = start_loading(world, choice, gap=False)
        served, world = serve(
            board, world, tick, period_s=1.0, deadline_ms=DEADLINE_MS, arrived=arrived
        )
        score += served.worth or 0.0
    return score


def by_trying(trace_: Trace) -> float:
    ways = itertools.product(BOTH, repeat=len(trace_.ticks))
    return max(worth_of(trace_, choices) for choices in ways)


def its_way(found: Best) -> tuple[Candidate | None, ...]:
    return tuple(next((c for c in BOTH if c.name == name), None) for name in found.variants)


calm, busy = surroundings(demand_per_s=2.0), surroundings(demand_per_s=20.0)
slow = surroundings(slowdown=2.0)


@pytest.mark.parametrize(
    "inputs",
    [
        (calm,) * 6,
        (busy,) * 6,
        (calm, calm, busy, busy, calm, calm),
        (calm, busy, calm, busy, calm, busy),
        (slow, calm, slow, calm, calm, slow),
        (surroundings(memory_bytes=200 * MIB), calm, surroundings(memory_bytes=200 * MIB), calm),
        (surroundings(ambient_c=50.0, demand_per_s=9.0),) * 6,
    ],
)
def test_it_is_as_good_as_trying_everything(inputs: tuple[Inputs, ...]) -> None:
    asked = trace(*inputs)
    found = best_possible(asked, BOTH)
    assert found.score == pytest.approx(by_trying(asked))
    assert worth_of(asked, its_way(found)) == pytest.approx(found.score)


ticks = st.builds(
    Inputs,
    ambient_c=st.floats(0, 60),
    demand_per_s=st.floats(0, 30),
    slowdown=st.sampled_from([1.0, 1.0, 1.6, 3.0]),
    other_share=st.floats(0, 1),
    memory_bytes=st.sampled_from([None, None, 200 * MIB]),
)


@given(st.lists(ticks, min_size=1, max_size=6), st.floats(20, 84))
def test_its_way_is_worth_what_it_says_and_nothing_is_worth_more(
    inputs: list[Inputs], start_c: float
) -> None:
    asked = trace(*inputs, start_c=start_c)
    found, most = best_possible(asked, BOTH), by_trying(asked)
    assert worth_of(asked, its_way(found)) == pytest.approx(found.score)
    assert found.score <= most + 1e-9
    assert sum(a != b for a, b in itertools.pairwise(found.variants)) == found.switches
    # It may take ways for equal whose queues differ by a bin: one tick may come late for that.
    greatest = max(x.demand_per_s for x in inputs)
    assert found.score >= most - greatest - WAITING_BIN


single = st.sampled_from([REGULAR, POISSON, BURSTS])


@settings(max_examples=40, derandomize=True)  # the bound holds for one merge, and mostly for more
@given(st.lists(ticks, min_size=1, max_size=7), single, st.integers(0, 99), st.floats(20, 84))
def test_of_single_requests_it_knows_the_best_way_but_for_a_bin(
    inputs: list[Inputs], requests: Requests, seed: int, start_c: float
) -> None:
    requests = msgspec.structs.replace(requests, seed=seed)
    asked = trace(*inputs, start_c=start_c, requests=requests)
    found, most = best_possible(asked, BOTH), by_trying(asked)
    assert worth_of(asked, its_way(found)) == pytest.approx(found.score)
    assert found.score <= most + 1e-9
    # Ways that it takes for equal differ by a bin: a queue of one may wait two requests longer.
    greatest = max((len(came) for came in asked.arrivals() if came is not None), default=0)
    assert found.score >= most - greatest - WAITING_BIN


RICH = Board(
    thermal=ThermalPlant(resistance_c_per_w=3.0, time_constant_s=2.0, idle_w=1.0, busy_w=8.0),
    case=Case(resistance_c_per_w=5.0, time_constant_s=20.0),
    leak=Leak(power_w=0.4, at_c=60.0, e_fold_c=40.0),
    governor=Governor(ratios=(1.0, 0.7, 0.4), hot_c=78.0, cool_c=72.0),
    fan=Fan(on_c=70.0, off_c=62.0, resistance_ratio=0.7),
    battery_wh=0.01,
    cell=Cell(voltage_v=7.4, resistance_ohm=0.2),
    sensors=Sensors(temperature_lag_s=2.0, lost_share=0.2),
)


@settings(max_examples=25, derandomize=True)
@given(st.lists(ticks, min_size=1, max_size=6), st.integers(0, 99), st.floats(50, 84))
def test_on_a_board_with_two_nodes_it_knows_the_best_way_but_for_a_bin(
    inputs: list[Inputs], seed: int, start_c: float
) -> None:
    requests = msgspec.structs.replace(POISSON, seed=seed)
    asked = trace(*inputs, start_c=start_c, requests=requests, board=RICH)
    assert RICH.faults() == ()
    found, most = best_possible(asked, BOTH), by_trying(asked)
    assert worth_of(asked, its_way(found)) == pytest.approx(found.score)
    greatest = max((len(came) for came in asked.arrivals() if came is not None), default=0)
    assert most - greatest - WAITING_BIN <= found.score <= most + 1e-9


def test_of_single_requests_it_is_the_best_on_most_short_traces() -> None:
    lost = []
    for seed in range(40):
        requests = msgspec.structs.replace(POISSON, seed=seed)
        asked = trace(calm, busy, calm, slow, busy, calm, requests=requests)
        lost.append(1.0 - best_possible(asked, BOTH).score / by_trying(asked))
    assert max(lost) < 0.02
    assert sum(lost) / len(lost) < 0.001


@pytest.mark.few(2)
@pytest.mark.parametrize("name", shipped_names())
def test_nobody_who_does_not_know_the_trace_is_better(name: str) -> None:
    asked = load_trace(name)
    # The oracle takes a minute for a day with a battery, and learns no more from its later hours.
    early = tuple(tick for tick in asked.ticks if tick.at_s < FOUR_HOURS_S)
    asked = msgspec.structs.replace(asked, ticks=early)
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    found = best_possible(asked, variants)
    rivals = [replay(asked, variants, PolicySpec(kind=kind)) for kind in ("rules", "adaptive")]
    rivals += [replay(asked, variants, PolicySpec(kind="rules"), pinned=c.name) for c in variants]
    for rival in rivals:
        totals = rival.totals
        assert totals.worth is not None
        score = totals.worth - SWITCH_WORTH * totals.switches
        assert score <= found.score + 0.001 * totals.requests, rival.policy


def test_what_may_not_serve_does_not() -> None:
    benched = msgspec.structs.replace(BEST, benched="crashed")
    assert set(best_possible(trace(calm, calm), (benched, QUICK)).variants) == {"quick"}
    nobody = best_possible(trace(calm, calm), (benched,))
    assert (nobody.score, nobody.variants) == (0.0, (None, None))


def test_a_deadline_of_ones_own_decides() -> None:
    asked = trace(calm, calm, calm)
    assert set(best_possible(asked, BOTH).variants) == {"best"}
    assert set(best_possible(asked, BOTH, deadline_ms=50.0).variants) == {"quick"}


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        ((), "no variants"),
        ((msgspec.structs.replace(BEST, accuracy=None),), "declares no accuracy"),
        ((msgspec.structs.replace(BEST, latency_p50_ms=None),), "latency_p50_ms is missing"),
        ((msgspec.structs.replace(BEST, peak_memory_bytes=None),), "peak_memory_bytes is missing"),
    ],
)
def test_what_has_no_figures_is_refused(candidates: tuple[Candidate, ...], words: str) -> None:
    with pytest.raises(ReplayError, match=words):
        best_possible(trace(calm), candidates)
