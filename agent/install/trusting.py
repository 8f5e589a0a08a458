"""Lets an install wait until trusted metadata is fresh and lists the release.

Rules:
- It waits and does not fail: newer metadata may come with the next connection.
- No operator's override on the device shortens this wait.
- What was installed before is believed already: a repair and a way back do not wait.
"""

from __future__ import annotations

from typing import Protocol

from agent.install.conditions import LOOK_S, Later
from agent.install.holding import Holding
from agent.install.progress import Progress
from agent.install.states import State
from agent.install.store import ModelStore
from agent.install.workflow import Effects


class Vouching(Protocol):
    """Knows which releases may be taken new."""

    def later(self, name: str, version: str, sha256: str) -> str | None:
        """Return why a release may not be taken now, or None."""
        ...

    def accept(self, sha256: str) -> None:
        """Note that a package which may be taken is being installed."""
        ...


class TrustCondition:
    """Whether the release that is being installed may be taken now.

    Args:
        trust: Knows it.
        store: Knows what is being installed.
    """

    def __init__(self, trust: Vouching, store: ModelStore) -> None:
        self._trust = trust
        self._store = store

    def later(self) -> Later | None:
        """Return why it may not be taken yet, or None."""
        target = self._store.state.target
        if target is None:
            return None
        why = self._trust.later(target.name, target.version, target.digest)
        return None if why is None else Later(why, LOOK_S)


class TrustedEffects:
    """Effects that begin when the release may be taken.

    Args:
        effects: What to do then.
        trust: Knows which releases may be taken.
        store: Knows what is being installed.
        holding: Lets the install wait for a `TrustCondition`.
    """

    def __init__(
        self,
        effects: Effects,
        trust: Vouching,
        store: ModelStore,
        holding: Holding,
    ) -> None:
        self._effects = effects
        self._trust = trust
        self._store = store
        self.holding = holding

    def serving(self) -> tuple[str | None, str | None]:
        """Return the digest of the package and the name of the variant that serve now."""
        return self._effects.serving()

    def current(self) -> str | None:
        """Return the digest of the package that serves after a restart."""
        return self._effects.current()

    def loss(self, digest: str) -> str | None:
        """Return why a package that should serve does not serve whole, or None."""
        return self._effects.loss(digest)

    def serve_again(self, digest: str) -> str | None:
        """Let an installed package serve again; return why it does not answer rightly, or None."""
        return self._effects.serve_again(digest)

    def tidy(self) -> None:
        """Remove what no model needs any more, if it can be removed now."""
        self._effects.tidy()

    def perform(self, state: State, progress: Progress) -> None:
        """Do the effect of a state, the first one when the release may be taken.

        Args:
            state: The state; not idle.
            progress: Takes how a fetch goes on.

        Raises:
            FleetError: The wait is ended, or the effect failed.
        """
        if state is State.PREFLIGHT:
            self.holding.wait_to_begin(state)
            target = self._store.state.target
            if target is not None:
                self._trust.accept(target.digest)
        self._effects.perform(state, progress)
