"""A simulated device that serves: its readings, and the effects of a variant on it in a tick.

Rules:
- Pure: state and inputs in, next state out.
- Latencies and memory are those that the variants declare, on the machine that measured them.
- A reading that is missing in the trace is missing here.
- While a variant is being loaded, the one before it serves, slowed down by the loading.
- A variant that needs more memory than there is does not answer: the kernel ends its worker.

Source:
    One server and a queue with a bound, taken as a fluid: the wait in a tick is the mean of the
    work that waits at its beginning and at its end. Kleinrock, Queueing Systems, volume 2,
    section 2.7 (fluid approximation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from agent.replay.board import WH_J, Board, BoardState, advance, is_off
from agent.replay.traces import Sensed, Tick
from agent.select.decisions import UNKNOWN_LOAD_MS, Candidate, Decision
from agent.select.estimates import Observed
from wire.health import HealthSnapshot

QUEUE_REQUESTS: Final = 64
"""Requests that may wait; one more is refused."""

LOADING_SHARE: Final = 0.25
"""Share of the processor that loading takes: one core of four, which reads and prepares a model."""

MW_PER_W: Final = 1000.0
MS_PER_S: Final = 1000.0


class World(NamedTuple):
    """The state of a simulated device at one time."""

    state: BoardState
    waiting: float = 0.0
    """Requests in the queue."""

    load_ratio: float = 0.0
    """Share of the last tick in which the processor was busy."""

    serving: Candidate | None = None
    coming: Candidate | None = None
    """The variant that is being loaded."""

    loading_s: float = 0.0
    """Time until it is loaded."""

    loads: bool = True
    """Whether the next variant takes time to load."""

    observed: Observed | None = None
    """The agent's observations of serving in the last tick."""


class TickResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a tick."""

    latency_ms: float | None
    """Latency of a typical request, its wait included; None if nothing served."""

    requests: float
    refused: float
    """Requests without an answer: the queue was full, or nothing served."""

    missed: float
    """Requests refused, or answered after the deadline."""

    worth: float | None = 0.0
    """Requests answered in time while the board was below severe heat, times the retention; None
    if the retention of the variant is unknown."""


def sense(board: Board, world: World, tick: Tick) -> HealthSnapshot:
    """Return what the agent reads at the beginning of a tick.

    Args:
        board: The board.
        world: The state of the device.
        tick: The line of the trace.

    Returns:
        The readings; None for each that is missing in the trace.
    """
    state, limits = world.state, board.limits
    free_bytes = (
        board.memory_bytes if tick.inputs.memory_bytes is None else tick.inputs.memory_bytes
    )
    held_bytes = (world.serving.peak_memory_bytes or 0) if world.serving else 0
    net_w = state.draw_w - tick.inputs.charger_w
    has_battery = state.charge_ratio is not None
    truth = Sensed(
        temperature_c=state.temperature_c,
        cpu_frequency_ratio=board.frequency_ratio(state.temperature_c),
        battery_ratio=state.charge_ratio,
        battery_discharging=net_w > 0.0 if has_battery else None,
        power_mw=max(net_w, 0.0) * MW_PER_W if has_battery else None,
        memory_available_bytes=max(free_bytes - held_bytes, 0),
        load_ratio=world.load_ratio,
    )
    read = _without_lost(truth, tick.sensed)
    celsius = read.temperature_c
    return HealthSnapshot(
        at_s=tick.at_s,
        temperature_c=celsius,
        headroom=None
        if celsius is None
        else (celsius - limits.nominal_c) / (limits.severe_c - limits.nominal_c),
        fan_ratio=float(state.fan_on) if board.fan else None,
        cpu_frequency_ratio=read.cpu_frequency_ratio,
        battery_ratio=read.battery_ratio,
        battery_discharging=read.battery_discharging,
        power_mw=read.power_mw,
        memory_available_bytes=read.memory_available_bytes,
        memory_total_bytes=board.memory_bytes,
        load_ratio=read.load_ratio,
        cpu_busy_ratio=read.load_ratio,
        battery_energy_j=None
        if read.battery_ratio is None or board.battery_wh is None
        else read.battery_ratio * board.battery_wh * WH_J,
    )


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
    load_ms = UNKNOWN_LOAD_MS if chosen.load_ms is None else chosen.load_ms
    return world._replace(
        serving=None if gap else world.serving,
        coming=chosen,
        loading_s=load_ms / MS_PER_S if world.loads else 0.0,
        loads=True,
    )


def serve(
    board: Board, world: World, tick: Tick, *, period_s: float, deadline_ms: float
) -> tuple[TickResult, World]:
    """Simulate a tick.

    Args:
        board: The board.
        world: The state of the device at the beginning.
        tick: The line of the trace.
        period_s: Length of the tick.
        deadline_ms: Time within which an answer has worth.

    Returns:
        The results of the tick, and the state of the device at its end.
    """
    inputs = tick.inputs
    arrived = inputs.demand_per_s * period_s
    if is_off(board, world.state, inputs):
        after = advance(board, world.state, inputs, work_share=0.0, period_s=period_s)
        nothing = TickResult(latency_ms=None, requests=arrived, refused=arrived, missed=arrived)
        return nothing, World(after)
    loading = min(world.loading_s / period_s, 1.0) * LOADING_SHARE
    if world.coming is not None and world.loading_s <= period_s:
        # It serves for the whole tick in which it is loaded: a part of a tick has no own figures.
        world = world._replace(serving=world.coming, coming=None, loading_s=0.0)
    else:
        world = world._replace(loading_s=max(world.loading_s - period_s, 0.0))
    serving = world.serving
    if serving is None or is_short(board, tick, serving):
        after = advance(board, world.state, inputs, work_share=loading, period_s=period_s)
        nothing = TickResult(latency_ms=None, requests=arrived, refused=arrived, missed=arrived)
        busy = min(inputs.other_share + loading, 1.0)
        return nothing, world._replace(state=after, waiting=0.0, load_ratio=busy, observed=None)
    here = board.slowdowns.get(serving.name, 1.0) * inputs.slowdown
    alone_s = (serving.latency_p50_ms or 0.0) / MS_PER_S * here
    service_s = alone_s / board.frequency_ratio(world.state.temperature_c) / (1.0 - loading)
    capacity = period_s / service_s
    offered = world.waiting + arrived
    waiting = max(offered - capacity, 0.0)
    refused = min(max(waiting - QUEUE_REQUESTS, 0.0), arrived)
    waiting -= refused
    latency_s = service_s * (1.0 + (world.waiting + waiting) / 2.0)
    late = latency_s * MS_PER_S > deadline_ms
    answered = min(offered, capacity)
    share = board.cpu_share
    work_share = answered * alone_s / period_s * share + loading
    after = advance(board, world.state, inputs, work_share=work_share, period_s=period_s)
    own_load = min(answered * service_s / period_s * share + loading, 1.0)
    served = TickResult(
        latency_ms=latency_s * MS_PER_S,
        requests=arrived,
        refused=refused,
        missed=arrived if late else refused,
        worth=_worth(board, world, arrived, arrived if late else refused),
    )
    observed = Observed(
        variant=serving.name,
        alone_ms=serving.latency_p50_ms,
        held_bytes=serving.peak_memory_bytes or 0,
        requests=arrived,
        answered=answered,
        samples=answered,
        compute_s=answered * service_s,
        latency_ms=latency_s * MS_PER_S,
        own_load=own_load,
        cpu_share=share,
        mixed=loading > 0.0,
    )
    busy = min(1.0, own_load + inputs.other_share)
    return served, world._replace(state=after, waiting=waiting, load_ratio=busy, observed=observed)


def _worth(board: Board, world: World, arrived: float, missed: float) -> float | None:
    if world.state.temperature_c >= board.limits.severe_c or arrived == missed:
        return 0.0
    retention = world.serving.accuracy if world.serving else None
    return None if retention is None else (arrived - missed) * retention


def is_short(
    board: Board, tick: Tick, chosen: Candidate | None, *, beside: Candidate | None = None
) -> bool:
    """Tell whether a variant, or two beside each other, need more memory than there is."""
    free_bytes = tick.inputs.memory_bytes
    there = board.memory_bytes if free_bytes is None else free_bytes
    held = sum((c.peak_memory_bytes or 0) for c in (chosen, beside) if c is not None)
    return held > there


def _without_lost(truth: Sensed, recorded: Sensed | None) -> Sensed:
    if recorded is None:
        return truth
    kept = {
        name: getattr(truth, name)
        for name in Sensed.__struct_fields__
        if getattr(recorded, name) is not None
    }
    return Sensed(**kept)
