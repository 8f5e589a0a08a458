"""The install workflow as a table. Pure.

```
            accepted        done            done            done           done
    idle ────────────► preflight ──► fetching ──► verifying ──► staging ──► probing
     ▲                     │              │             │           │          │ done
     │                     └──────────────┴── failed, abandoned ────┴──────────┤      ▼
     │                                                                         │   switching
     │ done, failed                                                            ▼      │ done
     ├───────────────────────────────────────────────────────────────────── reverting │
     │                                                       failed ▲                 ▼
     └───────────────────────────────────────────────── done ───────┴────────── confirming
```

Rules:
- A pair that is not in the table is a bug.
- Until `switching` a newer desired state may end an install; after it, confirming or reverting
  comes first, so that what serves has always been confirmed or is being put back.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from agent.errors import IllegalTransitionError


class State(StrEnum):
    """The state of an install; spelled as in `wire.messages.InstallPhase`."""

    IDLE = "idle"
    PREFLIGHT = "preflight"
    FETCHING = "fetching"
    VERIFYING = "verifying"
    STAGING = "staging"
    PROBING = "probing"
    SWITCHING = "switching"
    CONFIRMING = "confirming"
    REVERTING = "reverting"


class Event(StrEnum):
    """The result of a state's effect."""

    ACCEPTED = "accepted"
    """A desired state names a package that does not serve."""

    DONE = "done"
    FAILED = "failed"
    """An error that trying again does not cure, or too many tries."""

    ABANDONED = "abandoned"
    """A newer desired state has come."""


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.IDLE, Event.ACCEPTED): State.PREFLIGHT,
    (State.PREFLIGHT, Event.DONE): State.FETCHING,
    (State.PREFLIGHT, Event.FAILED): State.REVERTING,
    (State.PREFLIGHT, Event.ABANDONED): State.REVERTING,
    (State.FETCHING, Event.DONE): State.VERIFYING,
    (State.FETCHING, Event.FAILED): State.REVERTING,
    (State.FETCHING, Event.ABANDONED): State.REVERTING,
    (State.VERIFYING, Event.DONE): State.STAGING,
    (State.VERIFYING, Event.FAILED): State.REVERTING,
    (State.VERIFYING, Event.ABANDONED): State.REVERTING,
    (State.STAGING, Event.DONE): State.PROBING,
    (State.STAGING, Event.FAILED): State.REVERTING,
    (State.STAGING, Event.ABANDONED): State.REVERTING,
    (State.PROBING, Event.DONE): State.SWITCHING,
    (State.PROBING, Event.FAILED): State.REVERTING,
    (State.PROBING, Event.ABANDONED): State.REVERTING,
    (State.SWITCHING, Event.DONE): State.CONFIRMING,
    (State.SWITCHING, Event.FAILED): State.REVERTING,
    (State.CONFIRMING, Event.DONE): State.IDLE,
    (State.CONFIRMING, Event.FAILED): State.REVERTING,
    (State.REVERTING, Event.DONE): State.IDLE,
    # What cannot be put back is reported as it is; the next desired state may mend it.
    (State.REVERTING, Event.FAILED): State.IDLE,
}


def next_state(state: State, event: Event) -> State:
    """Return the state that follows.

    Args:
        state: The present state.
        event: What happened in it.

    Returns:
        The next state.

    Raises:
        IllegalTransitionError: The table has no such pair.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"no transition from {state} by {event}") from None


def may_abandon(state: State) -> bool:
    """Tell whether a newer desired state may end an install in this state."""
    return (state, Event.ABANDONED) in TRANSITIONS
