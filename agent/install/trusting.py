"""Lets an install wait until trusted metadata is fresh and lists the release.

Rules:
- It waits and does not fail: newer metadata may come with the next connection.
- No operator's override on the device shortens this wait.
- It waits before anything is fetched, again when all has come, and again when it goes on after a
  window of the rollout: meanwhile the release may have been taken off its list.
- What serves is believed already: its repair and the device's own way back do not wait. What the
  director orders is asked for again, also if it was here before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Protocol

from agent.install.around import EffectsAround
from agent.install.conditions import LOOK_S, Later
from agent.install.holding import Holding
from agent.install.ports import Effects
from agent.install.progress import Progress
from agent.install.states import State
from agent.install.store import ModelStore

ASKED: Final = frozenset({State.PREFLIGHT, State.FETCHING, State.VERIFYING, State.STAGING})
"""Before these states the release must be one that may be taken."""


class Vouching(Protocol):
    """Knows which releases may be taken new."""

    def later(self, name: str, version: str, sha256: str) -> str | None:
        """Return why a release may not be taken now, or None."""
        ...

    def accept(self, sha256: str, stored: Collection[str]) -> None:
        """Note that a package is put into service."""
        ...


class TrustCondition:
    """Whether the release that is being installed may be taken now.

    Args:
        trust: Knows it.
        store: Knows what is being installed.
        serves: Returns the digest of the package that serves.
    """

    def __init__(
        self, trust: Vouching, store: ModelStore, serves: Callable[[], str | None]
    ) -> None:
        self._trust = trust
        self._store = store
        self._serves = serves

    def later(self) -> Later | None:
        """Return why it may not be taken yet, or None."""
        record = self._store.state
        target = record.target
        if target is None or record.repairing or target.digest == self._serves():
            return None
        why = self._trust.later(target.name, target.version, target.digest)
        return None if why is None else Later(why, LOOK_S)


class TrustedEffects(EffectsAround):
    """Effects that begin when the release may be taken.

    Args:
        effects: What to do then.
        trust: Knows which releases may be taken.
        store: Knows what is being installed.
        holding: Lets the install wait for a `TrustCondition`.
        stored: Returns the digests of all packages on this device.
    """

    def __init__(
        self,
        effects: Effects,
        trust: Vouching,
        store: ModelStore,
        holding: Holding,
        stored: Callable[[], Collection[str]],
    ) -> None:
        super().__init__(effects)
        self._trust = trust
        self._store = store
        self._stored = stored
        self.holding = holding

    def perform(self, state: State, progress: Progress) -> None:
        """Do the effect of a state, when the release may be taken.

        Args:
            state: The state; not idle.
            progress: Takes how a fetch goes on.

        Raises:
            FleetError: The wait is ended, or the effect failed.
        """
        if state in ASKED:
            self.holding.wait_to_begin(state)
        target = self._store.state.target
        if state is State.SWITCHING and target is not None:
            self._trust.accept(target.digest, self._stored())
        self._effects.perform(state, progress)
