"""A simulated device that serves: the effects of a variant on it in a tick.

Rules:
- Pure: state and inputs in, next state out.
- Latencies and memory are those that the variants declare, on the machine that measured them.
- While a variant is being loaded, the one before it serves, slowed down by the loading.
- A variant that needs more memory than there is does not answer: the kernel ends its worker.

Source:
    One server and a queue with a bound: request by request (`agent.replay.server`), or for a trace
    without single requests as a fluid, where the wait in a tick is the mean of the work that waits
    at its beginning and at its end. Kleinrock, Queueing Systems, volume 2, section 2.7 (fluid
    approximation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from agent.replay.board import Board, BoardState, advance, is_off
from agent.replay.server import QUEUE_REQUESTS, Answer, Arrived, Backlog, Service
from agent.replay.traces import Tick
from agent.select.decisions import Candidate, Decision
from agent.select.estimates import Observed

LOADING_SHARE: Final = 0.25
"""Share of the processor that loading takes: one core of four, which reads and prepares a model."""

MS_PER_S: Final = 1000.0


class World(NamedTuple):
    """The state of a simulated device at one time."""

    state: BoardState
    waiting: float = 0.0
    """Requests in the queue, if they are a flow."""

    backlog: Backlog = Backlog()
    """Requests that wait or are being served, if they are single ones."""

    load_ratio: float = 0.0
    """Share of the last tick in which the processor was busy."""

    serving: Candidate | None = None
    coming: Candidate | None = None
    """The variant that is being loaded."""

    loading_s: float = 0.0
    """Time until it is loaded."""

    is_handover: bool = False
    """Whether the variant before has ended for the one that is being loaded: requests wait."""

    loads: bool = True
    """Whether the next variant takes time to load."""

    observed: Observed | None = None
    """The agent's observations of serving in the last tick."""

    answers: tuple[Answer, ...] = ()
    """Single requests that were answered in the last tick."""


class TickResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a tick."""

    latency_ms: float | None
    """Mean latency of the answers, waits included; None without any. If requests are a flow, the
    latency of a typical one."""

    requests: float
    """Requests that arrived."""

    refused: float
    """Requests without an answer: the queue was full, or nothing served."""

    missed: float
    """Requests refused, or answered after the deadline. A single request counts when it is refused
    or answered, which may be ticks after its arrival; one of a flow counts when it arrives."""

    answered: float = 0.0
    retained: float | None = 0.0
    """Sum of the retention of the answers; None if that of one is unknown."""

    worth: float | None = 0.0
    """Requests answered in time while the board was below severe heat, times the retention; None
    if the retention of the variant is unknown."""


def switch(world: World, decision: Decision, candidates: Mapping[str, Candidate]) -> World:
    """Begin to carry out a decision; the serving variant goes on until the new one is loaded.

    Args:
        world: The state of the device.
        decision: The decision.
        candidates: The variants by name.

    Returns:
        The state afterwards.
    """
    chosen = candidates.get(decision.variant or "")
    if chosen is world.serving:
        return world
    if chosen is None:
        return world._replace(serving=None)
    return start_loading(world, chosen, gap=decision.switch is not None and decision.switch.gap)


def start(board: Board, *, at_work: bool) -> World:
    """Return the device at the beginning of a trace.

    Args:
        board: The board.
        at_work: Whether the variant that is chosen first is loaded already.
    """
    return World(board.start(), loads=not at_work)


def start_loading(world: World, chosen: Candidate, *, gap: bool) -> World:
    """Begin to load a variant.

    Args:
        world: The state of the device.
        chosen: The variant.
        gap: Whether the serving variant ends before, because both do not fit into memory.

    Returns:
        The state afterwards.
    """
    return world._replace(
        serving=None if gap else world.serving,
        is_handover=gap and world.serving is not None,
        coming=chosen,
        loading_s=chosen.load_s if world.loads else 0.0,
        loads=True,
    )


def serve(
    board: Board,
    world: World,
    tick: Tick,
    *,
    period_s: float,
    deadline_ms: float,
    arrived: Arrived | None = None,
) -> tuple[TickResult, World]:
    """Simulate a tick.

    Args:
        board: The board.
        world: The state of the device at the beginning.
        tick: The line of the trace.
        period_s: Length of the tick.
        deadline_ms: Time within which an answer has worth.
        arrived: The requests; None if they are a flow.

    Returns:
        The results of the tick, and the state of the device at its end.
    """
    inputs = tick.inputs
    if is_off(board, world.state, inputs):
        after = advance(board, world.state, inputs, work_share=0.0, period_s=period_s)
        return nothing(world, tick, period_s, arrived), World(after)
    loading, world = loaded(world, period_s)
    flow = None
    if not is_short(board, tick, world.serving):
        flow = flow_of(board, world, tick, arrived, loading, period_s, deadline_ms)
    if flow is None:
        after = advance(board, world.state, inputs, work_share=loading, period_s=period_s)
        busy = min(inputs.other_share + loading, 1.0)
        return nothing(world, tick, period_s, arrived), world._replace(
            state=after, waiting=0.0, backlog=Backlog(), load_ratio=busy, observed=None, answers=()
        )
    share = board.cpu_share
    work_share = flow.work_s / period_s * share + loading
    after = advance(board, world.state, inputs, work_share=work_share, period_s=period_s)
    own_load = min(flow.busy_s / period_s * share + loading, 1.0)
    served = flow.served
    if world.state.temperature_c >= board.limits.severe_c:
        served = msgspec.structs.replace(served, worth=0.0)
    observed = flow.observed and msgspec.structs.replace(
        flow.observed,
        own_load=min(flow.observed.compute_s / period_s * share + loading, 1.0),
        cpu_share=share,
        mixed=flow.observed.mixed or loading > 0.0,
    )
    return served, flow.world._replace(
        state=after, load_ratio=min(1.0, own_load + inputs.other_share), observed=observed
    )


def loaded(world: World, period_s: float) -> tuple[float, World]:
    """Return the share of the processor that loading takes in a tick, and the state with it.

    Args:
        world: The state of the device at the beginning.
        period_s: Length of the tick.
    """
    loading = min(world.loading_s / period_s, 1.0) * LOADING_SHARE
    if world.coming is not None and world.loading_s <= period_s:
        # It serves for the whole tick in which it is loaded: a part of a tick has no own figures.
        return loading, world._replace(
            serving=world.coming, coming=None, loading_s=0.0, is_handover=False
        )
    return loading, world._replace(loading_s=max(world.loading_s - period_s, 0.0))


class _Speed(NamedTuple):
    """How fast the serving variant answers in a tick."""

    serving: Candidate
    alone_s: float
    """Median at full frequency."""

    service_s: float
    """Median as it is."""


class Flow(NamedTuple):
    """What the server did in a tick, before its effects on the board."""

    served: TickResult
    """As on a board that is not too hot."""

    world: World
    observed: Observed | None
    work_s: float
    """Time that the work would have taken at full frequency."""

    busy_s: float


def nothing(world: World, tick: Tick, period_s: float, arrived: Arrived | None) -> TickResult:
    """Return the results of a tick in which nothing answers; arguments as for `flow_of`."""
    count = refused = tick.inputs.demand_per_s * period_s
    if arrived is not None:
        count, refused = len(arrived.requests), len(arrived.requests) + world.backlog.requests
    return TickResult(latency_ms=None, requests=count, refused=refused, missed=refused)


def flow_of(
    board: Board,
    world: World,
    tick: Tick,
    arrived: Arrived | None,
    loading: float,
    period_s: float,
    deadline_ms: float,
) -> Flow | None:
    """Return what the server does in a tick; None if no request waits or is served.

    `loading` is the share of the processor that the loading of a variant takes; the other arguments
    are those of `serve`.
    """
    serving, inputs = world.serving, tick.inputs
    if serving is None:
        # Single requests wait while one variant replaces another.
        waits = arrived is not None and world.coming is not None and world.is_handover
        return _passed(world, None, arrived, period_s, deadline_ms) if waits and arrived else None
    here = board.slowdowns.get(serving.name, 1.0) * inputs.slowdown
    alone_s = (serving.latency_p50_ms or 0.0) / MS_PER_S * here
    frequency = world.state.frequency_ratio(board)
    speed = _Speed(serving, alone_s, alone_s / frequency / (1.0 - loading))
    if arrived is None:
        return _flowed(world, speed, inputs.demand_per_s * period_s, period_s, deadline_ms)
    return _passed(world, speed, arrived, period_s, deadline_ms)


def _flowed(
    world: World, speed: _Speed, arrived: float, period_s: float, deadline_ms: float
) -> Flow:
    """Return what the server does with a flow of requests."""
    serving, service_s = speed.serving, speed.service_s
    capacity = period_s / service_s
    offered = world.waiting + arrived
    waiting = max(offered - capacity, 0.0)
    refused = min(max(waiting - QUEUE_REQUESTS, 0.0), arrived)
    waiting -= refused
    latency_ms = service_s * (1.0 + (world.waiting + waiting) / 2.0) * MS_PER_S
    answered = min(offered, capacity)
    taken, missed = arrived - refused, arrived if latency_ms > deadline_ms else refused
    served = TickResult(
        latency_ms=latency_ms,
        requests=arrived,
        refused=refused,
        missed=missed,
        answered=taken,
        retained=_times(serving.accuracy, taken),
        worth=_times(serving.accuracy, arrived - missed),
    )
    observed = _observed(
        serving,
        arrived,
        answered,
        in_time=0.0 if latency_ms > deadline_ms else answered,
        compute_s=answered * service_s,
        latency_ms=latency_ms,
    )
    return Flow(
        served,
        world._replace(waiting=waiting),
        msgspec.structs.replace(observed, waiting=waiting),
        work_s=answered * speed.alone_s,
        busy_s=answered * service_s,
    )


def _passed(
    world: World, speed: _Speed | None, arrived: Arrived, period_s: float, deadline_ms: float
) -> Flow:
    """Return what the server does with single requests."""
    serving = speed.serving if speed else None
    service = (
        Service(serving.name, serving.accuracy, speed.service_s) if serving and speed else None
    )
    passage = arrived.passed(world.backlog, service, period_s=period_s, deadline_ms=deadline_ms)
    answered = len(passage.answers)
    served = TickResult(
        latency_ms=passage.latency_ms,
        requests=passage.requests,
        refused=passage.refused,
        missed=passage.refused + passage.late,
        answered=answered,
        retained=passage.retained,
        worth=passage.retained_in_time,
    )
    observed = None
    if serving is not None:
        observed = _observed(
            serving,
            passage.requests,
            answered,
            in_time=answered - passage.late,
            compute_s=passage.compute_s,
            latency_ms=passage.latency_ms,
            log_variance=passage.log_variance,
            # Only the first answer can be one that the variant before began.
            mixed=any(a.variant != serving.name for a in passage.answers[:1]),
        )
        observed = msgspec.structs.replace(
            observed, waiting=passage.backlog.requests, together=arrived.together
        )
    # A request of the variant before may end here; the board's model tells only how busy it was.
    slowed = speed.alone_s / speed.service_s if speed else 1.0
    return Flow(
        served,
        world._replace(backlog=passage.backlog, answers=passage.answers),
        observed,
        work_s=passage.busy_s * slowed,
        busy_s=passage.busy_s,
    )


def _observed(
    serving: Candidate,
    requests: float,
    answered: float,
    *,
    in_time: float,
    compute_s: float,
    latency_ms: float | None,
    log_variance: float | None = None,
    mixed: bool = False,
) -> Observed:
    return Observed(
        variant=serving.name,
        alone_ms=serving.latency_p50_ms,
        held_bytes=serving.peak_memory_bytes or 0,
        requests=requests,
        answered=answered,
        in_time=in_time,
        samples=answered,
        compute_s=compute_s,
        latency_ms=latency_ms,
        log_variance=log_variance,
        own_load=0.0,
        mixed=mixed,
    )


def _times(retention: float | None, count: float) -> float | None:
    if not count:
        return 0.0
    return None if retention is None else count * retention


def is_short(
    board: Board, tick: Tick, chosen: Candidate | None, *, beside: Candidate | None = None
) -> bool:
    """Tell whether a variant, or two beside each other, need more memory than there is."""
    free_bytes = tick.inputs.memory_bytes
    there = board.memory_bytes if free_bytes is None else free_bytes
    held = sum((c.peak_memory_bytes or 0) for c in (chosen, beside) if c is not None)
    return held > there
