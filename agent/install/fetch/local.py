"""Chunks and files that other packages on this device have, so that nobody need send them.

Rules:
- A chunk is found by its digest, and the partial file checks it: a damaged old package costs time,
  never a wrong byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from agent.install.fetch.part import Part
from agent.install.fetch.sources import Errand, SourceName
from agent.package_files import open_inside, refuse_links
from agent.packages import read_index
from wire.errors import FleetError
from wire.package.index import FileEntry
from wire.progress import LOCAL
from wire.trust.root import Trust


class _Place(NamedTuple):
    directory: Path
    entry: FileEntry
    offset: int
    length: int


class LocalPackages:
    """The chunks and files of some packages.

    Args:
        directories: Directories of whole packages; their names are their digests.
        trust: The keys that may sign packages.
        own: Directory of the package that is being fetched: what it has twice comes once.
    """

    def __init__(self, directories: Iterable[Path], trust: Trust, own: Path | None = None) -> None:
        self._chunks: dict[str, _Place] = {}
        self._files: dict[str, tuple[Path, str]] = {}
        self._packages: list[str] = []
        for directory in (*directories, *([own] if own is not None else [])):
            try:
                index = read_index(directory, directory.name, trust)
            except FleetError:
                continue  # a damaged package gives nothing
            if directory != own:
                self._packages.append(directory.name)
            for entry in index.files:
                self._files.setdefault(entry.sha256, (directory, entry.path))
                for number, digest in enumerate(entry.chunks):
                    offset = number * index.chunk_bytes
                    length = min(index.chunk_bytes, entry.size_bytes - offset)
                    place = _Place(directory, entry, offset, length)
                    self._chunks.setdefault(digest, place)

    @property
    def packages(self) -> tuple[str, ...]:
        """Digests of the packages."""
        return tuple(self._packages)

    def chunk(self, digest: str) -> bytes | None:
        """Return the chunk that should have a digest, or None; its content is not checked."""
        place = self._chunks.get(digest)
        if place is None:
            return None
        try:
            with open_inside(place.directory, place.entry.path) as file:
                file.seek(place.offset)
                return file.read(place.length)
        except (FleetError, OSError):
            return None

    def file(self, sha256: str) -> Path | None:
        """Return the path of a file that should have a digest, or None; it is not checked."""
        directory, path = self._files.get(sha256, (None, ""))
        if directory is None:
            return None
        try:
            refuse_links(directory, path)
        except FleetError:
            return None
        return directory / path if (directory / path).is_file() else None


class LocalSource:
    """Copies chunks from other packages on this device."""

    name: SourceName = LOCAL

    def bring(self, part: Part, errand: Errand) -> None:
        """Copy what is here; see `ChunkSource`."""
        chunks = part.blob.chunks
        for index in part.lacking if chunks is not None else ():
            errand.check()
            data = errand.holdings.chunk(chunks[index]) if chunks is not None else None
            # What has rotted is no fault of a sender's, so it does not count as one.
            if data is not None and (size_bytes := part.keep_right(index, data)):
                errand.progress(size_bytes, LOCAL)

    def end(self) -> None:
        """Do nothing: this source keeps nothing open."""
