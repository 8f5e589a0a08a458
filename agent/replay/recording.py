"""Turns readings of a device into ticks of a trace: estimates the inputs behind the readings.

Rules:
- Pure: two samples of the device in, ticks of a trace out.
- With these inputs the replay's own model gives the same readings. So they are only as good as the
  figures of the board: a wrong resistance or power shows as a wrong ambient temperature.
- A value without a reading keeps its last known value. A value that was never known is neutral: no
  demand, no slowdown, no load of other programs.

Source:
    Ambient temperature: the board's model runs beside the recording, and a proportional-integral
    observer turns the error between its temperature and the recorded one into the ambient that
    removes it; both poles of the error are those of half the board's time constant. The charger's
    power is found in the same way from the charge. Ogata, Discrete-Time Control Systems, 2nd
    edition, section 6-5 (pole placement).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from agent.replay.board import WH_J, Board, BoardState, Inputs, advance
from agent.replay.heat import MAX
from agent.replay.traces import Sensed, Tick

AMBIENT_MIN_C, AMBIENT_MAX_C = -40.0, 85.0
"""The range that industrial boards are made for."""

ASSUMED_AMBIENT_C: Final = 25.0
"""Used if no temperature was ever read."""

SLOWDOWN_MIN, SLOWDOWN_MAX = 1e-3, 1e3
MS_PER_S, MW_PER_W = 1000.0, 1000.0
FULL_RATIO: Final = 0.99
CHARGE_FOLLOW_S: Final = 600.0
"""Time in which the modelled charge follows the recorded one, which is read in whole percent."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's figures; its counters only grow until the agent starts again."""

    pid: int
    release: str | None = None
    variant: str | None = None
    """The variant that serves now."""

    declared_ms: float | None = None
    """The latency that it declares."""

    requests: float = 0.0
    answered: float = 0.0
    """Requests that this variant answered."""

    compute_s: float = 0.0
    """Time in the runtime for these answers."""


class Sample(NamedTuple):
    """Everything that was read at one time."""

    at_s: float
    """Time of the monotonic clock."""

    sensed: Sensed
    busy_s: float | None = None
    """Busy time since the device started, mean over the processors."""

    own_s: Mapping[int, float] = MappingProxyType({})
    """The part of `busy_s` that the workers and the recording took, by process."""

    held_bytes: int = 0
    """Memory that would be free without the workers."""

    figures: Figures | None = None
    """None if no agent answered."""


class Terms(NamedTuple):
    """The constants of a recording."""

    board: Board
    period_s: float


class BoardObserver(NamedTuple):
    """The board's model that runs beside the recording, and the last known values."""

    state: BoardState
    ambient_c: float | None = None
    """The estimate so far; None before the first tick."""

    surplus_w: float = 0.0
    """Power of the charger beyond the draw, the estimate so far."""

    slowdown: float = 1.0
    memory_bytes: int | None = None
    error_c: float | None = None
    """Recorded minus modelled temperature of the last tick; None without a reading."""


def begin(board: Board) -> BoardObserver:
    """Return an observer for a board in its first state."""
    return BoardObserver(board.start())


def ticks(
    terms: Terms,
    observer: BoardObserver,
    before: Sample,
    after: Sample,
    *,
    first: int,
    count: int = 1,
) -> tuple[tuple[Tick, ...], BoardObserver]:
    """Return the ticks between two samples.

    Args:
        terms: The constants of the recording.
        observer: The observer after the tick before.
        before: The sample at the beginning.
        after: The sample at the end.
        first: Number of the first tick.
        count: How many ticks there are: more than one if samples were missed.

    Returns:
        The ticks, of which only the first has readings, and the observer at their end.
    """
    made = []
    use = _use(before, after)
    for number in range(first, first + count):
        sensed = before.sensed if number == first else Sensed()
        inputs, observer = _inputs(terms, observer, before, after, sensed=sensed, use=use)
        state = advance(
            terms.board,
            observer.state,
            inputs,
            work_share=use.own * _frequency(terms.board, observer),
            period_s=terms.period_s,
        )
        observer = observer._replace(state=state)
        made.append(Tick(at_s=round(number * terms.period_s, 6), inputs=inputs, sensed=sensed))
    return tuple(made), observer


class _Use(NamedTuple):
    """Shares of the processor's time."""

    own: float = 0.0
    others: float = 0.0


def _inputs(
    terms: Terms,
    observer: BoardObserver,
    before: Sample,
    after: Sample,
    *,
    sensed: Sensed,
    use: _Use,
) -> tuple[Inputs, BoardObserver]:
    frequency = _frequency(terms.board, observer)
    ambient_c, observer = _ambient(terms, observer, sensed.temperature_c, use)
    charger_w, observer = _charger(terms, observer, sensed)
    observer = observer._replace(
        slowdown=_slowdown(before.figures, after.figures, frequency) or observer.slowdown,
        memory_bytes=observer.memory_bytes
        if sensed.memory_available_bytes is None
        else sensed.memory_available_bytes + before.held_bytes,
    )
    inputs = Inputs(
        ambient_c=round(ambient_c, 2),
        demand_per_s=round(min(_demand(before, after), MAX), 3),
        slowdown=round(observer.slowdown, 4),
        # In the board's model a slower processor makes other programs slower too.
        other_share=round(use.others * frequency, 4),
        charger_w=round(charger_w, 3),
        memory_bytes=observer.memory_bytes,
    )
    return inputs, observer


def _frequency(board: Board, observer: BoardObserver) -> float:
    return observer.state.frequency_ratio(board)


def _ambient(
    terms: Terms, observer: BoardObserver, recorded_c: float | None, use: _Use
) -> tuple[float, BoardObserver]:
    """Return the ambient temperature of a tick, and the observer after it."""
    plant, settled_c = terms.board.thermal, observer.ambient_c
    if settled_c is None:
        # Nothing better is known: assume that the board had the steady temperature of its load.
        rise_c = plant.resistance_c_per_w * plant.power_w(use.own + use.others)
        settled_c = ASSUMED_AMBIENT_C if recorded_c is None else _possible_c(recorded_c - rise_c)
    if recorded_c is None:
        return settled_c, observer._replace(ambient_c=settled_c, error_c=None)
    error_c = recorded_c - observer.state.temperature_c
    kept = math.exp(-terms.period_s / plant.time_constant_s)
    learnt_c = _possible_c(settled_c + (1.0 - kept) * (1.0 + kept) ** 2 * error_c)
    observer = observer._replace(ambient_c=learnt_c, error_c=error_c)
    return _possible_c(settled_c + (1.0 + 2.0 * kept) * error_c), observer


def _possible_c(ambient_c: float) -> float:
    return min(max(ambient_c, AMBIENT_MIN_C), AMBIENT_MAX_C)


def _demand(before: Sample, after: Sample) -> float:
    if before.figures is None or after.figures is None:
        return 0.0
    grown = after.figures.requests - before.figures.requests
    # A counter that fell belongs to an agent that started again.
    return (after.figures.requests if grown < 0 else grown) / _elapsed_s(before, after)


def _slowdown(before: Figures | None, after: Figures | None, frequency: float) -> float | None:
    """Return the measured latency over the declared one at full frequency; None if unknown."""
    if before is None or after is None:
        return None
    same = (before.release, before.variant, before.pid) == (
        after.release,
        after.variant,
        after.pid,
    )
    answered, compute_s = after.answered - before.answered, after.compute_s - before.compute_s
    declared_ms = after.declared_ms or 0.0
    if not same or answered < 1 or compute_s <= 0.0 or declared_ms <= 0.0:
        return None
    # The frequency is the model's at this temperature, because the replay divides by it. The
    # kernel's figure says little about a request: between two requests the processor idles slowly.
    slowdown = compute_s * MS_PER_S / answered / declared_ms * frequency
    return min(max(slowdown, SLOWDOWN_MIN), SLOWDOWN_MAX)


def _use(before: Sample, after: Sample) -> _Use:
    """Return the processor's shares of the workers with the recording, and of all others."""
    elapsed_s = _elapsed_s(before, after)
    spent_s = (max(s - before.own_s.get(process, 0.0), 0.0) for process, s in after.own_s.items())
    own = min(math.fsum(spent_s) / elapsed_s, 1.0)
    if before.busy_s is None or after.busy_s is None:
        return _Use(own)
    busy = min(max((after.busy_s - before.busy_s) / elapsed_s, 0.0), 1.0)
    return _Use(min(own, busy), max(busy - own, 0.0))


def _elapsed_s(before: Sample, after: Sample) -> float:
    return max(after.at_s - before.at_s, 1e-9)


def _charger(terms: Terms, observer: BoardObserver, sensed: Sensed) -> tuple[float, BoardObserver]:
    """Return the charger's power with which the modelled battery follows the recorded one."""
    board, state = terms.board, observer.state
    charge, recorded = state.charge_ratio, sensed.battery_ratio
    discharging = sensed.battery_discharging
    if board.battery_wh is None or charge is None or discharging is None:
        return 0.0, observer
    behind_j = 0.0 if recorded is None else (recorded - charge) * board.battery_wh * WH_J
    if discharging:
        given_w = state.draw_w if sensed.power_mw is None else sensed.power_mw / MW_PER_W
        follow_w, observer = behind_j / CHARGE_FOLLOW_S, observer._replace(surplus_w=0.0)
        return _possible_w(state.draw_w - given_w + follow_w), observer
    follow_s = max(CHARGE_FOLLOW_S, 4.0 * terms.period_s)
    charger_w = state.draw_w + observer.surplus_w + 2.0 * behind_j / follow_s
    learnt_w = observer.surplus_w + behind_j * terms.period_s / follow_s**2
    if recorded is not None and recorded >= FULL_RATIO:
        # A full battery takes no power, so the readings do not show what the charger could give.
        charger_w = max(charger_w, board.thermal.busy_w)
    return _possible_w(charger_w), observer._replace(surplus_w=_possible_w(learnt_w))


def _possible_w(watts: float) -> float:
    return min(max(watts, 0.0), float(MAX))
