"""The effects of an install between the hooks of their states.

Rules:
- Before the effect of a state its Enter hooks run, after it its Leave hooks. After a restart all
  hooks of the state run again, and so does its effect. While an effect is only tried again, its
  Enter hooks do not run again.
- A hook that says no fails the install in that state. One that says later is asked again, until
  hooks have delayed the install for `delay_s` in all. Only time that was waited counts, and it
  outlives a restart. Meanwhile a newer desired state may take the place of the install wherever it
  may end it.
- Nothing may hold up the return to the previous package: what hooks say then, and what Error hooks
  say at all, is told and changes nothing.
- If the hooks cannot be trusted, nothing is installed. While an install waits for a hook already,
  that counts as later: somebody may be changing the hook.
- The hooks are asked after what else may hold an install (`agent.install.holding`), so what they
  say is of the time when it begins. Such a wait counts for no hook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from agent.errors import (
    HookDelayError,
    HookError,
    HookFilesError,
    StoppedError,
    StorageError,
)
from agent.install.around import EffectsAround
from agent.install.holding import OVERRIDE_POLL_S, Holding
from agent.install.hooks.names import Answer, Hook, Moment, answer_of
from agent.install.hooks.override import Override
from agent.install.hooks.process import Ran
from agent.install.hooks.runner import HookRunner
from agent.install.hooks.settings import HookSettings
from agent.install.ports import Effects
from agent.install.progress import Progress
from agent.install.states import State, may_abandon
from agent.install.store import ModelStore
from agent.interrupts import Interrupts
from agent.ports import RecorderPort
from wire.clock import Clock
from wire.durations import format_duration
from wire.errors import FleetError

COUNT_EVERY_S: Final = 60.0
"""A power cut makes the agent forget at most this much of a wait."""

REMEDY: Final = "`fleet-agent override` on the device lets the next attempt go on"


class HookedEffects(EffectsAround):
    """The effects of an install, with the hooks around them.

    Args:
        effects: The effects themselves.
        runner: Runs hooks.
        settings: For how long hooks may hold an install.
        override: Whether the operator overrides them.
        store: Remembers for how long they have done so.
        events: Takes an event when a hook does not just say yes.
        interrupts: Tells when an install must end.
        clock: For the waits.
        holding: Lets an install wait for what is no hook.
        begin: Called before each effect, and when the install has the turn again after a wait: what
            is counted from now on is of this model.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it connects
        self,
        effects: Effects,
        *,
        runner: HookRunner,
        settings: HookSettings,
        override: Override,
        store: ModelStore,
        events: RecorderPort,
        interrupts: Interrupts,
        clock: Clock,
        holding: Holding,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(effects)
        self._begin = begin
        self._runner = runner
        self._settings = settings
        self.override = override
        self._store = store
        self._events = events
        self._interrupts = interrupts
        self._clock = clock
        self.holding = holding
        holding.on_turn = begin
        self._entered: State | None = None
        """The state of this install whose Enter hooks have run."""

        self._waits_for = ""

    def waits_for(self) -> str:
        """Return what the install waits for, such as a hook and its words; empty if nothing."""
        return self._waits_for or self.holding.waits_for

    def end(self) -> None:
        """Forget what belongs to one install: it has ended."""
        self._entered = None
        self.override.end(self._store.install)

    def perform(self, state: State, progress: Progress) -> None:
        """Do the effect of a state between its hooks.

        Args:
            state: The state; not idle.
            progress: Takes how a fetch goes on.

        Raises:
            HookError: A hook says no, has said later for too long, or cannot be trusted.
            SupersededError: A newer desired state has come while the install waited.
            StoppedError: The agent is being stopped.
            FleetError: The effect failed.
        """
        self._begin()
        if state is State.REVERTING:
            self._revert(progress)
            return
        if self._entered is not state:
            self._enter(state)
            self._entered = state
        self.holding.perform(self._effects, state, progress)
        self._ask(state, Moment.LEAVE)

    def _enter(self, state: State) -> None:
        """Wait until the install may go on in a state.

        Raises:
            HookError: A hook does not let it.
        """
        if state is not State.PREFLIGHT:
            self._ask(state, Moment.ENTER)
            return
        while True:
            self.holding.wait_to_begin(state)
            self._ask(state, Moment.ENTER)
            # A hook may have delayed it beyond the window.
            if self.holding.may_begin():
                return

    def _revert(self, progress: Progress) -> None:
        if self._entered is not State.REVERTING:
            failure = self._store.state.failure
            if failure is not None:
                self._tell_all(failure.phase, Moment.ERROR)
            self._tell_all(State.REVERTING, Moment.ENTER)
            self._entered = State.REVERTING
        try:
            self._effects.perform(State.REVERTING, progress)
        except StoppedError:
            raise
        except FleetError:
            self._tell_all(State.REVERTING, Moment.ERROR)
            raise
        self._tell_all(State.REVERTING, Moment.LEAVE)

    def _tell_all(self, state: State, moment: Moment) -> None:
        """Run hooks that cannot change anything."""
        try:
            for hook in self._runner.of(state, moment):
                ran = self._runner.run(hook)
                if answer_of(ran.status) is not Answer.GO_ON:
                    self._note(hook, ran, "its answer changes nothing")
        except HookFilesError as exc:
            self._events.event("hook", str(exc), {"code": exc.code, "phase": state.value})

    def _ask(self, state: State, moment: Moment) -> None:
        """Run the hooks of a moment until each of them lets the install go on.

        The directory is read again after each answer: meanwhile an operator may change a hook or
        take it away.

        Raises:
            HookError: One does not.
            HookFilesError: The hooks cannot be trusted, or not for as long as they may wait.
        """
        agreed: set[str] = set()
        asked = ""
        try:
            while True:
                try:
                    hook = self._next(state, moment, agreed)
                except HookFilesError as exc:
                    if not self._waits_for:
                        raise
                    self._wait(self._fault_s(exc), state, may_override=False)
                    continue
                if hook is None:
                    return
                if hook.name != asked:
                    asked, self._waits_for = hook.name, ""
                pause_s = self._pause_s(hook)
                if pause_s is None:
                    agreed.add(hook.name)
                    self._waits_for = ""
                    continue
                self._wait(pause_s, state)
        finally:
            self._waits_for = ""

    def _next(self, state: State, moment: Moment, agreed: set[str]) -> Hook | None:
        self._interrupts.check(abandon=may_abandon(state))
        hooks = self._runner.of(state, moment)
        return next((hook for hook in hooks if hook.name not in agreed), None)

    def _pause_s(self, hook: Hook) -> float | None:
        """Run a hook; return after how long it is asked again, or None if the install goes on.

        Raises:
            HookError: It says no.
            HookDelayError: It says later, and the time for that is over.
        """
        began_s = self._clock.monotonic_s()
        ran = self._runner.run(hook)
        answer = answer_of(ran.status)
        if answer is Answer.GO_ON:
            return None
        if self.override.covers(self._store.install):
            self._note(hook, ran, "the operator overrides it")
            return None
        if answer is Answer.NO:
            self._note(hook, ran, "the install fails")
            raise HookError(f"hook {hook.name} says no: {ran.text}", remedy=REMEDY)
        return self._delay_s(hook, ran, self._clock.monotonic_s() - began_s)

    def _delay_s(self, hook: Hook, ran: Ran, took_s: float) -> float:
        """Save that an install waits for a hook; return for how long.

        Raises:
            HookDelayError: Hooks have delayed it for too long.
        """
        pause_s = self._rest_s(took_s)
        if pause_s <= 0:
            raise HookDelayError(
                f"hook {hook.name} says later, but hooks have delayed the install for "
                f"{format_duration(self._settings.delay_s)}: {ran.text}",
                remedy=REMEDY,
            )
        if not self._waits_for:
            self._note(hook, ran, "the install waits")
        self._begin_wait(f"hook {hook.name} says later: {ran.text}", took_s)
        return pause_s

    def _fault_s(self, fault: HookFilesError) -> float:
        """Save that a waiting install waits for the files of hooks; return for how long.

        Somebody may be changing a hook, and an editor leaves a file beside it meanwhile.

        Raises:
            HookFilesError: The time for that is over.
        """
        pause_s = self._rest_s(0.0)
        if pause_s <= 0:
            raise fault
        why = f"the install waits: {fault}"
        if why != self._waits_for:
            data = {"code": fault.code, "phase": self._store.state.state.value}
            self._events.event("hook", why, data)
        self._begin_wait(why, 0.0)
        return pause_s

    def _rest_s(self, took_s: float) -> float:
        """Return after how long hooks are asked again; not above 0 if they have had their time."""
        delayed_s = self._store.state.delayed_s + took_s
        return min(self._settings.retry_s, self._settings.delay_s - delayed_s)

    def _begin_wait(self, why: str, took_s: float) -> None:
        self._waits_for = why
        record = self._store.state
        # A restart during the wait is no crash; one in the hook or in the effect after it is.
        self._store.update(attempts=record.attempts - 1, delayed_s=record.delayed_s + took_s)

    def _wait(self, pause_s: float, state: State, *, may_override: bool = True) -> None:
        """Wait until a hook is asked again, which the operator may order at once.

        What was really waited counts, also if the wait is ended.

        Raises:
            FleetError: It is ended.
        """
        self.holding.on_wait(state, self._waits_for)
        install = self._store.install
        counted_s = self._clock.monotonic_s()
        end_s = counted_s + pause_s
        try:
            while (rest_s := end_s - self._clock.monotonic_s()) > 0:
                if may_override and self.override.covers(install):
                    break
                with self._interrupts.out_of_turn():
                    self._interrupts.wait(min(rest_s, OVERRIDE_POLL_S), abandon=may_abandon(state))
                self._begin()
                if self._clock.monotonic_s() - counted_s >= COUNT_EVERY_S:
                    counted_s = self._count(counted_s)
        except FleetError:
            with contextlib.suppress(StorageError):
                self._count(counted_s)
            raise
        self._count(counted_s)
        self._store.update(attempts=self._store.state.attempts + 1)

    def _count(self, since_s: float) -> float:
        """Save that the install was delayed since a time; return until when."""
        now_s = self._clock.monotonic_s()
        self._store.update(delayed_s=self._store.state.delayed_s + now_s - since_s)
        return now_s

    def _note(self, hook: Hook, ran: Ran, what: str) -> None:
        record = self._store.state
        data = {
            "hook": hook.name,
            "phase": record.state.value,
            "status": ran.status,
            "revision": record.revision,
            "release": f"{record.target.name}:{record.target.version}" if record.target else None,
        }
        self._events.event("hook", f"{hook.name}: {ran.text}; {what}", data)
