"""A simulated device that serves several models: one board, one server for each model.

Rules:
- Pure: states and inputs in, next states out. With one model it is `agent.replay.simulation`.
- Models that compute at the same time share the processor: where they want more of it than there
  is, each takes as much longer. How often they meet follows from how busy each was in the tick
  before.
- What loads, computes and idles warms one board and empties one battery.
- Where all together need more memory than there is, the kernel ends the largest worker first.

Source:
    Processor sharing: Kleinrock, Queueing Systems, volume 2, section 4.4; here the mean over which
    of the others compute, as if each did so independently of the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from agent.replay.board import Board, BoardState, advance, is_off
from agent.replay.server import Arrived, Backlog
from agent.replay.simulation import Flow, TickResult, World, flow_of, loaded, nothing
from agent.replay.traces import Tick
from agent.select.decisions import Candidate


class Lane(NamedTuple):
    """The server of one model, and how busy it is."""

    world: World
    """Its state; that of the board in it is the same for all."""

    use: float = 0.0
    """Share of the last tick in which it computed."""


class Passed(NamedTuple):
    """A tick of all models."""

    served: dict[str, TickResult]
    lanes: dict[str, Lane]
    state: BoardState
    load_ratio: float
    """Share of the tick in which the processor was busy."""

    short: tuple[str, ...]
    """Models whose worker the kernel ended, for lack of memory."""


def pass_tick(
    board: Board,
    state: BoardState,
    lanes: Mapping[str, Lane],
    tick: Tick,
    *,
    period_s: float,
    arrived: Mapping[str, Arrived],
    deadlines_ms: Mapping[str, float],
) -> Passed:
    """Simulate a tick.

    Args:
        board: The board.
        state: Its state at the beginning.
        lanes: The servers of the models.
        tick: The line of the trace; the requests in it are not used.
        period_s: Length of the tick.
        arrived: The requests of each model.
        deadlines_ms: Time within which an answer of each model has worth.

    Returns:
        What came of it.
    """
    worlds = {name: lane.world._replace(state=state) for name, lane in lanes.items()}
    if is_off(board, state, tick.inputs):
        after = advance(board, state, tick.inputs, work_share=0.0, period_s=period_s)
        lost = {
            name: nothing(world, tick, period_s, arrived[name]) for name, world in worlds.items()
        }
        return Passed(lost, {name: Lane(World(after)) for name in lanes}, after, 0.0, ())
    begun = {name: loaded(world, period_s) for name, world in worlds.items()}
    loading = min(math.fsum(share for share, _ in begun.values()), 1.0)
    short = _short(board, tick, {name: world.serving for name, (_, world) in begun.items()})
    flows: dict[str, tuple[Flow, float] | None] = {}
    for name, (_, world) in begun.items():
        others = [lane.use for key, lane in lanes.items() if key != name]
        slower = stretch(board.cpu_share, others)
        inputs = msgspec.structs.replace(tick.inputs, slowdown=tick.inputs.slowdown * slower)
        flow = None
        if name not in short:
            there = msgspec.structs.replace(tick, inputs=inputs)
            flow = flow_of(
                board, world, there, arrived[name], loading, period_s, deadlines_ms[name]
            )
        flows[name] = None if flow is None else (flow, slower)
    # One that is slowed by others works no more for it.
    work = math.fsum(f.work_s / slower for f, slower in filter(None, flows.values()))
    work_share = work / period_s * board.cpu_share + loading
    after = advance(board, state, tick.inputs, work_share=work_share, period_s=period_s)
    served, ends, busy = {}, {}, loading
    is_severe = state.temperature_c >= board.limits.severe_c
    for name, (share, world) in begun.items():
        result, ends[name], taken = _ended(
            flows[name], world, share, period_s, board.cpu_share, after
        )
        busy += taken
        if result is None:
            result = nothing(worlds[name], tick, period_s, arrived[name])
        served[name] = msgspec.structs.replace(result, worth=0.0) if is_severe else result
    load_ratio = min(busy + tick.inputs.other_share, 1.0)
    return Passed(served, ends, after, load_ratio, short)


def stretch(share: float, uses: Sequence[float]) -> float:
    """Return how much longer a request takes by others that compute at the same time.

    Args:
        share: Share of the processor that one computing request takes.
        uses: The probability that each of the others computes.
    """
    mean = 0.0
    for computing in itertools.product((False, True), repeat=len(uses)):
        chance = math.prod(
            use if on else 1.0 - use for use, on in zip(uses, computing, strict=True)
        )
        mean += chance * max(share * (1 + sum(computing)), 1.0)
    return max(mean, 1.0)  # the chances are not exact


def _ended(
    passed: tuple[Flow, float] | None,
    world: World,
    loading: float,
    period_s: float,
    share: float,
    after: BoardState,
) -> tuple[TickResult | None, Lane, float]:
    """Return what a model served, its server afterwards, and the processor's share it took."""
    if passed is None:
        idle = world._replace(
            state=after, waiting=0.0, backlog=Backlog(), observed=None, answers=()
        )
        return None, Lane(idle), 0.0
    flow, slower = passed
    busy = flow.busy_s / period_s
    observed = flow.observed and msgspec.structs.replace(
        flow.observed,
        own_load=min(flow.observed.compute_s / period_s * share / slower + loading, 1.0),
        cpu_share=share / slower,
        mixed=flow.observed.mixed or loading > 0.0,
    )
    lane = Lane(flow.world._replace(state=after, observed=observed), min(busy, 1.0))
    return flow.served, lane, busy * share / slower


def _short(board: Board, tick: Tick, serving: Mapping[str, Candidate | None]) -> tuple[str, ...]:
    """Return the models whose workers are ended until the others fit into memory."""
    free_bytes = tick.inputs.memory_bytes
    there = board.memory_bytes if free_bytes is None else free_bytes
    needs = {name: c.peak_memory_bytes or 0 for name, c in serving.items() if c is not None}
    ended = []
    for name in sorted(needs, key=lambda key: (-needs[key], key)):
        if sum(needs.values()) <= there:
            break
        del needs[name]
        ended.append(name)
    return tuple(ended)
