"""Keeps what the policy learnt of the battery over restarts: one small file.

Rules:
- The file has its checksum in the first line, which is checked before anything is parsed. A file
  that is damaged is no reason not to start: the agent learns anew, and one event says so.
- It is written whole or not at all, at most each `SAVE_S`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from agent.ports import RecorderPort
from agent.select.learnt import Learnt
from wire.clock import Clock
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.files import read_regular, write_atomic

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
        self._path = directory / FILE
        self._recorder = recorder
        self._clock = clock
        self._saved_s = clock.monotonic_s()
        self._saved: Learnt | None = None
        self._is_failing = False

    def load(self) -> Learnt:
        """Return what was kept; what a new device knows, if there is nothing or it is damaged."""
        try:
            data = read_regular(self._path, MAX_BYTES + 1)
            self._saved = _read(data)
        except FileNotFoundError:
            return Learnt()
        except (OSError, WireFormatError) as exc:
            self._tell("cannot be read, and is learnt anew", exc)
            return Learnt()
        return self._saved

    def keep(self, learnt: Learnt) -> None:
        """Write what was learnt, if it is new and the last time is long ago."""
        now_s = self._clock.monotonic_s()
        if now_s - self._saved_s < SAVE_S or learnt == (self._saved or Learnt()):
            return
        if learnt.faults():
            return  # a restart would not take it, and lose what is there
        self._saved_s = now_s
        body = to_json(learnt)
        try:
            write_atomic(self._path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except OSError as exc:
            if not self._is_failing:
                self._tell("cannot be written", exc)
            self._is_failing = True
            return
        self._saved, self._is_failing = learnt, False

    def _tell(self, what: str, exc: OSError | WireFormatError) -> None:
        fault = exc.message if isinstance(exc, WireFormatError) else exc.strerror or str(exc)
        text = f"what was learnt of the battery {what}: {self._path.name}: {fault.lower()}"
        self._recorder.event("storage", text, {})


def _read(data: bytes) -> Learnt:
    """Return the content of a file.

    Raises:
        WireFormatError: It is damaged.
    """
    if len(data) > MAX_BYTES:
        raise WireFormatError(f"it has over {MAX_BYTES} bytes")
    digest, _, body = data.partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise WireFormatError("its checksum is wrong")
    learnt = from_json(body, Learnt, limit_bytes=MAX_BYTES)
    if faults := learnt.faults():
        raise WireFormatError(faults[0])
    return learnt
