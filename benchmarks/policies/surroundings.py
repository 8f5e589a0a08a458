"""What happens around a simulated device over time: the families of the judge's traces.

Each function takes a scene and gives the inputs of every tick. Heat is drawn relative to the board
and the variants, around the ambient temperature at which one of them just reaches throttling or
severe heat: far from it no choice matters. It stays within what weather and cabinets have.

Rules:
- Pure: the same generator gives the same inputs.
- No two draws share a phase, a period or a level, except that a co-runner's period is always
  900 s.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from agent.replay.board import Board, Inputs
from agent.select.decisions import Candidate

COLDEST_C, HOTTEST_C = -15.0, 52.0
"""Ambient temperatures of frost and of a cabinet in the sun."""

DEAD_HOUR: Final = 4.0
"""Hour at which the fewest requests come, and near which it is coldest."""

CORUNNER_PERIOD_S: Final = 900.0
MS_PER_S: Final = 1000.0


class Scene(NamedTuple):
    """What surroundings are drawn for."""

    chance: random.Random
    board: Board
    variants: tuple[Candidate, ...]
    """Most accurate first, with the latencies that they have on the board."""

    good: Candidate
    """The variant that is right while nothing happens."""

    deadline_ms: float
    rate_per_s: float
    """Nominal rate of requests."""

    free_bytes: int
    """Memory that would be free without a variant, usually."""

    mains_w: float
    """What a charger gives where a family has no other one; 0 without it."""

    ticks: int
    period_s: float
    begin_hour: float = 0.0
    """Local time at the beginning, in hours."""

    @property
    def duration_s(self) -> float:
        """Length of the trace."""
        return self.ticks * self.period_s

    def times_s(self) -> Iterator[float]:
        """Yield the beginning of each tick."""
        return (number * self.period_s for number in range(self.ticks))

    def busy(self, variant: Candidate) -> float:
        """Return the share of the processor that a variant keeps busy at the nominal rate."""
        use = self.rate_per_s * (variant.latency_p50_ms or 0.0) / MS_PER_S
        return min(use, 1.0) * self.board.cpu_share

    @property
    def limit_c(self) -> float:
        """The temperature above which a variant loses: severe, or throttled."""
        return min(self.board.throttle_c, self.board.limits.severe_c)

    @property
    def least_busy(self) -> float:
        """The share of the processor that the lightest variant keeps busy."""
        return min(map(self.busy, self.variants))

    def watts(self, share: float) -> float:
        """Return the power of the board at its limit."""
        leak = self.board.leak.watts(self.limit_c) if self.board.leak else 0.0
        return self.board.thermal.power_w(share) + leak

    def critical_c(self, share: float) -> float:
        """Return the ambient temperature at which a load just reaches the limit."""
        board = self.board
        outer = board.case.resistance_c_per_w if board.case else 0.0
        fan = board.fan.steps[-1].resistance_ratio if board.fan else 1.0
        rise_c = (board.thermal.resistance_c_per_w + outer * fan) * self.watts(share)
        return within(self.limit_c - rise_c, COLDEST_C, HOTTEST_C)

    def hot_c(self, other_share: float = 0.0) -> float:
        """Return an ambient temperature that is too hot for the good variant, not for the lightest.

        Args:
            other_share: Share of the processor that others keep busy.
        """
        coolest = min(self.variants, key=self.busy)
        heavy_c, light_c = (
            self.critical_c(min(self.busy(v) + other_share, 1.0)) for v in (self.good, coolest)
        )
        return heavy_c + self.chance.uniform(0.15, 0.95) * (light_c - heavy_c)

    def slower(self) -> float:
        """Return a slowdown that is too much for the good variant, mostly not for the fastest."""
        fastest_ms = min(v.latency_p50_ms or 0.0 for v in self.variants)
        bears = self.deadline_ms / (self.good.latency_p50_ms or 1.0)
        most = max(self.deadline_ms / fastest_ms, 1.1 * bears)
        return within(bears * (most / bears) ** self.chance.uniform(0.05, 0.6), 1.1, 5.0)

    def crowd(self) -> float:
        """Return a multiple of the demand that is too much for the good variant."""
        use = self.rate_per_s * (self.good.latency_p50_ms or 0.0) / MS_PER_S
        fastest_ms = min(v.latency_p50_ms or 0.0 for v in self.variants)
        least_use = self.rate_per_s * fastest_ms / MS_PER_S
        return within(self.chance.uniform(0.75, 1.3) / use, 1.3, max(0.6 / least_use, 1.4))


class Wobble:
    """Small changes without a cause: a process that returns to zero.

    Args:
        scene: For which it is.
        sigma: Its standard deviation.
        lag_s: Time over which it forgets.
    """

    def __init__(self, scene: Scene, sigma: float, lag_s: float) -> None:
        self._chance, self._sigma = scene.chance, sigma
        self._kept = math.exp(-scene.period_s / lag_s)
        self._value = scene.chance.gauss(0.0, sigma)

    def next(self) -> float:
        """Return the next value."""
        new = math.sqrt(1.0 - self._kept**2) * self._chance.gauss(0.0, self._sigma)
        self._value = self._kept * self._value + new
        return self._value


def within(value: float, least: float, most: float) -> float:
    """Return a value, or the bound that it exceeds."""
    return min(max(value, least), most)


def switched(scene: Scene, on_s: float, off_s: float) -> list[bool]:
    """Return for each tick whether something is on that comes and goes at random.

    Args:
        scene: For which it is.
        on_s: Mean time for which it stays on.
        off_s: Mean time for which it stays off.
    """
    found, is_on = [], scene.chance.random() < on_s / (on_s + off_s)
    left_s = scene.chance.expovariate(1.0 / (on_s if is_on else off_s))
    for _ in range(scene.ticks):
        while left_s <= 0.0:
            is_on = not is_on
            left_s += scene.chance.expovariate(1.0 / (on_s if is_on else off_s))
        found.append(is_on)
        left_s -= scene.period_s
    return found


def inputs(
    scene: Scene,
    *,
    ambient_c: Callable[[float], float],
    demand: Callable[[float], float] = lambda _: 1.0,
    slowdown: Callable[[int], float] = lambda _: 1.0,
    other_share: Callable[[int], float] = lambda _: 0.0,
    charger_w: Callable[[float], float] | None = None,
    taken_bytes: Callable[[int], float] = lambda _: 0.0,
) -> tuple[Inputs, ...]:
    """Return the inputs of all ticks: what a family says, with small changes on all of it.

    Args:
        scene: For which they are.
        ambient_c: By the time in seconds.
        demand: Over the nominal rate, by the time.
        slowdown: By the number of the tick.
        other_share: By the number of the tick.
        charger_w: By the time; None for that of the scene.
        taken_bytes: Memory that others take besides, by the number of the tick.
    """
    warmth, more = Wobble(scene, 0.4, 180.0), Wobble(scene, 0.06, 120.0)
    slower, load = Wobble(scene, 0.02, 20.0), Wobble(scene, 0.01, 15.0)
    found = []
    for tick, at_s in enumerate(scene.times_s()):
        base = other_share(tick)
        free = scene.free_bytes - taken_bytes(tick) * scene.chance.uniform(0.98, 1.02)
        found.append(
            Inputs(
                ambient_c=ambient_c(at_s) + warmth.next(),
                demand_per_s=scene.rate_per_s * demand(at_s) * math.exp(more.next()),
                slowdown=max(slowdown(tick) * math.exp(slower.next()), 0.5),
                other_share=within(base + 0.01 + load.next(), 0.0, 1.0),
                charger_w=scene.mains_w if charger_w is None else max(charger_w(at_s), 0.0),
                memory_bytes=max(round(free), 0),
            )
        )
    return tuple(found)


def calm(scene: Scene) -> tuple[Inputs, ...]:
    """Nothing happens; one constant variant is right."""
    mild_c = scene.hot_c() - scene.chance.uniform(6.0, 25.0)
    return inputs(scene, ambient_c=lambda _: mild_c)


def slow_ramp(scene: Scene) -> tuple[Inputs, ...]:
    """The surroundings get warmer, or colder, over the whole time."""
    end_c = scene.hot_c() + scene.chance.uniform(-1.0, 2.0)
    begin_c = end_c - scene.chance.uniform(9.0, 26.0)
    if scene.chance.random() < 0.3:  # noqa: PLR2004 - it cools down in some
        begin_c, end_c = end_c, begin_c
    return inputs(
        scene, ambient_c=lambda at_s: begin_c + (end_c - begin_c) * at_s / scene.duration_s
    )


def oscillating(scene: Scene) -> tuple[Inputs, ...]:
    """Warm and cold air come in turns."""
    swing_c, wave_s = scene.chance.uniform(4.0, 13.0), scene.chance.uniform(500.0, 3600.0)
    middle_c = scene.hot_c() - swing_c * scene.chance.uniform(0.5, 1.0)
    phase = scene.chance.uniform(0.0, math.tau)
    return inputs(
        scene,
        ambient_c=lambda at_s: middle_c + swing_c * math.sin(math.tau * at_s / wave_s + phase),
    )


def throttling_cliff(scene: Scene) -> tuple[Inputs, ...]:
    """The surroundings stay near where a variant gets too hot, and wander."""
    near_c, wander = scene.hot_c() - 1.0, Wobble(scene, scene.chance.uniform(1.0, 3.5), 240.0)
    return inputs(scene, ambient_c=lambda _: near_c + wander.next())


def neighbour_heat(scene: Scene) -> tuple[Inputs, ...]:
    """A neighbour in the same box warms the air while it works, and takes no processor time."""
    warmer_c = scene.chance.uniform(7.0, 20.0)
    base_c = scene.hot_c() - warmer_c * scene.chance.uniform(0.75, 1.05)
    lag_s = scene.chance.uniform(60.0, 300.0)
    works = switched(scene, scene.chance.uniform(300, 1500), scene.chance.uniform(300, 1500))
    warm, kept = 0.0, math.exp(-scene.period_s / lag_s)
    rises = []
    for on in works:
        warm = kept * warm + (1.0 - kept) * on
        rises.append(warmer_c * warm)
    return inputs(scene, ambient_c=lambda at_s: base_c + rises[round(at_s / scene.period_s)])


def sun_and_battery(scene: Scene) -> tuple[Inputs, ...]:
    """A panel charges the battery between sunrise and sunset, with clouds."""
    chance, begin_hour = scene.chance, scene.begin_hour
    # The energy of a day is between what the lightest and what the good variant need.
    least_w, good_w = (scene.watts(share) for share in (scene.least_busy, scene.busy(scene.good)))
    peak_w = (least_w + (good_w - least_w) * chance.uniform(0.1, 1.1)) * math.pi
    shade = Wobble(scene, chance.uniform(0.1, 0.5), 600.0)
    cool_c = scene.hot_c() - chance.uniform(8.0, 25.0)

    def sun(at_s: float) -> float:
        hour = (begin_hour + at_s / 3600.0) % 24.0
        return max(math.sin(math.pi * (hour - 6.0) / 12.0), 0.0)

    return inputs(
        scene,
        ambient_c=lambda at_s: cool_c + 7.0 * sun(at_s),
        charger_w=lambda at_s: peak_w * sun(at_s) * min(math.exp(shade.next()), 1.2),
    )


def memory_hog(scene: Scene) -> tuple[Inputs, ...]:
    """Another program takes so much memory that only some variants fit beside it."""
    chance = scene.chance
    sizes = sorted(v.peak_memory_bytes or 0 for v in scene.variants)
    # While it works, the good variant does not fit, unless that is the smallest.
    smaller = [size for size in sizes if size < (scene.good.peak_memory_bytes or 0)]
    fits = chance.choice(smaller or sizes[:-1])
    takes = max(scene.free_bytes - fits * chance.uniform(1.03, 1.2) - 70e6, 0.0)
    on = switched(scene, chance.uniform(30.0, 400.0), chance.uniform(60.0, 600.0))
    mild_c = scene.hot_c() - chance.uniform(6.0, 25.0)
    return inputs(
        scene,
        ambient_c=lambda _: mild_c,
        taken_bytes=lambda tick: takes * on[tick],
        other_share=lambda tick: 0.08 * on[tick],
    )


def request_bursts(scene: Scene) -> tuple[Inputs, ...]:
    """Requests come in bursts, and for minutes a multiple of them."""
    chance = scene.chance
    more = scene.crowd()
    on = switched(scene, chance.uniform(40.0, 400.0), chance.uniform(100.0, 900.0))
    mild_c = scene.hot_c() - chance.uniform(5.0, 20.0)
    return inputs(
        scene,
        ambient_c=lambda _: mild_c,
        demand=lambda at_s: more if on[round(at_s / scene.period_s)] else 1.0,
    )


def warm_wander(scene: Scene) -> tuple[Inputs, ...]:
    """Heat that matters, slowly changing: for boards whose sensors err."""
    chance = scene.chance
    swing_c = chance.uniform(3.0, 9.0)
    middle_c = scene.hot_c() - swing_c * chance.uniform(0.5, 1.0)
    wave_s, phase = chance.uniform(600.0, 2400.0), chance.uniform(0.0, math.tau)
    return inputs(
        scene,
        ambient_c=lambda at_s: middle_c + swing_c * math.sin(math.tau * at_s / wave_s + phase),
    )


def corunner(scene: Scene) -> tuple[Inputs, ...]:
    """A job beside the variants runs for a part of each quarter of an hour."""
    chance = scene.chance
    duty, phase_s = chance.uniform(0.2, 0.65), chance.uniform(0.0, CORUNNER_PERIOD_S)
    slower, share = scene.slower(), chance.uniform(0.15, 0.6)
    mild_c = scene.hot_c(share) - chance.uniform(5.0, 20.0)

    def works(tick: int) -> bool:
        at_s = tick * scene.period_s + phase_s
        return at_s % CORUNNER_PERIOD_S < duty * CORUNNER_PERIOD_S

    return inputs(
        scene,
        ambient_c=lambda _: mild_c,
        slowdown=lambda tick: slower if works(tick) else 1.0,
        other_share=lambda tick: share if works(tick) else 0.0,
    )


def day_and_night(scene: Scene) -> tuple[Inputs, ...]:
    """Many requests by day and few by night; the air follows the day."""
    chance, begin_hour = scene.chance, scene.begin_hour
    least, swing_c = chance.uniform(0.05, 0.4), chance.uniform(3.0, 8.0)
    most = scene.crowd()
    noon_c = scene.hot_c() - chance.uniform(0.0, 12.0)
    return inputs(
        scene,
        ambient_c=lambda at_s: noon_c - swing_c * (1.0 - daylight(begin_hour, at_s)),
        demand=lambda at_s: least + (most - least) * daylight(begin_hour, at_s),
    )


def mixed_day(scene: Scene) -> tuple[Inputs, ...]:
    """A cool night, a hot noon with a busy neighbour, and a low battery at dusk.

    By night the most accurate variant is right; at noon heat and the neighbour leave room for a
    fast one only; at dusk the charger goes, and what is left has to last until it comes back.
    """
    chance, begin_hour = scene.chance, scene.begin_hour
    share, slower = chance.uniform(0.15, 0.5), scene.slower()
    noon_c = scene.hot_c(share) + chance.uniform(-2.0, 2.0)
    swing_c, least = chance.uniform(9.0, 22.0), chance.uniform(0.2, 0.6)
    works = switched(scene, chance.uniform(600.0, 3600.0), chance.uniform(200.0, 1200.0))
    gone_at, back_at = chance.uniform(16.0, 19.0), chance.uniform(21.0, 24.0)
    mains_w = 1.5 * scene.watts(1.0)

    def hour_of(at_s: float) -> float:
        return (begin_hour + at_s / 3600.0) % 24.0

    def busy(tick: int) -> bool:
        return works[tick] and 9.0 <= hour_of(tick * scene.period_s) < 16.0  # noqa: PLR2004

    return inputs(
        scene,
        ambient_c=lambda at_s: noon_c - swing_c * (1.0 - daylight(begin_hour, at_s)),
        demand=lambda at_s: least + (1.0 - least) * daylight(begin_hour, at_s),
        slowdown=lambda tick: slower if busy(tick) else 1.0,
        other_share=lambda tick: share if busy(tick) else 0.0,
        charger_w=lambda at_s: 0.0 if gone_at <= hour_of(at_s) < back_at else mains_w,
    )


def daylight(begin_hour: float, at_s: float) -> float:
    """Return how far the day is from its dead hour: 0 there, and 1 twelve hours later."""
    hour = begin_hour + at_s / 3600.0
    return 0.5 * (1.0 - math.cos(math.tau * (hour - DEAD_HOUR) / 24.0))
