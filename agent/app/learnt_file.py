"""Keeps what the policy learnt of the battery over restarts: one small file.

Rules:
- A file that is damaged is no reason not to start: the agent learns anew, and one event says so.
- It is written at most each `SAVE_S`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from agent.errors import StorageError
from agent.ports import RecorderPort
from agent.sealed import SealedFile
from agent.select.learnt import Learnt
from wire.clock import Clock
from wire.errors import IntegrityError

FILE: Final = "learnt.json"
MAX_BYTES: Final = 64 * 1024
SAVE_S: Final = 1800.0
"""Half an hour: a bin of the day is lost at most, and flash is spared."""


class LearntFile:
    """The file in the state directory.

    Args:
        directory: The state directory.
        recorder: Records that it cannot be read or written.
        clock: For the time between two writes.
    """

    def __init__(self, directory: Path, recorder: RecorderPort, clock: Clock) -> None:
        self._file = SealedFile(directory / FILE, Learnt, limit_bytes=MAX_BYTES)
        self._recorder = recorder
        self._clock = clock
        self._saved_s = clock.monotonic_s()
        self._saved: Learnt | None = None
        self._is_failing = False

    def load(self) -> Learnt:
        """Return what was kept; what a new device knows, if there is nothing or it is damaged."""
        try:
            self._saved = _checked(self._file.read())
        except IntegrityError as exc:
            self._saved = None
            self._tell("is learnt anew", exc)
        return self._saved or Learnt()

    def keep(self, learnt: Learnt) -> None:
        """Write what was learnt, if it is new and the last time is long ago."""
        now_s = self._clock.monotonic_s()
        if now_s - self._saved_s < SAVE_S or learnt == self._saved:
            return
        if learnt == Learnt():
            return  # a policy that learns nothing serves; what is there may be of use again
        if learnt.faults():
            return  # a restart would not take it, and lose what is there
        self._saved_s = now_s
        try:
            self._file.write(learnt)
        except StorageError as exc:
            if not self._is_failing:
                self._tell("is lost at a restart", exc)
            self._is_failing = True
            return
        self._saved, self._is_failing = learnt, False

    def _tell(self, what: str, exc: IntegrityError | StorageError) -> None:
        text = f"what was learnt of the battery {what}: {exc.message}"
        self._recorder.event("storage", text, {"code": exc.code})


def _checked(learnt: Learnt | None) -> Learnt | None:
    """Return what was read, unless it cannot be.

    Raises:
        IntegrityError: It cannot be.
    """
    if learnt is not None and (faults := learnt.faults()):
        raise IntegrityError(f"{FILE} cannot be used: {faults[0]}")
    return learnt
