"""Reads the kernel's attributes: small files that are read again and again.

Rules:
- No function raises because of a file's content or because a file is missing.
- Each reading is bounded and never waits: a pipe in place of a file counts as an unreadable file.
- A number has decimal digits and at most a sign, and fits 64 bits.

Source:
    The kernel makes the content of a sysfs or procfs file again for each read at its beginning, so
    a descriptor may stay open: Linux, Documentation/filesystems/sysfs.rst, "Reading/Writing
    Attribute Data".
"""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import Final

MAX_BYTES: Final = 4096
"""A page: no attribute of sysfs is longer."""

MAX_DIGITS: Final = 20
MAX_OPEN: Final = 256
MAX_CHILDREN: Final = 256
MAX_ENTRIES: Final = 4096
MAX_NAME: Final = 64
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class KernelFiles:
    """Reads files by path and keeps them open: a quarter of the cost of opening them each time."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close all files; the next reading opens what it needs."""
        while self._open:
            os.close(self._open.popitem()[1])

    def read(self, path: str, limit_bytes: int = MAX_BYTES) -> bytes | None:
        """Return the beginning of a file as it is now, or None if it cannot be read."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            try:
                # Only a file that was replaced or removed has no name left.
                if os.fstat(descriptor).st_nlink:
                    return os.pread(descriptor, limit_bytes, 0)
            except OSError:
                pass
            os.close(self._open.pop(path))
        opened = _open(path, limit_bytes)
        if opened is None:
            return None
        descriptor, data = opened
        if len(self._open) < MAX_OPEN:
            self._open[path] = descriptor
        else:
            os.close(descriptor)
        return data

    def number(self, path: str) -> int | None:
        """Return the number that a file holds, or None."""
        return whole_number(self.read(path))


def read_once(path: str, limit_bytes: int = MAX_BYTES) -> bytes | None:
    """Return the beginning of a file that is seldom read, or None."""
    opened = _open(path, limit_bytes)
    if opened is None:
        return None
    os.close(opened[0])
    return opened[1]


def text_once(path: str) -> str:
    """Return the text of a file that is seldom read, empty if there is none."""
    return (read_once(path) or b"").decode("ascii", errors="replace").strip()


def number_once(path: str) -> int | None:
    """Return the number in a file that is seldom read, or None."""
    return whole_number(read_once(path))


def whole_number(data: bytes | None) -> int | None:
    """Return a file's content as a number if it is one whole number, else None."""
    word = (data or b"").strip()
    if len(word) > MAX_DIGITS or not word.removeprefix(b"-").isdigit():
        return None
    return int(word)


def plain_name(text: str) -> str:
    """Return what a driver calls something as a name of plain characters, of bounded length."""
    return _NOT_PLAIN.sub("-", text)[:MAX_NAME]


def children(directory: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the entries of a directory whose names match, in order.

    Args:
        directory: A directory of the kernel.
        pattern: For the whole name.

    Returns:
        The paths; an empty list if there are more than `MAX_CHILDREN`, because the hottest might be
        among those left out.
    """
    try:
        with os.scandir(directory) as entries:
            names = [e.name for e in islice(entries, MAX_ENTRIES) if pattern.fullmatch(e.name)]
    except OSError:
        return []
    return [f"{directory}/{name}" for name in sorted(names)] if len(names) <= MAX_CHILDREN else []


def _open(path: str, limit_bytes: int) -> tuple[int, bytes] | None:
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        return descriptor, os.pread(descriptor, limit_bytes, 0)
    except OSError:
        os.close(descriptor)
        return None
