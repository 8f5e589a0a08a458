"""What the agent on a simulated device reads.

Rules:
- Pure: board, state and line of the trace in, readings out.
- A reading that is missing in the trace is missing here.
"""

from __future__ import annotations

from typing import Final

from agent.replay.board import WH_J, Board
from agent.replay.sensors import SensorError
from agent.replay.simulation import World
from agent.replay.traces import Sensed, Tick
from wire.health import HealthSnapshot

MW_PER_W: Final = 1000.0
NO_ERROR: Final = SensorError()


def sense(
    board: Board,
    world: World,
    tick: Tick,
    error: SensorError = NO_ERROR,
    *,
    begins_local_s: float = 0.0,
) -> HealthSnapshot:
    """Return what the agent reads at the beginning of a tick.

    Args:
        board: The board.
        world: The state of the device.
        tick: The line of the trace.
        error: What is random about the readings.
        begins_local_s: Local time of day at the trace's first tick; its wall time is 0.

    Returns:
        The readings; None for each that is missing in the trace, or that no sensor gives.
    """
    state, limits, sensors = world.state, board.limits, board.sensors
    free_bytes = (
        board.memory_bytes if tick.inputs.memory_bytes is None else tick.inputs.memory_bytes
    )
    held_bytes = (world.serving.peak_memory_bytes or 0) if world.serving else 0
    net_w = state.draw_w - tick.inputs.charger_w
    charge, has_battery = state.charge_ratio, state.charge_ratio is not None
    followed_c = state.temperature_c if state.followed_c is None else state.followed_c
    truth = Sensed(
        temperature_c=sensors.temperature_c(followed_c, error),
        cpu_frequency_ratio=state.frequency_ratio(board),
        battery_ratio=None if charge is None else sensors.charge_ratio(charge),
        battery_discharging=net_w > 0.0 if has_battery else None,
        power_mw=max(net_w, 0.0) * MW_PER_W if has_battery and sensors.has_power_gauge else None,
        memory_available_bytes=max(free_bytes - held_bytes, 0),
        load_ratio=world.load_ratio,
    )
    read = _without_lost(truth, tick.sensed)
    celsius = read.temperature_c
    return HealthSnapshot(
        at_s=tick.at_s,
        utc_offset_s=begins_local_s,
        temperature_c=celsius,
        headroom=None
        if celsius is None
        else (celsius - limits.nominal_c) / (limits.severe_c - limits.nominal_c),
        fan_ratio=state.fan_step / len(board.fan.steps) if board.fan else None,
        cpu_frequency_ratio=read.cpu_frequency_ratio,
        # The boards here run as fast as they may.
        cpu_frequency_limit_ratio=read.cpu_frequency_ratio,
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


def _without_lost(truth: Sensed, recorded: Sensed | None) -> Sensed:
    if recorded is None:
        return truth
    kept = {
        name: getattr(truth, name)
        for name in Sensed.__struct_fields__
        if getattr(recorded, name) is not None
    }
    return Sensed(**kept)
