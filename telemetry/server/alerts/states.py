"""What becomes of one group of a rule: a table of states, and one step. Pure.

```
inactive ──beyond──► pending ──held──► firing ──clear──► resolved
```

Rules:
- A number beyond the bound is `held` when it has been so for the rule's `for`.
- Between the bound and `clear` an alert goes on, and none begins.
- Missing data is no number: it neither fires nor clears. After `FORGOTTEN_AFTER_S` without one, or
  at once when the group is gone (a device that left the fleet), the alert ends.
- How long something lasts is the sum of the times between looks. So neither a wall clock that is
  set nor a time in which nobody looked makes it longer.
- Resolved is inactive with a memory: what was resolved can be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from telemetry.server.alerts.rules import Limits

FORGOTTEN_AFTER_S: Final = 86_400.0
"""How long a group without a number keeps its state."""


class Phase(StrEnum):
    """Where a group of a rule is."""

    INACTIVE = "inactive"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Reading(StrEnum):
    """What one look at a group says."""

    CLEAR = "clear"
    BETWEEN = "between"
    """Not beyond the bound, and not past `clear`."""

    BEYOND = "beyond"
    HELD = "held"
    """Beyond, and long enough."""

    MISSING = "missing"
    FORGOTTEN = "forgotten"


TRANSITIONS: Final[Mapping[tuple[Phase, Reading], Phase]] = MappingProxyType({
    (Phase.INACTIVE, Reading.CLEAR): Phase.INACTIVE,
    (Phase.INACTIVE, Reading.BETWEEN): Phase.INACTIVE,
    (Phase.INACTIVE, Reading.BEYOND): Phase.PENDING,
    (Phase.INACTIVE, Reading.HELD): Phase.FIRING,
    (Phase.INACTIVE, Reading.MISSING): Phase.INACTIVE,
    (Phase.INACTIVE, Reading.FORGOTTEN): Phase.INACTIVE,
    (Phase.PENDING, Reading.CLEAR): Phase.INACTIVE,
    (Phase.PENDING, Reading.BETWEEN): Phase.INACTIVE,
    (Phase.PENDING, Reading.BEYOND): Phase.PENDING,
    (Phase.PENDING, Reading.HELD): Phase.FIRING,
    (Phase.PENDING, Reading.MISSING): Phase.PENDING,
    (Phase.PENDING, Reading.FORGOTTEN): Phase.INACTIVE,
    (Phase.FIRING, Reading.CLEAR): Phase.RESOLVED,
    (Phase.FIRING, Reading.BETWEEN): Phase.FIRING,
    (Phase.FIRING, Reading.BEYOND): Phase.FIRING,
    (Phase.FIRING, Reading.HELD): Phase.FIRING,
    (Phase.FIRING, Reading.MISSING): Phase.FIRING,
    (Phase.FIRING, Reading.FORGOTTEN): Phase.RESOLVED,
    (Phase.RESOLVED, Reading.CLEAR): Phase.RESOLVED,
    (Phase.RESOLVED, Reading.BETWEEN): Phase.RESOLVED,
    (Phase.RESOLVED, Reading.BEYOND): Phase.PENDING,
    (Phase.RESOLVED, Reading.HELD): Phase.FIRING,
    (Phase.RESOLVED, Reading.MISSING): Phase.RESOLVED,
    (Phase.RESOLVED, Reading.FORGOTTEN): Phase.INACTIVE,
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one group of a rule."""

    phase: Phase = Phase.INACTIVE
    since_s: float
    """When the phase began, wall time."""

    value: float | None = None
    """The last number that there was."""

    held_s: float = 0.0
    """For how long it has been pending."""

    missing_s: float = 0.0
    """For how long there has been no number."""


class Transition(NamedTuple):
    """A change of phase."""

    before: Phase
    after: Phase
    reading: Reading
    value: float | None
    """The last number that there was."""

    at_s: float
    fired_at_s: float
    """When the alert fired that begins or ends here; for other changes when this happened."""


def step(
    limits: Limits,
    state: State,
    value: float | None,
    now_s: float,
    passed_s: float = 0.0,
    *,
    is_gone: bool = False,
) -> tuple[State, Transition | None]:
    """Look at a group once.

    Args:
        limits: The bounds of its rule.
        state: What it was.
        value: Its number; None for none.
        now_s: Wall time.
        passed_s: How long after the look before; 0 if there was none.
        is_gone: Whether there is no such group any more.

    Returns:
        The state after, and the change of phase if there was one.
    """
    since_s = min(state.since_s, now_s)
    held_s = state.held_s + passed_s if state.phase is Phase.PENDING else 0.0
    missing_s = state.missing_s + passed_s if value is None else 0.0
    reading = _reading(limits, value, held_s, missing_s, is_gone=is_gone)
    after = TRANSITIONS[state.phase, reading]
    last = value if value is not None else state.value
    is_same = after is state.phase
    new = State(
        phase=after,
        since_s=since_s if is_same else now_s,
        value=last,
        held_s=held_s if is_same else 0.0,
        missing_s=missing_s,
    )
    if is_same:
        return new, None
    fired_at_s = since_s if state.phase is Phase.FIRING else now_s
    return new, Transition(state.phase, after, reading, last, now_s, fired_at_s)


def _reading(
    limits: Limits, value: float | None, held_s: float, missing_s: float, *, is_gone: bool
) -> Reading:
    if is_gone or (value is None and missing_s >= FORGOTTEN_AFTER_S):
        return Reading.FORGOTTEN
    if value is None:
        return Reading.MISSING
    if limits.is_beyond(value):
        return Reading.HELD if held_s >= limits.for_s else Reading.BEYOND
    return Reading.CLEAR if limits.is_clear(value) else Reading.BETWEEN
