"""A simulated device at work: what its agent reads, and what a variant does to it in a tick.

Rules:
- Pure: how things are and inputs in, how they are then out.
- Latencies and memory are those that the variants declare, on the machine that measured them.
- A sensor that was lost in the trace is lost here.

Source:
    One server and a queue with a bound, taken as a fluid: the wait in a tick is the mean of the
    work that waits at its beginning and at its end. Kleinrock, Queueing Systems, volume 2,
    section 2.7 (fluid approximation).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from agent.replays.board import Board, BoardState, advance, is_off
from agent.replays.traces import Sensed, Tick
from agent.selection.rules import Candidate
from wire.health import HealthSnapshot

QUEUE_REQUESTS: Final = 64
"""Requests that may wait; one more is refused."""

MW_PER_W: Final = 1000.0
MS_PER_S: Final = 1000.0


class World(NamedTuple):
    """How a simulated device is at an instant."""

    state: BoardState
    waiting: float = 0.0
    """Requests in the queue."""

    load_ratio: float = 0.0
    """Share of the last tick in which the processor was busy."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a tick came to."""

    latency_ms: float | None
    """Of a typical request, its wait included; None where nothing served."""

    requests: float
    refused: float
    """Not answered: the queue was full, or nothing served."""

    missed: float
    """Refused, or answered after the deadline."""


def sense(board: Board, world: World, tick: Tick, serving: Candidate | None) -> HealthSnapshot:
    """Return what the agent reads at the beginning of a tick.

    Args:
        board: The board.
        world: How it is.
        tick: The line of the trace.
        serving: The variant in memory.

    Returns:
        The readings; None for each that the trace says was lost.
    """
    state, limits = world.state, board.limits
    free_bytes = (
        board.memory_bytes if tick.inputs.memory_bytes is None else tick.inputs.memory_bytes
    )
    held_bytes = (serving.peak_memory_bytes or 0) if serving else 0
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
        cpu_frequency_ratio=read.cpu_frequency_ratio,
        battery_ratio=read.battery_ratio,
        battery_discharging=read.battery_discharging,
        power_mw=read.power_mw,
        memory_available_bytes=read.memory_available_bytes,
        memory_total_bytes=board.memory_bytes,
        load_ratio=read.load_ratio,
    )


def serve(
    board: Board,
    world: World,
    tick: Tick,
    chosen: Candidate | None,
    *,
    period_s: float,
    deadline_ms: float,
) -> tuple[Served, World]:
    """Serve the requests of a tick with a variant.

    Args:
        board: The board.
        world: How it is at the beginning.
        tick: The line of the trace.
        chosen: The variant; None for none. It declares a latency.
        period_s: Length of the tick.
        deadline_ms: Within which an answer is worth something.

    Returns:
        What the tick came to, and how the device is at its end.
    """
    inputs = tick.inputs
    arrived = inputs.demand_per_s * period_s
    if chosen is None or is_off(board, world.state, inputs):
        after = advance(board, world.state, inputs, work_share=0.0, period_s=period_s)
        nothing = Served(latency_ms=None, requests=arrived, refused=arrived, missed=arrived)
        return nothing, World(after, load_ratio=inputs.other_share)
    alone_s = (chosen.latency_p50_ms or 0.0) / MS_PER_S * inputs.slowdown
    service_s = alone_s / board.frequency_ratio(world.state.temperature_c)
    capacity = period_s / service_s
    offered = world.waiting + arrived
    waiting = max(offered - capacity, 0.0)
    refused = min(max(waiting - QUEUE_REQUESTS, 0.0), arrived)
    waiting -= refused
    latency_s = service_s * (1.0 + (world.waiting + waiting) / 2.0)
    late = latency_s * MS_PER_S > deadline_ms
    work_share = min(offered, capacity) * alone_s / period_s
    after = advance(board, world.state, inputs, work_share=work_share, period_s=period_s)
    busy = min(1.0, min(offered, capacity) * service_s / period_s + inputs.other_share)
    served = Served(
        latency_ms=latency_s * MS_PER_S,
        requests=arrived,
        refused=refused,
        missed=arrived if late else refused,
    )
    return served, World(after, waiting, busy)


def _without_lost(truth: Sensed, recorded: Sensed | None) -> Sensed:
    if recorded is None:
        return truth
    kept = {
        name: getattr(truth, name)
        for name in Sensed.__struct_fields__
        if getattr(recorded, name) is not None
    }
    return Sensed(**kept)
