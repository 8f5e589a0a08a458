"""Draws of several models that share one board, for the judge of joint decisions.

A draw has two to four models of three to six variants each, with own requests, deadlines and
weights, on a board of `benchmarks.policies.boards`. What happens around it is that of
`benchmarks.policies.surroundings`, drawn for the models together: what is too hot, too large or too
much is so for a combination of them, mostly not for the lightest one.

Rules:
- Pure: family and seed determine a draw.
- The plant is not the policy's own model: chip and case, a leak, a governor, sensors that err,
  models that slow each other down while they compute at the same time, single requests.
"""

from __future__ import annotations

import math
import random
from typing import Final, NamedTuple

from msgspec.structs import replace

from agent.replay.board import Board
from agent.replay.requests import Requests, arrivals
from agent.replay.together import Played
from agent.replay.traces import Header, Tick, Trace
from agent.select.decisions import Candidate
from benchmarks.policies import surroundings
from benchmarks.policies.boards import draw_board, with_battery
from benchmarks.policies.families import Family, scene_busy_w
from benchmarks.policies.surroundings import MS_PER_S, Scene, Wobble, within
from benchmarks.policies.variant_sets import draw_variants
from wire.policy import Objective, PolicySpec, Sharing

TICKS: Final = 900
MOST_REQUESTS: Final = 2500
"""Of one model, on average."""

MODELS: Final = (2, 3, 3, 4)
WEIGHTS: Final = (0.25, 0.5, 1.0, 1.0, 2.0, 4.0)
ALL_BEST: Final = (0.5, 1.3)
"""Range of the share of the processor that the most accurate variants take together."""

HOUR: Final = (0.5, 1.25)
FAMILIES: Final = {
    "slow-ramp": Family(surroundings.slow_ramp, HOUR),
    "oscillating-ambient": Family(surroundings.oscillating, HOUR),
    "throttling-cliff": Family(surroundings.throttling_cliff, HOUR, cliff=True),
    "neighbour-heat": Family(surroundings.neighbour_heat, HOUR),
    "memory-hog": Family(surroundings.memory_hog, HOUR),
    "request-bursts": Family(surroundings.request_bursts, HOUR),
    "corunner-900s": Family(surroundings.corunner, HOUR),
    "battery-and-sun": Family(
        surroundings.sun_and_battery, (3.0, 5.0), by_hour=True, battery_h=(1.0, 4.0)
    ),
    "calm": Family(surroundings.calm, HOUR),
}


class SharedDraw(NamedTuple):
    """One board with its models."""

    family: str
    seed: int
    trace: Trace
    models: dict[str, Played]

    @property
    def levels(self) -> list[dict[str, str]]:
        """Combinations from the most accurate to the lightest: one step down for all at a time."""
        most = max(len(m.candidates) for m in self.models.values())
        return [
            {name: m.candidates[min(level, len(m.candidates) - 1)].name
             for name, m in self.models.items()}
            for level in range(most)
        ]  # fmt: skip


class _Model(NamedTuple):
    variants: tuple[Candidate, ...]
    rate_per_s: float
    deadline_ms: float
    weight: float


def draw_shared(name: str, seed: int) -> SharedDraw:
    """Return a draw.

    Args:
        name: Of the family.
        seed: Of the draw.
    """
    family, chance = FAMILIES[name], random.Random(f"shared {name} {seed}")
    duration_s = chance.uniform(*family.hours) * 3600.0
    period_s = max(duration_s / TICKS, 1.0)
    kind, board = draw_board(chance, period_s=period_s, sensor_seed=chance.getrandbits(32))
    models = _models(chance, board, duration_s)
    sigma = family.declared_sigma
    slowdowns = {
        v.name: math.exp(chance.gauss(0.0, sigma)) for m in models.values() for v in m.variants
    }
    board = replace(board, slowdowns=slowdowns)
    scene = _scene(chance, family, board, models, duration_s, period_s)
    if family.battery_h is not None:
        mean_w = scene.watts(scene.busy(scene.good))
        board = with_battery(chance, board, mean_w * chance.uniform(*family.battery_h))
        scene = scene._replace(board=replace(board, cpu_share=1.0))
    inputs = family.surroundings(scene)
    board = replace(board, start_c=within(inputs[0].ambient_c + 15.0, 10.0, 60.0))
    ticks = tuple(Tick(at_s=n * period_s, inputs=given) for n, given in enumerate(inputs))
    begins_s = scene.begin_hour * 3600.0
    header = Header(
        trace=1,
        name=f"{name}-{seed}",
        profile=kind,
        period_s=period_s,
        origin="synthetic",
        source=f"benchmarks/policies/shared_boards.py, family {name}, seed {seed}",
        deadline_ms=max(m.deadline_ms for m in models.values()),
        begins_local_s=begins_s,
        at_work=True,
        board=board,
    )
    lasts_s = duration_s if family.battery_h is not None else 0.0
    parks = min(models, key=lambda key: models[key].weight) if chance.random() < 0.5 else ""  # noqa: PLR2004 - one of two
    played = {}
    for number, (key, model) in enumerate(models.items()):
        wave = Wobble(scene, 0.25, 300.0)
        rates = [model.rate_per_s * t.inputs.demand_per_s * math.exp(wave.next()) for t in ticks]
        requests = Requests(arrivals="poisson", seed=(seed * 8 + number) % 2**31)
        spec = PolicySpec(
            objective=Objective(deadline_ms=model.deadline_ms, battery_lasts_s=lasts_s),
            sharing=Sharing(weight=model.weight, may_park=key == parks),
        )
        came = [found or () for found in arrivals(requests, rates, period_s)]
        played[key] = Played(model.variants, spec, came)
    return SharedDraw(name, seed, Trace(header=header, ticks=ticks), played)


def _models(chance: random.Random, board: Board, duration_s: float) -> dict[str, _Model]:
    count, whole = chance.choice(MODELS), chance.uniform(*ALL_BEST)
    parts = [chance.uniform(0.3, 1.0) for _ in range(count)]
    found = {}
    for number, part in enumerate(parts):
        share = min(whole * part / math.fsum(parts), 0.65 * board.cpu_share)
        use = share / board.cpu_share
        slowest_s = max(math.exp(chance.uniform(-2.8, -0.5)), use * duration_s / MOST_REQUESTS)
        variants = draw_variants(
            chance,
            chance.choice(("near", "far")),
            slowest_ms=slowest_s * MS_PER_S,
            largest_bytes=board.memory_bytes * chance.uniform(0.05, 0.2),
        )
        name = f"m{number}"
        found[name] = _Model(
            variants=tuple(replace(v, name=f"{name}-{v.name}") for v in variants),
            rate_per_s=use / slowest_s,
            deadline_ms=slowest_s * MS_PER_S * chance.uniform(3.0, 7.0),
            weight=chance.choice(WEIGHTS),
        )
    return found


def _scene(
    chance: random.Random,
    family: Family,
    board: Board,
    models: dict[str, _Model],
    duration_s: float,
    period_s: float,
) -> Scene:
    """Return a scene whose variants stand for combinations, from the heaviest to the lightest."""
    steps = max(len(m.variants) for m in models.values())
    whole = []
    for step in range(steps):
        chosen = [(m, m.variants[min(step, len(m.variants) - 1)]) for m in models.values()]
        share = board.cpu_share * math.fsum(
            m.rate_per_s * (v.latency_p50_ms or 0.0) / MS_PER_S for m, v in chosen
        )
        held = sum(v.peak_memory_bytes or 0 for _, v in chosen)
        whole.append(
            Candidate(
                name=f"all{step}",
                latency_p50_ms=min(share, 1.0) * MS_PER_S,
                peak_memory_bytes=held,
                accuracy=1.0,
            )
        )
    good = chance.choice(whole[:-1])
    return Scene(
        chance=chance,
        board=replace(board, cpu_share=1.0),
        variants=tuple(whole),
        good=good,
        deadline_ms=2.0 * (good.latency_p50_ms or 1.0),
        rate_per_s=1.0,
        free_bytes=round(board.memory_bytes * chance.uniform(0.55, 0.95)),
        mains_w=1.5 * scene_busy_w(board),
        ticks=round(duration_s / period_s),
        period_s=period_s,
        begin_hour=chance.uniform(0.0, 24.0) if family.by_hour else 0.0,
    )
