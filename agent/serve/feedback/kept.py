"""Keeps known answers over a restart of the agent: one file, written when the agent stops.

Rules:
- The file is read once: it is off the disk before anything of it is used. What counts after the
  start could otherwise count again after a power cut, when an old file comes back.
- After a kill or a power cut there is no file, and feedback about earlier answers is refused. No
  answer is written while the agent runs: a request must not wear out flash.
- A file that is damaged or cannot be removed is not used, and one event says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.errors import StorageError, storage_faults
from agent.ports import RecorderPort
from agent.sealed import SealedFile
from agent.serve.feedback.answers import KEY_BYTES, Answer, Group, Truth
from wire.clock import Clock
from wire.errors import IntegrityError
from wire.files import sync_directory

FILE: Final = "feedback.json"
MAX_BYTES: Final = 32 * 1024**2
_KEY: Final = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


class _Row(msgspec.Struct, frozen=True, array_like=True):
    key: str
    age_s: float
    group: int
    classes: tuple[int, ...]
    truth: Truth | None


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    saved_at_s: float
    groups: tuple[Group, ...]
    answers: tuple[_Row, ...]


class KeptAnswers:
    """The file in the state directory.

    Args:
        directory: The state directory.
        recorder: Records that it cannot be read or written.
        clock: Wall time tells how long the agent did not run.
    """

    def __init__(self, directory: Path, recorder: RecorderPort, clock: Clock) -> None:
        self._file = SealedFile(directory / FILE, _Content, limit_bytes=MAX_BYTES)
        self._recorder = recorder
        self._clock = clock

    def take(self) -> tuple[tuple[bytes, Answer], ...]:
        """Return the answers of the file, the oldest first, and remove it; none without a file."""
        try:
            content = self._file.read()
            if content is None:
                return ()
            with storage_faults(f"cannot remove {FILE}"):
                self._file.path.unlink()
                sync_directory(self._file.path.parent)
            return tuple(self._answers(content))
        except (IntegrityError, StorageError) as exc:
            self._tell("is not taken", exc)
            return ()

    def save(self, answers: Sequence[tuple[bytes, Answer]]) -> None:
        """Write answers, if there are any.

        Args:
            answers: The oldest first.
        """
        if not answers:
            return
        now_s = self._clock.monotonic_s()
        numbers: dict[Group, int] = {}
        rows = tuple(
            _Row(
                key=key.hex(),
                age_s=now_s - answer.at_s,
                group=numbers.setdefault(answer.group, len(numbers)),
                classes=answer.classes,
                truth=answer.truth,
            )
            for key, answer in answers
        )
        content = _Content(saved_at_s=self._clock.now_s(), groups=tuple(numbers), answers=rows)
        try:
            self._file.write(content)
        except StorageError as exc:
            self._tell("is refused after this restart", exc)

    def _answers(self, content: _Content) -> Iterator[tuple[bytes, Answer]]:
        """Yield the answers of a file.

        Raises:
            IntegrityError: It holds what no agent writes.
        """
        off_s = max(self._clock.now_s() - content.saved_at_s, 0.0)
        now_s = self._clock.monotonic_s()
        for row in content.answers:
            if not (_KEY.fullmatch(row.key) and 0 <= row.group < len(content.groups)):
                raise IntegrityError(f"{FILE} holds what no agent writes")
            at_s = now_s - off_s - row.age_s
            group = content.groups[row.group]
            yield bytes.fromhex(row.key), Answer(at_s, group, row.classes, row.truth)

    def _tell(self, what: str, exc: IntegrityError | StorageError) -> None:
        text = f"feedback about answers before the restart {what}: {exc.message}"
        self._recorder.event("storage", text, {"code": exc.code})
