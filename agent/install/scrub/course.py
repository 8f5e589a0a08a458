"""Which stored file is compared next, and how much may be read now; pure.

Rules:
- A pass takes the files in the order of their names, so it goes on where it was although packages
  come and go.
- A new pass begins some days after the one before began, never before that has ended. Nothing is
  made up for after a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from agent.install.budget.ledger import SET_S

MAX_NAME: Final = 8192
END: Final = "\U0010ffff"
"""Behind every path of a package."""


class StoredFile(NamedTuple):
    """A file of a stored package. Files are ordered by this."""

    digest: str
    path: str


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How far the passes are; this outlasts a restart."""

    began_s: float = 0.0
    """Wall time at which the last pass began, in seconds since 1970."""

    is_over: bool = True
    """Whether it has ended."""

    digest: str = ""
    """The package of the last file that was compared in it; empty before the first."""

    path: str = ""
    """That file; `END` after the whole package."""

    files: int = 0
    """How many files were compared in it."""

    size_bytes: int = 0
    """And how large they are together."""

    damaged: int = 0
    """How many of them were damaged."""

    def faults(self) -> list[str]:
        """Return what cannot be, as after damage."""
        counts = (self.files, self.size_bytes, self.damaged)
        if min(counts) < 0 or len(self.digest) + len(self.path) > MAX_NAME:
            return ["the course of the scrub cannot be"]
        return []


def under_way(course: Course, now_s: float, every_s: float, ran_s: float) -> Course | None:
    """Return the course of the pass that is to be gone on with now.

    Args:
        course: How far the passes are.
        now_s: Wall time. It may jump: a pass that began in the future is followed by one now. A
            clock that was not set yet, as on a board without a battery, tells nothing.
        every_s: Time between the beginnings of two passes.
        ran_s: How long the agent has run, or since it began the last pass.

    Returns:
        The course, a new one if a pass is due; None if none is.
    """
    if not course.is_over:
        return course
    passed_s = now_s - course.began_s if now_s >= SET_S else ran_s
    if course.began_s and 0 <= passed_s < every_s:
        return None
    return Course(began_s=now_s, is_over=False)


def next_file(course: Course, files: Iterable[StoredFile]) -> StoredFile | None:
    """Return the file to compare next.

    Args:
        course: How far the pass is.
        files: All files that are stored.

    Returns:
        The first one behind the last that was compared; None if the pass is over.
    """
    done = StoredFile(course.digest, course.path)
    return min((file for file in files if file > done), default=None)


def compared(course: Course, file: StoredFile, size_bytes: int, *, is_whole: bool) -> Course:
    """Return the course after a file.

    Args:
        course: The course before.
        file: What was compared.
        size_bytes: Its size.
        is_whole: Whether it is what was signed.
    """
    return msgspec.structs.replace(
        course,
        digest=file.digest,
        path=file.path,
        files=course.files + 1,
        size_bytes=course.size_bytes + size_bytes,
        damaged=course.damaged + (not is_whole),
    )


def allowance_bytes(bytes_per_s: int, passed_s: float, most_s: float) -> int:
    """Return how much may be read now.

    Args:
        bytes_per_s: The bound.
        passed_s: Time since the last time that something could be read.
        most_s: Of this, no more counts: a pause is not made up for.
    """
    return int(bytes_per_s * min(max(passed_s, 0.0), most_s))
