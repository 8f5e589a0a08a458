"""The thread in which installs run, one after the other, newest wish first.

Rules:
- A newer desired state takes the place of one that waits, and ends one that runs at its next
  safe point, unless it is for the same package: then it waits.
- A storage that fails is tried again; anything that nobody foresaw ends the agent, and the next
  start goes on from what was saved.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from agent.errors import StoppedError, StorageError
from agent.install.store import StateStore
from agent.install.workflow import Machine
from agent.interrupts import Interrupts
from agent.log import Log
from wire.messages import DesiredState

STORAGE_RETRY_S: Final = 10.0


class _Wish(NamedTuple):
    desired: DesiredState
    envelope: bytes


class Installs:
    """Runs the machine in a thread of its own.

    Args:
        machine: What runs.
        store: Knows which revision was accepted and whether an install is going on.
        interrupts: How a running install hears of a newer one.
        log: Hears of faults.
    """

    def __init__(
        self, machine: Machine, store: StateStore, interrupts: Interrupts, log: Log
    ) -> None:
        self._machine = machine
        self._store = store
        self._interrupts = interrupts
        self._log = log
        self._changed = threading.Condition()
        self._wish: _Wish | None = None
        self._busy = True
        """Until the first look whether a restart interrupted something, too."""

        self._target = store.state.target
        """What is being installed, if anything is."""

        self._begun = 0
        """Revision of the wish that was taken last, which may not be saved yet."""

        interrupts.wake_on_stop(self._wake)

    @property
    def revision(self) -> int:
        """The highest revision that was accepted or waits to be."""
        with self._changed:
            waiting = self._wish.desired.revision if self._wish else 0
            return max(waiting, self._begun, self._store.state.revision)

    def offer(self, desired: DesiredState, envelope: bytes) -> None:
        """Take a verified desired state that is not older than `revision`; returns at once.

        Args:
            desired: What to run.
            envelope: Its signed form.
        """
        with self._changed:
            # The same again waits too: when its install has ended its outcome is told again.
            is_newer = desired.revision > max(self._begun, self._store.state.revision)
            if self._busy and is_newer and desired.release != self._target:
                self._interrupts.newer()
            self._wish = _Wish(desired, envelope)
            self._changed.notify()

    def run(self) -> None:
        """Go on with what a restart interrupted, then with every wish, until stopped."""
        wish: _Wish | None = None
        while True:
            try:
                self._machine.run()
                wish = self._next(wish)
                self._machine.accept(wish.desired, wish.envelope)
                wish = None
            except StoppedError:
                return
            except StorageError as exc:
                self._log.write("install-waits", code=exc.code, detail=exc.message)
                try:
                    self._interrupts.wait(STORAGE_RETRY_S, abandon=False)
                except StoppedError:
                    return

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _next(self, failed: _Wish | None) -> _Wish:
        """Return the newest wish, or the one that could not be saved, when there is none."""
        with self._changed:
            self._busy = False
            self._wish = self._wish or failed
            while self._wish is None:
                self._interrupts.check(abandon=False)
                self._changed.wait()
            wish, self._wish = self._wish, None
            self._busy, self._begun = True, wish.desired.revision
            self._target = wish.desired.release
            self._interrupts.made_room()
            return wish
