"""Which blobs this device has: the finished files of packages whose signed index is here.

Rules:
- A file is found by the digest that a signed index gives it, never by a name from outside.
- A file has its name in a package only after all its chunks were checked. What has rotted since,
  who fetches it notices.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from agent.install.slots import Slots
from agent.package_files import open_inside
from agent.packages import read_index
from wire.errors import FleetError
from wire.package.index import ENVELOPE_FILE, FileEntry, PackageIndex
from wire.trust.root import Trust


class Held(NamedTuple):
    """A blob that is here."""

    file: BinaryIO
    size_bytes: int


class _Known(NamedTuple):
    """What an index says, as long as its file stays the same."""

    stamp: tuple[int, ...]
    entries: dict[str, tuple[FileEntry, ...]]
    """By digest: two variants may have the same file, of which a board keeps one."""


class HeldBlobs:
    """The blobs of the packages on this device. For any thread.

    Args:
        slots: Where packages are.
        trust: The keys that may sign them.
    """

    def __init__(self, slots: Slots, trust: Trust) -> None:
        self._slots = slots
        self._trust = trust
        self._known: dict[Path, _Known] = {}
        self._lock = threading.Lock()

    @contextmanager
    def opened(self, sha256: str) -> Iterator[Held | None]:
        """Open a blob as long as the block.

        Args:
            sha256: Its digest.

        Yields:
            The blob, or None if it is not here.
        """
        with contextlib.ExitStack() as stack:
            yield self._open(sha256, stack)

    def _open(self, sha256: str, stack: contextlib.ExitStack) -> Held | None:
        for directory, entry in self._places(sha256):
            with contextlib.suppress(FleetError, OSError):
                file = stack.enter_context(open_inside(directory, entry.path))
                if os.fstat(file.fileno()).st_size == entry.size_bytes:
                    return Held(file, entry.size_bytes)
        return None

    def _places(self, sha256: str) -> Iterator[tuple[Path, FileEntry]]:
        # A package that moves to the whole ones between the two looks is seen twice, never missed.
        digests = (*self._slots.arriving(), *self._slots.whole())
        directories = [self._slots.directory(digest) for digest in dict.fromkeys(digests)]
        with self._lock:
            self._known = {d: self._known[d] for d in directories if d in self._known}
        for directory in directories:
            if directory.is_symlink():
                continue
            for entry in self._entries(directory).get(sha256, ()):
                yield directory, entry

    def _entries(self, directory: Path) -> dict[str, tuple[FileEntry, ...]]:
        """Return what a package has, by digest; nothing if its index is not here or not signed."""
        try:
            found = (directory / ENVELOPE_FILE).lstat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            return {}
        with self._lock:
            known = self._known.get(directory)
        if known is None or known.stamp != stamp:
            try:
                index = read_index(directory, directory.name, self._trust)
                known = _Known(stamp, _by_digest(index))
            except FleetError:
                known = _Known(stamp, {})
            with self._lock:
                self._known[directory] = known
        return known.entries


def _by_digest(index: PackageIndex) -> dict[str, tuple[FileEntry, ...]]:
    entries: dict[str, tuple[FileEntry, ...]] = {}
    for entry in index.files:
        entries[entry.sha256] = (*entries.get(entry.sha256, ()), entry)
    return entries
