"""Several models on one simulated board: what they share; one model as its own replay has it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.replay import EXAMPLE, VariantList
from agent.replay.board import Board, Inputs
from agent.replay.plant import ThermalPlant
from agent.replay.requests import Request, Requests
from agent.replay.run import replay
from agent.replay.several import stretch
from agent.replay.together import Played, replay_together
from agent.replay.traces import Header, Tick, Trace
from agent.select.decisions import Candidate, Decision
from agent.select.joint import Asked, choose_jointly
from wire.codec import from_json
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec, Sharing
from wire.profile import ThermalLimits

MIB = 1024 * 1024
DEADLINE_MS = 400.0
ONE = Candidate(name="one", latency_p50_ms=100.0, peak_memory_bytes=300 * MIB, accuracy=1.0)
LARGE = Candidate(name="large", latency_p50_ms=100.0, peak_memory_bytes=500 * MIB, accuracy=1.0)


def trace(board: Board | None = None, *, seconds: int = 120, memory_mib: int = 2000) -> Trace:
    inputs = Inputs(ambient_c=25.0, demand_per_s=3.0, memory_bytes=memory_mib * MIB)
    return Trace(
        header=Header(
            trace=1, name="made", profile="made", period_s=1.0, origin="synthetic", source="a test",
            deadline_ms=DEADLINE_MS, at_work=True, board=board or Board(cpu_share=0.5),
            requests=Requests(arrivals="poisson", seed=7),
        ),
        ticks=tuple(Tick(at_s=float(n), inputs=inputs) for n in range(seconds)),
    )  # fmt: skip


def played(around: Trace, *candidates: Candidate, weight: float = 1.0) -> Played:
    spec = PolicySpec(objective=Objective(deadline_ms=DEADLINE_MS), sharing=Sharing(weight=weight))
    came: list[tuple[Request, ...]] = [found or () for found in around.arrivals()]
    return Played(candidates, spec, came)


def first(health: HealthSnapshot, models: Mapping[str, Asked]) -> dict[str, Decision]:
    """Choose the first variant of each."""
    return {
        name: Decision(
            variant=asked.candidates[0].name, reason="first", state=asked.context.state,
            inputs={}, verdicts={},
        )
        for name, asked in models.items()
    }  # fmt: skip


def test_one_model_alone_is_what_its_own_replay_is() -> None:
    around = trace(seconds=400)
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    model = played(around, *variants)
    own = replay(around, variants, model.spec).totals
    ours = replay_together(around, {"m": model}, choose_jointly)
    found = ours.models["m"]
    assert (found.requests, found.missed, found.switches) == (
        own.requests, own.missed, own.switches,
    )  # fmt: skip
    assert found.worth == pytest.approx(own.worth)
    assert found.served_s == own.served_s
    assert (ours.severe_s, ours.short_s) == (own.severe_s, own.short_of_memory_s)


def test_models_that_together_want_more_of_the_processor_slow_each_other_down() -> None:
    whole = trace(Board(cpu_share=1.0))
    alone = replay_together(whole, {"a": played(whole, ONE)}, first).models["a"]
    beside = replay_together(whole, {n: played(whole, ONE) for n in "abc"}, first).models["a"]
    assert beside.missed > alone.missed
    half = trace(Board(cpu_share=0.5))
    alone, beside = (
        replay_together(half, {n: played(half, ONE) for n in names}, first).models["a"]
        for names in ("a", "ab")
    )
    assert beside == alone


def test_all_models_warm_one_board() -> None:
    plant = ThermalPlant(resistance_c_per_w=12.0, time_constant_s=30.0, idle_w=1.0, busy_w=12.0)
    limits = ThermalLimits(nominal_c=40.0, severe_c=70.0)
    around = trace(Board(thermal=plant, limits=limits, cpu_share=0.5), seconds=300)
    severe = [
        replay_together(around, {n: played(around, ONE) for n in names}, first).severe_s
        for names in ("a", "abcd")
    ]
    assert severe[0] == 0.0
    assert severe[1] > 0.0


def test_where_memory_is_short_the_largest_worker_ends_and_the_others_go_on() -> None:
    around = trace(memory_mib=700)
    models = {"a": played(around, ONE), "b": played(around, LARGE)}
    found = replay_together(around, models, first)
    assert found.models["b"].missed == found.models["b"].requests
    assert found.models["a"].missed < 0.1 * found.models["a"].requests
    assert found.short_s == 120.0


def test_equal_inputs_give_equal_results() -> None:
    around = trace()
    models = {n: played(around, ONE, weight=w) for n, w in (("a", 1.0), ("b", 2.0))}
    assert replay_together(around, models, choose_jointly) == replay_together(
        around, models, choose_jointly
    )


@given(st.floats(0.05, 1.0), st.lists(st.floats(0.0, 1.0), max_size=4))
def test_a_stretch_is_a_mean_over_who_computes(share: float, uses: list[float]) -> None:
    found = stretch(share, uses)
    assert 1.0 <= found <= max(share * (1 + len(uses)), 1.0) + 1e-9
    assert stretch(share, [*uses, 0.0]) == pytest.approx(found)
    assert stretch(share, [*uses, 0.5]) >= found - 1e-9
    if share == 1.0:
        assert found == pytest.approx(1.0 + math.fsum(uses))


def test_a_stretch_counts_each_combination_of_the_others_once() -> None:
    uses = (0.2, 0.7)
    expected = math.fsum(
        (0.2 if a else 0.8) * (0.7 if b else 0.3) * max(0.6 * (1 + a + b), 1.0)
        for a, b in itertools.product((0, 1), repeat=2)
    )
    assert stretch(0.6, uses) == pytest.approx(expected)
