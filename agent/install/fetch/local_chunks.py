"""Chunks that another package on this device already has, so that the agent need not fetch them.

Rules:
- A chunk is found by its digest, and the transfer checks it: a damaged old package
  costs time, never a wrong byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from agent.packages import open_inside, read_index
from wire.errors import FleetError
from wire.package.index import FileEntry
from wire.trust.root import TrustRoot


class _Place(NamedTuple):
    directory: Path
    entry: FileEntry
    offset: int
    length: int


class LocalChunkStore:
    """The chunks of some packages.

    Args:
        directories: Directories of whole packages; their names are their digests.
        trust: The keys that may sign packages.
    """

    def __init__(self, directories: Iterable[Path], trust: TrustRoot) -> None:
        self._places: dict[str, _Place] = {}
        for directory in directories:
            try:
                index = read_index(directory, directory.name, trust)
            except FleetError:
                continue  # a damaged package gives no chunks
            for entry in index.files:
                for number, digest in enumerate(entry.chunks):
                    offset = number * index.chunk_bytes
                    length = min(index.chunk_bytes, entry.size_bytes - offset)
                    self._places[digest] = _Place(directory, entry, offset, length)

    def find(self, digest: str) -> bytes | None:
        """Return the chunk that should have a digest, or None; its content is not checked."""
        place = self._places.get(digest)
        if place is None:
            return None
        try:
            with open_inside(place.directory, place.entry.path) as file:
                file.seek(place.offset)
                return file.read(place.length)
        except (FleetError, OSError):
            return None
