"""The best that anybody could have done over a trace, who had known it all.

Dynamic programming forward over the ticks: of all ways that lead to about the same state of the
board the one that was worth most is kept. States are binned, so a way that is a little better may
be lost. Each way is simulated exactly, not at the middle of its bin, so the score is that of a way
that exists: a lower bound of the best. A merge of ways loses at most what one bin of temperature,
charge and backlog is worth. A way is dropped, too, if another one is preferable in every respect; a
cooler board counts as preferable, although it may switch its fan on later. On short traces of
single requests the score is mostly that of an exhaustive search
(`tests/unit/benchmarks/policies/test_oracle.py`).

Rules:
- Pure; the same board, queue and price of a switch as for the policies.
- It moves as a policy does: at the beginning of a tick, and not while a variant is loaded.

Source:
    Bellman, Dynamic Programming (1957); forward, as Held and Karp (1962).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from operator import le
from typing import Final, NamedTuple

from agent.errors import ReplayError
from agent.replay.board import is_off
from agent.replay.server import Arrived
from agent.replay.simulation import World, is_short, serve, start, start_loading
from agent.replay.traces import Trace
from agent.replay.variants import checked
from agent.select.decisions import Candidate

SWITCH_WORTH: Final = 1.0
"""What a switch costs: as much as one answer of the reference."""

TEMPERATURE_BIN_C: Final = 0.5
CHARGE_BIN: Final = 0.002
WAITING_BIN: Final = 2.0
FREE_BINS: Final = 4.0
"""Bins within a deadline for the time until the server is free."""

WIDEST: Final = 64
"""Bins that `most_ways` makes one."""

MS_PER_S: Final = 1000.0


class Burden(NamedTuple):
    """What a way has to carry further, in bins: the less, the better."""

    temperature: int
    case: int
    discharge: int
    waiting: int
    busy: int


class Key(NamedTuple):
    """Ways with the same key count as equal but for their scores."""

    serving: Hashable
    """What serves and what is being loaded, with the steps of fan and governor."""

    burden: Burden


class Way(NamedTuple):
    """One way through the trace so far."""

    score: float
    world: World
    served: tuple[object, ...]
    """Names of what served, newest first, as nested pairs."""

    switches: int
    severe: int = 0
    """Ticks that began at or above severe heat."""


class Best(NamedTuple):
    """The best way through a trace."""

    score: float
    """Worth of all answers, less that of the switches."""

    variants: tuple[str | None, ...]
    """What served in each tick."""

    switches: int
    severe_s: float = 0.0
    """Time at or above severe heat."""


def best_possible(
    trace: Trace,
    candidates: Sequence[Candidate],
    *,
    deadline_ms: float | None = None,
    every: int = 1,
    most_ways: int | None = None,
) -> Best:
    """Return the best way through a trace.

    Args:
        trace: The surroundings over time.
        candidates: The variants that there are; a benched one never serves.
        deadline_ms: In place of that of the trace.
        every: It moves only in each of so many ticks: a coarser search, of ways that exist as well.
        most_ways: With more ways than this, bins are widened until fewer are left.

    Returns:
        What it is worth, and how it goes.

    Raises:
        ReplayError: A variant declares no latency, memory or accuracy.
    """
    able = [c for c in checked(candidates).values() if not c.benched]
    for c in able:
        if c.accuracy is None:
            raise ReplayError(f"variant {c.name!r} declares no accuracy")
    header = trace.header
    limit_ms = header.deadline_ms if deadline_ms is None else deadline_ms
    ways = [Way(0.0, start(header.board, at_work=header.at_work), (), 0)]
    for number, (tick, requests) in enumerate(zip(trace.ticks, trace.arrivals(), strict=True)):
        # Ways with equal backlogs and speeds share one passage of the requests.
        arrived = None if requests is None else Arrived(requests)
        kept: dict[Key, Way] = {}
        for way in ways:
            stays = is_off(header.board, way.world.state, tick.inputs) or (
                number % every > 0 and way.world.serving is not None
            )
            severe = way.severe + (way.world.state.temperature_c >= header.board.limits.severe_c)
            for choice in _choices(way.world, able, stays=stays):
                world, changes = way.world, 0
                if choice is not None and choice is not world.serving:
                    changes = int(world.serving is not None)
                    gap = is_short(header.board, tick, choice, beside=world.serving)
                    world = start_loading(world, choice, gap=gap)
                served, after = serve(
                    header.board,
                    world,
                    tick,
                    period_s=header.period_s,
                    deadline_ms=limit_ms,
                    arrived=arrived,
                )
                score = way.score + (served.worth or 0.0) - SWITCH_WORTH * changes
                key = _key(after, limit_ms)
                if key not in kept or kept[key].score < score:
                    name = after.serving.name if after.serving else None
                    served_by = (name, way.served)
                    kept[key] = Way(score, after, served_by, way.switches + changes, severe)
        ways = _undominated(kept)
        if most_ways is not None:
            ways = _thinned(ways, most_ways, limit_ms)
    best = max(ways, key=lambda way: way.score)
    return Best(best.score, _unrolled(best.served), best.switches, best.severe * header.period_s)


def _choices(
    world: World, candidates: Sequence[Candidate], *, stays: bool
) -> Sequence[Candidate | None]:
    if stays or world.coming is not None or not candidates:
        return (None,)
    return candidates


def _key(world: World, deadline_ms: float) -> Key:
    state, running = world.state, world.backlog.running
    free_ms = running.ready_s * MS_PER_S if running else 0.0
    case_c = state.temperature_c if state.case_c is None else state.case_c
    return Key(
        (
            world.serving.name if world.serving else None,
            world.coming.name if world.coming else None,
            round(world.loading_s, 3),
            state.fan_step,
            state.governor_step,
        ),
        Burden(
            round(state.temperature_c / TEMPERATURE_BIN_C),
            round(case_c / TEMPERATURE_BIN_C),
            -round((state.charge_ratio or 0.0) / CHARGE_BIN),
            round((world.waiting or len(world.backlog.waiting)) / WAITING_BIN),
            round(free_ms / deadline_ms * FREE_BINS),
        ),
    )


def _undominated(kept: Mapping[Key, Way]) -> list[Way]:
    """Return the ways without those to which another one is preferable in every respect.

    A way is preferable if it serves the same, carries no more in any part of its burden, and is
    worth as much even if the other answers all that waits in time.
    """
    front: dict[Hashable, list[Burden]] = {}
    found = []
    hopes = [(way.score + way.world.backlog.requests, key, way) for key, way in kept.items()]
    for _, key, way in sorted(hopes, key=lambda row: (-row[0], row[1].burden)):
        ahead = front.setdefault(key.serving, [])
        if not any(all(map(le, burden, key.burden)) for burden in ahead):
            ahead.append(key.burden)
            found.append(way)
    return found


def _thinned(ways: list[Way], most: int, deadline_ms: float) -> list[Way]:
    """Return at most so many ways: of each wider bin the best, and of those the best."""
    width = 1
    while len(ways) > most and width < WIDEST:
        width *= 2
        kept: dict[Hashable, Way] = {}
        for way in ways:
            key = _key(way.world, deadline_ms)
            wide = (key.serving, tuple(part // width for part in key.burden))
            if wide not in kept or kept[wide].score < way.score:
                kept[wide] = way
        ways = list(kept.values())
    return sorted(ways, key=lambda way: -way.score)[:most]


def _unrolled(served: tuple[object, ...]) -> tuple[str | None, ...]:
    names: list[str | None] = []
    while served:
        name, served = served  # type: ignore[assignment]  # a nested pair
        names.append(name)  # type: ignore[arg-type]  # of which this is the name
    return tuple(reversed(names))
