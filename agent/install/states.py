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
- Before `switching` a newer desired state may end an install. From then on the install confirms or
  reverts first, so that the package that serves is always confirmed or being put back.
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
    """A desired state with a package that does not serve has been accepted."""

    DONE = "done"
    FAILED = "failed"
    """There was an error that another attempt does not cure, or there were too many attempts."""

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
    # If the previous package cannot be put back, the report says so.
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
