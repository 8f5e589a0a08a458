"""What holds an install although nothing is wrong: its window, the battery, its budgets.

Rules:
- Before anything else an install waits until the conditions of `[install]` hold. This wait has no
  end of its own. So does an effect whose budget is used up wait in its middle.
- A restart during such a wait is no crash, and costs no attempt.
- Meanwhile a newer desired state may take the place of the install wherever it may end it, and the
  operator may override what holds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from agent.errors import DeferredError
from agent.install.conditions import Later
from agent.install.ports import Effects
from agent.install.progress import Progress
from agent.install.states import State, may_abandon
from agent.install.store import ModelStore
from agent.interrupts import Interrupts
from agent.ports import RecorderPort
from wire.clock import Clock
from wire.durations import format_duration

OVERRIDE_POLL_S: Final = 0.5
TELL_EVERY_S: Final = 900.0
"""How often the controller hears of a wait that goes on: a report may be lost, and a whole fleet
may wait for the night."""


class Condition(Protocol):
    """What must hold before an install may begin."""

    def later(self) -> Later | None:
        """Return why it may not begin yet, or None."""
        ...


class Holding:
    """Lets an install wait.

    Args:
        store: Knows what is being installed.
        events: Takes an event when a wait begins, and when one for a budget ends.
        interrupts: Tells when an install must end.
        clock: For the waits.
        conditions: Whether an install may begin.
        deferral: Returns why the effect that was ended last may not go on yet, or None.
        is_overridden: Tells whether the operator overrides what holds the present install.
    """

    def __init__(
        self,
        *,
        store: ModelStore,
        events: RecorderPort,
        interrupts: Interrupts,
        clock: Clock,
        conditions: Condition,
        deferral: Callable[[], Later | None] = lambda: None,
        is_overridden: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._events = events
        self._interrupts = interrupts
        self._clock = clock
        self._conditions = conditions
        self._deferral = deferral
        self._is_overridden = is_overridden
        self.waits_for = ""
        """Why the install waits; empty if it does not."""

        self.on_wait: Callable[[State, str], None] = lambda _state, _why: None
        """Called with the state and what the install waits for, again and again while it waits."""

        self.on_turn: Callable[[], None] = lambda: None
        """Called after a wait: another model may have had the turn meanwhile."""

    def may_begin(self) -> bool:
        """Tell whether an install may begin now."""
        return self._held_by(self._conditions.later) is None

    def wait_to_begin(self, state: State) -> None:
        """Wait until an install may begin.

        Args:
            state: Where it is.

        Raises:
            FleetError: The wait is ended.
        """
        self._hold(state, self._conditions.later)

    def perform(self, effects: Effects, state: State, progress: Progress) -> None:
        """Do the effect of a state, and wait in its middle where it may cost no more.

        Args:
            effects: The effects.
            state: The state.
            progress: Takes how a fetch goes on.

        Raises:
            FleetError: The effect failed, or a wait is ended.
        """
        while not self._is_done(effects, state, progress):
            began_s = self._clock.monotonic_s()
            self._hold(state, self._deferral)
            waited = format_duration(round(self._clock.monotonic_s() - began_s))
            data = {"revision": self._store.state.revision, "phase": state.value}
            self._events.event("defer", f"the install goes on after {waited}", data)

    @staticmethod
    def _is_done(effects: Effects, state: State, progress: Progress) -> bool:
        """Do the effect of a state, until it is done or may cost no more now."""
        try:
            effects.perform(state, progress)
        except DeferredError:
            return False
        return True

    def _hold(self, state: State, look: Callable[[], Later | None]) -> None:
        """Wait until nothing holds the install any more.

        Raises:
            SupersededError: A newer desired state has come.
            StoppedError: The agent is being stopped.
            InterjectedError: A package has been handed over.
        """
        if (later := self._held_by(look)) is None:
            return
        # A restart during the wait is no crash.
        self._store.update(attempts=self._store.state.attempts - 1)
        told_s = float("-inf")
        try:
            while later is not None:
                now_s = self._clock.monotonic_s()
                if not self.waits_for:
                    data = {"revision": self._store.state.revision, "phase": state.value}
                    self._events.event("defer", later.why, data)
                if later.why != self.waits_for or now_s - told_s >= TELL_EVERY_S:
                    self.waits_for, told_s = later.why, now_s
                    self.on_wait(state, later.why)
                with self._interrupts.out_of_turn():
                    self._rest(now_s + later.look_s, state)
                self.on_turn()
                later = self._held_by(look)
        finally:
            self.waits_for = ""
        self.on_wait(state, "")  # or the controller would go on to show what it waited for
        self._store.update(attempts=self._store.state.attempts + 1)

    def _held_by(self, look: Callable[[], Later | None]) -> Later | None:
        """Return what holds the install, unless the operator overrides it."""
        later = look()
        return None if later is not None and self._is_overridden() else later

    def _rest(self, end_s: float, state: State) -> None:
        """Wait until a time, or until the operator overrides what the install waits for."""
        while (rest_s := end_s - self._clock.monotonic_s()) > 0:
            if self._is_overridden():
                return
            self._interrupts.wait(min(rest_s, OVERRIDE_POLL_S), abandon=may_abandon(state))
