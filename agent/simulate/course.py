"""The course of one simulated install, by the agent's own table of states. Pure.

Rules:
- States and their order are those of `agent.install.states`. What an effect does on a device is
  here the time that it takes, and whether it fails; only what is fetched is real.
- An install that fails is undone as on a device: it reverts, and what served before serves again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from agent.errors import ConfirmError, GoldenError, StorageError, StorageFullError
from agent.install.records import Failure
from agent.install.states import InstallEvent, State, may_abandon, next_state
from wire.desired import ModelState
from wire.installs import ReleaseRef

TAKES_S: Final[dict[State, float]] = {
    State.PREFLIGHT: 0.2,
    State.VERIFYING: 0.5,
    State.STAGING: 0.5,
    State.PROBING: 2.0,
    State.SWITCHING: 0.3,
    State.CONFIRMING: 10.0,
    State.REVERTING: 1.0,
}
"""How long effects take; what is fetched takes what it takes."""


class Failing(NamedTuple):
    """How a fault shows."""

    fault: str
    code: str
    detail: str


FAILING: Final[dict[State, Failing]] = {
    State.PREFLIGHT: Failing("no_space", StorageFullError.code, "simulated: no space is left"),
    State.VERIFYING: Failing("damaged", StorageError.code, "simulated: a file is damaged"),
    State.PROBING: Failing("fails_check", GoldenError.code, "simulated: other answers"),
    State.CONFIRMING: Failing(
        "crash_after_install", ConfirmError.code, "simulated: the model crashed after the switch"
    ),
}
RESTARTS_IN: Final = State.STAGING
HANGS_IN: Final = State.PROBING


class Course:
    """One install, from `accepted` to `idle`.

    Args:
        wanted: What is to be installed, with a release.
        release: That release.
        faults: Those that hit this install.
        previous: What served before, and serves again if this fails.
    """

    def __init__(
        self,
        wanted: ModelState,
        release: ReleaseRef,
        faults: frozenset[str],
        previous: ReleaseRef | None,
    ) -> None:
        self.wanted = wanted
        self.release = release
        self.state = next_state(State.IDLE, InstallEvent.ACCEPTED)
        self.failure: Failure | None = None
        self.abandoned = False
        self.active = previous
        """What serves now."""

        self._previous = previous
        self._faults = faults
        self._has_restarted = False

    @property
    def hangs(self) -> bool:
        """Whether the effect of this state never ends."""
        return self.state is HANGS_IN and "hangs" in self._faults

    @property
    def is_over(self) -> bool:
        """Whether the install has ended."""
        return self.state is State.IDLE

    @property
    def may_abandon(self) -> bool:
        """Whether a newer order may end it now."""
        return may_abandon(self.state)

    def restarts(self) -> bool:
        """Tell whether the device restarts now; it does so once."""
        now = self.state is RESTARTS_IN and "restarts" in self._faults and not self._has_restarted
        self._has_restarted = self._has_restarted or now
        return now

    def done(self) -> None:
        """Go on after the effect of a state: it was done, or a fault shows."""
        failing = FAILING.get(self.state)
        if failing is not None and failing.fault in self._faults:
            self.fail(failing.code, failing.detail)
            return
        if self.state is State.SWITCHING:
            self.active = self.release
        elif self.state is State.REVERTING:
            self.active = self._previous
        self.state = next_state(self.state, InstallEvent.DONE)

    def fail(self, code: str, detail: str) -> None:
        """Go on after an effect that failed."""
        self.failure = Failure(phase=self.state, code=code, detail=detail)
        self.state = next_state(self.state, InstallEvent.FAILED)

    def abandon(self) -> None:
        """End it for a newer order."""
        self.abandoned = True
        self.state = next_state(self.state, InstallEvent.ABANDONED)


def is_same(known: ModelState, wanted: ModelState) -> bool:
    """Tell whether two orders are for the same install."""
    if known.revision == wanted.revision:
        return True
    return wanted.rollout is not None and (known.release, known.rollout) == (
        wanted.release,
        wanted.rollout,
    )
