"""Families of traces by which policies are judged, drawn at random from a seed.

A draw is a board, a set of variants with a deadline, and what happens around the device. The
families say what happens; everything else is drawn in the same way for all. The three sets of draws
differ in their seeds alone: `development` for whoever writes a policy, `validation` for the figures
in the documents, and `fresh`, whose seeds come from the operating system at each run.

Rules:
- Pure: family and seed determine a draw. Board, variants, deadline and surroundings have generators
  of their own, so a change of one leaves the others as they are.
- The choice matters in most draws. Four of five deadlines are `contested`: one variant, drawn from
  all but the fastest, is right while nothing happens, and what happens is measured by it: too hot,
  too slow, too large or too many for it, mostly not for the lightest. One deadline of eight is
  `easy` for all variants, the others are `hopeless` for nearly all.
- At most `MOST_REQUESTS` requests, on average, and `TICKS` ticks: a trace of a day has long ticks.
  A policy then decides once a tick, not once a second.
- A board that is not about its battery is on mains, or lasts for the whole trace.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from agent.replay.board import Board, Inputs
from agent.replay.controllers import Governor
from agent.replay.requests import Request, Requests
from agent.replay.traces import Header, Tick, Trace
from agent.select.decisions import Candidate
from benchmarks.policies import surroundings
from benchmarks.policies.boards import draw_board, with_battery
from benchmarks.policies.surroundings import MS_PER_S, Scene, within
from benchmarks.policies.variant_sets import Spacing, draw_variants
from wire.policy import Objective, PolicySpec

SetName = Literal["development", "validation", "fresh"]
Case = Literal["contested", "easy", "hopeless"]
VALIDATION: Final = Path(__file__).parent / "validation_seeds.json"
TICKS: Final = 1800
LONGEST_TICK_S: Final = 45.0
MOST_REQUESTS: Final = 14_000
BUSY: Final = 0.3
"""Use of the server by the quickest of the slowest variants, if as many requests come as may."""

LONGEST_TIMES: Final = 10.0
"""Latency of a slowest variant over the least that one may have."""

CONTESTED, EASY = 0.80, 0.125
"""Shares of the deadlines; the others are hopeless."""

SEED_BITS: Final = 53
UNPLUGGED_S: Final = 3600.0
"""A phone away from its charger is one for at most so long."""

WH_J: Final = 3600.0


class Family(NamedTuple):
    """One kind of traces."""

    surroundings: Callable[[Scene], tuple[Inputs, ...]]
    hours: tuple[float, float]
    """Range of the length."""

    bursts_share: float = 0.15
    """Share of the draws whose requests come in bursts; in the others they are Poisson."""

    outliers: tuple[float, float] = (0.0, 0.0)
    """Range of the share of requests that take ten times as long."""

    declared_sigma: float = 0.05
    """Of the logarithm of each variant's latency on the board over the declared one."""

    bad_sensors: bool = False
    cliff: bool = False
    """Whether the governor falls deep in few steps."""

    use: tuple[float, float] = (0.08, 0.4)
    """Range of the share of time in which the right variant computes, while nothing happens."""

    by_hour: bool = False
    """Whether what happens depends on the time of day."""

    battery_h: tuple[float, float] | None = None
    """Range of the time for which a full battery feeds a variant; None for a board on mains."""


HALF_HOUR, HOURS, DAY = (0.5, 0.75), (1.0, 3.0), (18.0, 24.0)
MUCH_USE: Final = (0.3, 0.7)
FAMILIES: Final = {
    "slow-ramp": Family(surroundings.slow_ramp, HOURS, use=MUCH_USE),
    "oscillating-ambient": Family(surroundings.oscillating, HOURS, use=MUCH_USE),
    "battery-and-sun": Family(
        surroundings.sun_and_battery,
        (12.0, 24.0),
        by_hour=True,
        battery_h=(4.0, 14.0),
        use=MUCH_USE,
    ),
    "memory-hog": Family(surroundings.memory_hog, HALF_HOUR),
    "request-bursts": Family(surroundings.request_bursts, HALF_HOUR, bursts_share=0.8),
    "bad-sensor": Family(surroundings.warm_wander, (0.5, 1.5), bad_sensors=True, use=MUCH_USE),
    "misdeclared": Family(surroundings.calm, HALF_HOUR, declared_sigma=0.34),
    "throttling-cliff": Family(surroundings.throttling_cliff, (0.5, 1.5), cliff=True, use=MUCH_USE),
    "neighbour-heat": Family(surroundings.neighbour_heat, HOURS, use=MUCH_USE),
    "outliers": Family(surroundings.calm, HALF_HOUR, outliers=(0.004, 0.05)),
    "corunner-900s": Family(surroundings.corunner, (1.0, 2.0)),
    "day-and-night": Family(surroundings.day_and_night, DAY, by_hour=True),
    "mixed-day": Family(
        surroundings.mixed_day, DAY, by_hour=True, battery_h=(2.0, 7.0), use=MUCH_USE
    ),
    "calm": Family(surroundings.calm, HALF_HOUR),
}


class Ready(Trace, frozen=True, kw_only=True):
    """A trace whose requests were computed already, because several policies meet them."""

    came: tuple[tuple[Request, ...], ...]
    """The requests of each tick."""

    def arrivals(self) -> Iterator[tuple[Request, ...] | None]:
        """Yield the requests of each tick."""
        return iter(self.came)


class Draw(NamedTuple):
    """One trace with its variants."""

    family: str
    seed: int
    spacing: Spacing
    case: Case
    trace: Ready
    variants: tuple[Candidate, ...]
    """With the latencies that are declared, most accurate first."""

    battery_until: str | None
    """Until when an operator of this site would want the battery to last: the time of day at which
    the charger is back after its longest absence, else the end; None if it is never absent."""

    def spec(self, kind: Literal["rules", "adaptive"]) -> PolicySpec:
        """Return a policy with the objective of this draw."""
        objective = Objective(deadline_ms=self.trace.header.deadline_ms)
        if self.battery_until is None:
            objective = replace(objective, battery_lasts_s=0.0)
        else:
            objective = replace(objective, battery_until=self.battery_until)
        return PolicySpec(kind=kind, objective=objective)


def seeds(which: SetName, count: int, *, master: int | None = None) -> tuple[int, ...]:
    """Return the seeds of a set's draws; each family uses them all.

    Args:
        which: The set.
        count: How many.
        master: Seed of a fresh set.

    Raises:
        ValueError: There are not so many, or a fresh set has no master seed.
    """
    if which == "development":
        return tuple(range(count))
    if which == "validation":
        known = json.loads(VALIDATION.read_bytes())["seeds"]
        if count > len(known):
            raise ValueError(f"the validation set has {len(known)} seeds, not {count}")
        return tuple(known[:count])
    if master is None:
        raise ValueError("a fresh set needs a master seed")
    chance = random.Random(f"fresh {master}")
    return tuple(chance.getrandbits(SEED_BITS) for _ in range(count))


def validation_sha256() -> str:
    """Return the SHA-256 of the validation set's file."""
    return hashlib.sha256(VALIDATION.read_bytes()).hexdigest()


def draw(name: str, seed: int) -> Draw:
    """Return a draw.

    Args:
        name: Of the family.
        seed: Of the draw.
    """
    return draw_of(FAMILIES[name], name, seed)


def draw_of(family: Family, name: str, seed: int) -> Draw:
    """Return a draw of a family that need not be one of `FAMILIES`.

    Args:
        family: The family.
        name: Its name; it is a part of the seed.
        seed: Of the draw.
    """
    chance = _chance(name, seed, "scene")
    duration_s = chance.uniform(*family.hours) * 3600.0
    period_s = min(max(duration_s / TICKS, 1.0), LONGEST_TICK_S)
    ticks = round(duration_s / period_s)
    kind, board = draw_board(
        _chance(name, seed, "board"), period_s=period_s, sensor_seed=chance.getrandbits(32)
    )
    board = _adapted(family, board, chance)
    spacing, variants = _variants(_chance(name, seed, "variants"), board, duration_s)
    slowdowns = _slowdowns(_chance(name, seed, "declared"), variants, family.declared_sigma)
    there = tuple(
        replace(v, latency_p50_ms=(v.latency_p50_ms or 0.0) * slowdowns[v.name]) for v in variants
    )
    requests = _requests(chance, family)
    demand = _demand(_chance(name, seed, "demand"), family, there, duration_s, requests)
    board = replace(board, slowdowns=slowdowns)
    plugged = duration_s > UNPLUGGED_S or chance.random() < 0.5  # noqa: PLR2004 - one of two
    around = _chance(name, seed, "surroundings")
    begin_hour = around.uniform(0.0, 24.0) if family.by_hour else 0.0
    scene = Scene(
        chance=around,
        board=board,
        variants=there,
        good=demand.good,
        deadline_ms=demand.deadline_ms,
        rate_per_s=demand.rate_per_s,
        free_bytes=round(board.memory_bytes * chance.uniform(0.55, 0.85)),
        mains_w=1.5 * scene_busy_w(board) if plugged else 0.0,
        ticks=ticks,
        period_s=period_s,
        begin_hour=begin_hour,
    )
    if family.battery_h is not None:
        mean_w = scene.watts(scene.busy(scene.good))
        board = with_battery(chance, board, mean_w * chance.uniform(*family.battery_h))
    scene = scene._replace(board=board)
    inputs = family.surroundings(scene)
    board = replace(board, start_c=_start_c(scene, inputs[0]))
    header = Header(
        trace=1,
        name=f"{name}-{seed}",
        profile=kind,
        period_s=period_s,
        origin="synthetic",
        source=f"benchmarks/policies/families.py, family {name}, seed {seed}",
        deadline_ms=demand.deadline_ms,
        begins_local_s=begin_hour * 3600.0,
        at_work=chance.random() < 0.5,  # noqa: PLR2004 - one of two
        board=board,
        requests=requests,
    )
    listed = tuple(
        Tick(at_s=number * period_s, inputs=given) for number, given in enumerate(inputs)
    )
    plain = Trace(header=header, ticks=listed)
    came = tuple(found or () for found in plain.arrivals())
    return Draw(
        family=name,
        seed=seed,
        spacing=spacing,
        case=demand.case,
        trace=Ready(header=header, ticks=listed, came=came),
        variants=variants,
        battery_until=_until(board, inputs, period_s, begin_hour * 3600.0),
    )


def scene_busy_w(board: Board) -> float:
    """Return the greatest power of a board before its leak exceeds that of severe heat."""
    leak_w = board.leak.watts(board.limits.severe_c) if board.leak else 0.0
    return board.thermal.busy_w + leak_w


def _chance(name: str, seed: int, part: str) -> random.Random:
    return random.Random(f"{name} {seed} {part}")


def _variants(
    chance: random.Random, board: Board, duration_s: float
) -> tuple[Spacing, tuple[Candidate, ...]]:
    spacing: Spacing = chance.choice(("near", "far"))
    # The requests of a long trace are rarer, so they take longer: the board has to have work.
    least_ms = within(BUSY * duration_s / MOST_REQUESTS * MS_PER_S, 60.0, 1500.0)
    slowest_ms = math.exp(chance.uniform(math.log(least_ms), math.log(LONGEST_TIMES * least_ms)))
    largest = board.memory_bytes * chance.uniform(0.06, 0.25)
    return spacing, draw_variants(chance, spacing, slowest_ms=slowest_ms, largest_bytes=largest)


def _slowdowns(
    chance: random.Random, variants: tuple[Candidate, ...], sigma: float
) -> dict[str, float]:
    """Return the latency of each variant on the board over the declared one."""
    common = chance.gauss(0.0, sigma)
    return {v.name: math.exp(common + chance.gauss(0.0, sigma)) for v in variants}


class Demand(NamedTuple):
    """What is asked of a device while nothing happens."""

    case: Case
    good: Candidate
    """The variant that is right then."""

    deadline_ms: float
    rate_per_s: float


def _demand(
    chance: random.Random,
    family: Family,
    variants: tuple[Candidate, ...],
    duration_s: float,
    requests: Requests,
) -> Demand:
    by_speed = sorted(variants, key=lambda v: v.latency_p50_ms or 0.0)
    fastest_ms, slowest_ms = (by_speed[place].latency_p50_ms or 0.0 for place in (0, -1))
    good = chance.choice(by_speed[1:])
    good_s = (good.latency_p50_ms or 0.0) / MS_PER_S
    rate = min(chance.uniform(*family.use) / good_s, MOST_REQUESTS / duration_s)
    use, kind = rate * good_s, chance.random()
    if kind < CONTESTED:
        # Enough for most waits: those of random arrivals, and those behind the others of a burst.
        batch = requests.burst_size if requests.arrivals == "bursts" else 1.0
        waits = 1.0 + 2.5 * use / (1.0 - use) + 2.0 * (batch - 1.0)
        deadline_ms = good_s * MS_PER_S * waits * chance.uniform(1.25, 2.2)
        return Demand("contested", good, deadline_ms, rate)
    if kind < CONTESTED + EASY:
        return Demand("easy", good, slowest_ms * chance.uniform(4.0, 10.0), rate)
    return Demand("hopeless", good, fastest_ms * chance.uniform(0.85, 1.1), rate)


def _adapted(family: Family, board: Board, chance: random.Random) -> Board:
    """Return a board with what its family says about it."""
    if family.cliff:
        hot_c = board.throttle_c
        first = chance.uniform(0.45, 0.7)
        ratios = (1.0, first, first * chance.uniform(0.55, 0.85))
        governor = Governor(
            ratios=ratios[: chance.choice((2, 3))],
            hot_c=hot_c,
            cool_c=hot_c - chance.uniform(4.0, 14.0),
            interval_s=chance.uniform(1.0, 4.0),
        )
        board = replace(board, governor=governor)
    if family.bad_sensors:
        faults = {
            "lag": {"temperature_lag_s": chance.uniform(10.0, 90.0)},
            "steps": {"temperature_step_c": chance.uniform(3.0, 9.0)},
            "drop-outs": {
                "lost_share": chance.uniform(0.1, 0.7),
                "lost_s": chance.uniform(10.0, 400.0),
            },
            # With such a lag the reading stays what it was at the beginning.
            "stuck": {"temperature_lag_s": 90_000.0},
            "offset": {"temperature_offset_c": chance.uniform(3.0, 10.0) * chance.choice((-1, 1))},
            "noise": {"temperature_noise_c": chance.uniform(1.5, 4.0)},
        }
        for fault in chance.sample(sorted(faults), chance.choice((1, 1, 2))):
            board = replace(board, sensors=replace(board.sensors, **faults[fault]))
    return board


def _requests(chance: random.Random, family: Family) -> Requests:
    return Requests(
        arrivals="bursts" if chance.random() < family.bursts_share else "poisson",
        seed=chance.getrandbits(32),
        service_sigma=chance.uniform(0.03, 0.25),
        outlier_share=chance.uniform(*family.outliers),
        burst_size=chance.uniform(1.5, 6.0),
    )


def _start_c(scene: Scene, first: Inputs) -> float:
    """Return the temperature of a board that has been idle, or at work, for a long time."""
    board = scene.board
    outer = board.case.resistance_c_per_w if board.case else 0.0
    share = scene.chance.choice((0.0, scene.chance.uniform(0.0, 0.5)))
    rise_c = (board.thermal.resistance_c_per_w + outer) * board.thermal.power_w(share)
    return min(first.ambient_c + rise_c, scene.limit_c - 5.0)


def _until(board: Board, inputs: tuple[Inputs, ...], period_s: float, begin_s: float) -> str | None:
    """Return the end of the longest time in which the charger gives less than an idle board takes.

    Args:
        board: The board.
        inputs: Of all ticks.
        period_s: Length of a tick.
        begin_s: Local time of the first tick, in seconds since midnight.

    Returns:
        The local time as HH:MM; None if there is no such time.
    """
    longest = ticks = end = 0
    for number, given in enumerate(inputs, start=1):
        ticks = ticks + 1 if given.charger_w < board.thermal.idle_w else 0
        if ticks > longest:
            longest, end = ticks, number
    if not longest:
        return None
    minutes = int((begin_s + end * period_s) / 60.0)
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}"
