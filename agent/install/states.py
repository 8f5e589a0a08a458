"""The install workflow as a table. Pure.

```
            accepted        done            done            done           done
    idle ────────────► preflight ──► fetching ──► verifying ──► staging ──► probing
     ▲                     │              │             │           │          │ done
     │                     └──────────────┴── failed, abandoned ────┴──────────┤      ▼
     │                                                                         │◄─ switching
     │ done, failed                                                            ▼      │ done
     ├───────────────────────────────────────────────────────────────────── reverting │
     │                                                       failed ▲                 ▼
     └───────────────────────────────────────────────── done ───────┴────────── confirming
```

Rules:
- A pair that is not in the table is a bug.
- Up to `switching` a newer desired state may end an install: the operator's hooks may hold it there
  for long. It reverts first, and from `confirming` on it confirms or reverts, so that the package
  that serves is always confirmed or being put back.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from agent.errors import IllegalTransitionError


class State(StrEnum):
    """The state of an install; spelled as in `wire.installs.InstallPhase`."""

    IDLE = "idle"
    PREFLIGHT = "preflight"
    FETCHING = "fetching"
    VERIFYING = "verifying"
    STAGING = "staging"
    PROBING = "probing"
    SWITCHING = "switching"
    CONFIRMING = "confirming"
    REVERTING = "reverting"


class InstallEvent(StrEnum):
    """The result of a state's effect."""

    ACCEPTED = "accepted"
    """A desired state with a package that does not serve has been accepted."""

    DONE = "done"
    FAILED = "failed"
    """There was an error that another attempt does not cure, or there were too many attempts."""

    ABANDONED = "abandoned"
    """A newer desired state has come."""


TRANSITIONS: Final[dict[tuple[State, InstallEvent], State]] = {
    (State.IDLE, InstallEvent.ACCEPTED): State.PREFLIGHT,
    (State.PREFLIGHT, InstallEvent.DONE): State.FETCHING,
    (State.PREFLIGHT, InstallEvent.FAILED): State.REVERTING,
    (State.PREFLIGHT, InstallEvent.ABANDONED): State.REVERTING,
    (State.FETCHING, InstallEvent.DONE): State.VERIFYING,
    (State.FETCHING, InstallEvent.FAILED): State.REVERTING,
    (State.FETCHING, InstallEvent.ABANDONED): State.REVERTING,
    (State.VERIFYING, InstallEvent.DONE): State.STAGING,
    (State.VERIFYING, InstallEvent.FAILED): State.REVERTING,
    (State.VERIFYING, InstallEvent.ABANDONED): State.REVERTING,
    (State.STAGING, InstallEvent.DONE): State.PROBING,
    (State.STAGING, InstallEvent.FAILED): State.REVERTING,
    (State.STAGING, InstallEvent.ABANDONED): State.REVERTING,
    (State.PROBING, InstallEvent.DONE): State.SWITCHING,
    (State.PROBING, InstallEvent.FAILED): State.REVERTING,
    (State.PROBING, InstallEvent.ABANDONED): State.REVERTING,
    (State.SWITCHING, InstallEvent.DONE): State.CONFIRMING,
    (State.SWITCHING, InstallEvent.FAILED): State.REVERTING,
    (State.SWITCHING, InstallEvent.ABANDONED): State.REVERTING,
    (State.CONFIRMING, InstallEvent.DONE): State.IDLE,
    (State.CONFIRMING, InstallEvent.FAILED): State.REVERTING,
    (State.REVERTING, InstallEvent.DONE): State.IDLE,
    # If the previous package cannot be put back, the report says so.
    (State.REVERTING, InstallEvent.FAILED): State.IDLE,
}


def next_state(state: State, event: InstallEvent) -> State:
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
    return (state, InstallEvent.ABANDONED) in TRANSITIONS
