"""The thread that runs one install at a time, the newest desired state first.

Rules:
- A newer desired state replaces one that waits. It ends the running install at its next safe
  point, unless it names the same package: then it waits.
- A package that the operator hands over is taken by this thread, between two installs or at a safe
  point of one.
- While nothing waits, the thread looks every few seconds whether the installed release is still
  whole, and repairs it.
- If the storage fails, the thread tries again. If it is full, what is not needed goes first.
  An unexpected fault ends the agent, and the next start goes on from the saved state.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from agent.errors import StoppedError, StorageError, StorageFullError
from agent.install.slots import Slots
from agent.install.store import StateStore
from agent.install.workflow import Machine
from agent.interrupts import Interrupts
from agent.log import Log
from wire.messages import DesiredState

STORAGE_RETRY_S: Final = 10.0
REPAIR_LOOK_S: Final = 5.0


class _Job(NamedTuple):
    desired: DesiredState
    envelope: bytes


class Installs:
    """Runs the machine in a thread of its own.

    Args:
        machine: Installs one desired state at a time.
        store: Knows which revision was accepted and whether an install was interrupted.
        slots: Loses what is not needed when the state cannot be saved.
        interrupts: Ends a running install when a newer one waits.
        log: Takes a line for each desired state and each storage fault.
    """

    def __init__(
        self,
        machine: Machine,
        store: StateStore,
        slots: Slots,
        interrupts: Interrupts,
        log: Log,
    ) -> None:
        self._machine = machine
        self._store = store
        self._slots = slots
        self._interrupts = interrupts
        self._log = log
        self._changed = threading.Condition()
        self._waiting: _Job | None = None
        self._busy = True
        """True at the start: a restart may have interrupted an install."""

        self._target = store.state.target
        """The release that is being installed."""

        self._begun = 0
        """Revision of the last job that was begun; it may not be saved yet."""

        interrupts.wake_on_stop(self._wake)

    @property
    def revision(self) -> int:
        """The highest revision that was accepted or waits to be accepted."""
        with self._changed:
            waiting = self._waiting.desired.revision if self._waiting else 0
            return max(waiting, self._begun, self._store.floor)

    @property
    def newer(self) -> DesiredState | None:
        """The desired state that waits for this thread, if it is newer than what was begun."""
        with self._changed:
            desired = self._waiting.desired if self._waiting else None
        return desired if desired is not None and self._is_newer(desired) else None

    def offer(self, desired: DesiredState, envelope: bytes) -> None:
        """Take a desired state that passed `agent.install.desired`; returns at once.

        Args:
            desired: What to run.
            envelope: Its signed form.
        """
        self._log.write("desired", revision=desired.revision, rollout=desired.rollout)
        with self._changed:
            # An equal revision waits too: when its install has ended, the machine reports it again.
            if self._busy and self._is_newer(desired) and desired.release != self._target:
                self._interrupts.supersede()
            self._waiting = _Job(desired, envelope)
            self._changed.notify()

    def run(self) -> None:
        """Finish an install that a restart interrupted, then run every job, until stopped."""
        job: _Job | None = None
        while True:
            try:
                self._interrupts.do_interjected()
                self._machine.run()
                job = self._next(job)
                if job is not None:
                    self._machine.accept(job.desired, job.envelope)
                    job = None
            except StoppedError:
                return
            except StorageError as exc:
                self._log.write("install-waits", code=exc.code, detail=exc.message)
                try:
                    if isinstance(exc, StorageFullError):
                        self._make_room(job)
                    self._interrupts.wait(STORAGE_RETRY_S, abandon=False)
                except StoppedError:
                    return

    def _make_room(self, job: _Job | None) -> None:
        """Remove what neither serves, nor may be returned to, nor is wanted."""
        record = self._store.state
        wanted = {record.target, job.desired.release if job else None}
        try:
            self._slots.collect({record.previous, *(ref.digest for ref in wanted if ref)})
        except StorageError as exc:
            self._log.write("install-waits", code=exc.code, detail=exc.message)

    def _is_newer(self, desired: DesiredState) -> bool:
        return desired.revision > max(self._begun, self._store.state.revision)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _next(self, unsaved: _Job | None) -> _Job | None:
        """Wait for a job; without a newer one, return the one that could not be saved.

        Returns:
            The job; None if a repair is to be run, or work was interjected.
        """
        with self._changed:
            self._busy = False
            self._waiting = self._waiting or unsaved
            while self._waiting is None:
                self._interrupts.check(abandon=False)
                if self._interrupts.interjected:
                    return None
                if self._machine.repair():
                    self._busy = True
                    return None
                self._changed.wait(REPAIR_LOOK_S)
            job, self._waiting = self._waiting, None
            self._busy, self._begun = True, job.desired.revision
            self._target = job.desired.release
            self._interrupts.clear_superseded()
            return job
