"""The thread that runs one install of a model at a time, the newest revision first.

Rules:
- Each model has a thread of its own; what they do to packages, they do in turn
  (`agent.interrupts`).
- A newer revision replaces one that waits. It ends the running install at its next safe point,
  unless it names the same package: then it waits.
- A model that the device should have no more is removed when its install has ended, and its thread
  ends with it.
- While nothing waits, the thread looks every few seconds whether the installed release and the one
  before are still whole, and repairs them. Then it has time for what is to be done beside installs.
- If the storage fails, the thread tries again. If it is full, what is not needed goes first.
  An unexpected fault ends the agent, and the next start goes on from the saved state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from agent.errors import StoppedError, StorageError, StorageFullError
from agent.install.mending import Mending
from agent.install.slots import Slots
from agent.install.store import ModelStore
from agent.install.workflow import Machine
from agent.interrupts import Interrupts
from agent.log import Log
from wire.desired import ModelState

STORAGE_RETRY_S: Final = 10.0
REPAIR_LOOK_S: Final = 5.0


class _Job(NamedTuple):
    desired: ModelState | None
    """None to remove the model."""

    has_sources: bool = False


class Installs:
    """Runs the machine of a model in a thread of its own.

    Args:
        machine: Installs what is desired.
        store: Knows which revision was accepted and whether an install was interrupted.
        slots: Loses what is not needed when the state cannot be saved.
        interrupts: Those of the model; they end a running install when a newer one waits.
        log: Takes a line for each revision and each storage fault.
        remove: Removes the model from the device; raises StorageError if it cannot.
        mending: Mends the version before; None for nothing that does.
        idle: Does a little of what is to be done beside installs.
    """

    def __init__(
        self,
        machine: Machine,
        store: ModelStore,
        slots: Slots,
        interrupts: Interrupts,
        log: Log,
        remove: Callable[[], None],
        mending: Mending | None = None,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._machine = machine
        self._store = store
        self._slots = slots
        self._interrupts = interrupts
        self._log = log
        self._remove = remove
        self._mending = mending
        self._idle = idle
        self._changed = threading.Condition()
        self._waiting: _Job | None = None
        self._busy = True
        """True at the start: a restart may have interrupted an install."""

        self._target = store.state.target
        """The release that is being installed."""

        self._job: _Job | None = None
        """What was begun; it may not be saved yet."""

        self._begun = 0
        """Revision of the last job that was begun; it may not be saved yet."""

        interrupts.wake_on_stop(self._wake)

    @property
    def newer(self) -> ModelState | None:
        """What waits for this thread, if it is newer than what was accepted."""
        with self._changed:
            job = self._waiting or self._job
        desired = job.desired if job is not None else None
        accepted = self._store.state.revision
        return desired if desired is not None and desired.revision > accepted else None

    @property
    def is_leaving(self) -> bool:
        """Whether the model is being removed, or waits to be."""
        with self._changed:
            job = self._waiting or self._job
        return job is not None and job.desired is None

    @property
    def has_job(self) -> bool:
        """Whether anything waits for this thread."""
        with self._changed:
            return self._waiting is not None

    def offer(self, desired: ModelState, *, has_sources: bool = False) -> None:
        """Take what is desired from a checked desired state; returns at once.

        Args:
            desired: What to run.
            has_sources: Whether the controller has other sources than messages.
        """
        name, revision = desired.name, desired.revision
        self._log.write("desired", model=name, revision=revision, rollout=desired.rollout)
        with self._changed:
            # An equal revision waits too: when its install has ended, the machine reports it again.
            if self._busy and self._is_newer(desired) and desired.release != self._target:
                self._interrupts.supersede()
            self._waiting = _Job(desired, has_sources)
            self._changed.notify()

    def offer_removal(self) -> None:
        """Take that the device should have the model no more; returns at once."""
        self._log.write("desired", model=self._store.name, removed=True)
        with self._changed:
            if self._busy:
                self._interrupts.supersede()
            self._waiting = _Job(None)
            self._changed.notify()

    def run(self) -> bool:
        """Finish an install that a restart interrupted, then run every job.

        Returns:
            Whether the model has been removed; False when the agent is being stopped.
        """
        job: _Job | None = None
        while True:
            try:
                self._machine.run()
                if self._mending is not None:
                    self._mending.run()
                job = self._next(job)
                if job is not None and job.desired is None:
                    with self._interrupts.turn():
                        self._remove()
                    return True
                if job is not None and job.desired is not None:
                    self._machine.accept(job.desired, has_sources=job.has_sources)
                job = None
            except StoppedError:
                return False
            except StorageError as exc:
                self._log.write("install-waits", code=exc.code, detail=exc.message)
                try:
                    if isinstance(exc, StorageFullError):
                        self._make_room(job)
                    self._interrupts.wait(STORAGE_RETRY_S, abandon=False)
                except StoppedError:
                    return False

    def end(self) -> None:
        """Forget the thread: it has ended with its model."""
        self._interrupts.sleep_no_more(self._wake)

    def _make_room(self, job: _Job | None) -> None:
        """Remove what neither serves, nor may be returned to, nor is wanted."""
        release = job.desired.release if job is not None and job.desired is not None else None
        wanted = set() if release is None else {release.digest}
        try:
            with self._interrupts.turn():
                self._slots.collect({*self._store.kept, *wanted})
        except StorageError as exc:
            self._log.write("install-waits", code=exc.code, detail=exc.message)

    def _is_newer(self, desired: ModelState) -> bool:
        return desired.revision > max(self._begun, self._store.state.revision)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _next(self, unsaved: _Job | None) -> _Job | None:
        """Wait for a job; without a newer one, return the one that could not be saved.

        Returns:
            The job; None if something is to be repaired.
        """
        with self._changed:
            self._busy = False
            self._waiting = self._waiting or unsaved
        while True:
            with self._changed:
                if self._waiting is None:
                    self._interrupts.check(abandon=False)
                    if self._machine.repair() or self._has_to_mend:
                        self._busy = True
                        return None
                    self._changed.wait(REPAIR_LOOK_S)
                if self._waiting is not None:
                    return self._taken(self._waiting)
            self._idle()

    @property
    def _has_to_mend(self) -> bool:
        return self._mending is not None and self._mending.is_due()

    def _taken(self, job: _Job) -> _Job:
        """Note that a job is begun; return it."""
        self._waiting = None
        self._job, self._busy = job, True
        self._interrupts.clear_superseded()
        if job.desired is not None:
            self._begun, self._target = job.desired.revision, job.desired.release
        return job
