"""Lets an install wait, when all has come and is verified, for a window of its rollout.

Rules:
- It fetches and verifies at once, and waits before the package is staged. One that began goes on
  after the end of the window.
- No override on the device shortens this wait: it is the word of who made the rollout.
- A repair does not wait, nor does the way back of an install that failed.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.install.around import EffectsAround
from agent.install.conditions import Later, out_of_windows
from agent.install.holding import Holding
from agent.install.ports import Effects
from agent.install.progress import Progress
from agent.install.states import State
from agent.install.store import ModelStore
from agent.install.window import Local


class WindowCondition:
    """Whether the release that is being installed may be activated now.

    Args:
        store: Knows what is being installed, and its windows.
        now_s: Returns wall time, seconds since 1970.
        local: Converts it to what the clock on the wall shows.
    """

    def __init__(self, store: ModelStore, now_s: Callable[[], float], local: Local) -> None:
        self._store = store
        self._now_s = now_s
        self._local = local

    def later(self) -> Later | None:
        """Return why it may not be activated yet, or None."""
        record = self._store.state
        if record.repairing:
            return None
        return out_of_windows(record.windows, self._now_s(), self._local)


class WindowedEffects(EffectsAround):
    """Effects that go on from `staging` in a window.

    Args:
        effects: What to do then.
        holding: Lets the install wait for a `WindowCondition`.
    """

    def __init__(self, effects: Effects, holding: Holding) -> None:
        super().__init__(effects)
        self.holding = holding

    def perform(self, state: State, progress: Progress) -> None:
        """Do the effect of a state, when it may be done.

        Args:
            state: The state; not idle.
            progress: Takes how a fetch goes on.

        Raises:
            FleetError: The wait is ended, or the effect failed.
        """
        if state is State.STAGING:
            self.holding.wait_to_begin(state)
        self._effects.perform(state, progress)
