"""Finds in a package the file that is most like one of another package. Pure.

Files are alike by their paths, by their variants' names, or by what they are and their sizes. A
package may have thousands of files, and a device asks for many: so they are put in order once, and
of those that are alike by size only a few are looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import log
from typing import Final, NamedTuple

from wire.package.index import FileEntry, PackageIndex
from wire.package.manifest import Manifest
from wire.package.variant import Variant

MAX_SIZE_RATIO: Final = 4.0
"""Between files that are taken for versions of the same model only because they look alike."""

MAX_LOOKED: Final = 128
"""Files of one kind that are looked at on each side of a size."""


class Place(NamedTuple):
    """Where a file is in its package."""

    variant: Variant | None
    name: str
    """Its path in its variant, or its name alone where it is in none."""


class Likeness(NamedTuple):
    """A file that is like another one."""

    rank: tuple[int, int, float]
    """How alike they are, less for more."""

    entry: FileEntry


class _Kind(NamedTuple):
    """What a file is: the end of its name and its runtime, or its name where it has no variant."""

    name: str
    runtime: str | None


class Files:
    """The files of a package, found by what makes others alike.

    Args:
        index: Names them.
        manifest: Names the variants.
    """

    def __init__(self, index: PackageIndex, manifest: Manifest) -> None:
        self._variants: dict[str, tuple[int, Variant]] = {}
        """By directory, with their positions in the manifest."""

        for position, variant in enumerate(manifest.variants):
            self._variants.setdefault(variant.directory, (position, variant))
        self._by_sha256: defaultdict[str, list[FileEntry]] = defaultdict(list)
        self._by_path: dict[str, FileEntry] = {}
        self._by_place: defaultdict[tuple[str, str], list[FileEntry]] = defaultdict(list)
        self._by_kind: defaultdict[_Kind, list[FileEntry]] = defaultdict(list)
        for entry in index.files:
            self._by_sha256[entry.sha256].append(entry)
            if not entry.size_bytes:
                continue
            place = self.place(entry.path)
            self._by_path[entry.path] = entry
            self._by_kind[_kind(place)].append(entry)
            if place.variant is not None:
                self._by_place[place.variant.name, place.name].append(entry)
        for entries in self._by_kind.values():
            entries.sort(key=_size)
        self._runtimes = sorted({kind.runtime for kind in self._by_kind if kind.runtime})

    def of(self, sha256: str) -> Sequence[FileEntry]:
        """Return the files with a content, in index order."""
        return self._by_sha256.get(sha256, ())

    def place(self, path: str) -> Place:
        """Return where a file is."""
        parts = path.split("/")
        folders = ("/".join(parts[:count]) for count in range(1, len(parts)))
        found = [self._variants[folder] for folder in folders if folder in self._variants]
        if not found:
            return Place(None, parts[-1])
        variant = min(found, key=lambda each: each[0])[1]
        return Place(variant, path.removeprefix(f"{variant.directory}/"))

    def most_like(
        self, target: FileEntry, place: Place, is_fit: Callable[[FileEntry], bool]
    ) -> Likeness | None:
        """Return the file that is most like one of another package.

        Args:
            target: The other file, which is not empty.
            place: Where that is in its package.
            is_fit: Tells which files count.

        Returns:
            The file, or None if none is alike.
        """
        same = self._by_path.get(target.path)
        if same is not None and is_fit(same):
            return Likeness((0, 0, 0.0), same)
        if place.variant is not None:
            named = self._by_place.get((place.variant.name, place.name), ())[:MAX_LOOKED]
            for entry in filter(is_fit, named):
                return Likeness((1, 0, 0.0), entry)
        kind = _kind(place)
        nearest = self._nearest(kind, target, is_fit)
        if nearest is None and kind.runtime is not None:
            others = (_Kind(kind.name, each) for each in self._runtimes if each != kind.runtime)
            found = (self._nearest(other, target, is_fit) for other in others)
            return min(
                (Likeness((2, 1, each.rank[2]), each.entry) for each in found if each is not None),
                key=lambda each: each.rank,
                default=None,
            )
        return nearest

    def _nearest(
        self, kind: _Kind, target: FileEntry, is_fit: Callable[[FileEntry], bool]
    ) -> Likeness | None:
        """Return the file of a kind whose size is nearest to that of another one."""
        entries = self._by_kind.get(kind, [])
        middle = bisect_left(entries, target.size_bytes, key=_size)
        smaller = range(middle - 1, max(middle - 1 - MAX_LOOKED, -1), -1)
        larger = range(middle, min(middle + MAX_LOOKED, len(entries)))
        sides = (
            _alike_by_size((entries[place] for place in side), target, is_fit)
            for side in (smaller, larger)
        )
        found = [each for each in sides if each is not None]
        return min(found, key=lambda each: each.rank, default=None)


def _alike_by_size(
    entries: Iterator[FileEntry], target: FileEntry, is_fit: Callable[[FileEntry], bool]
) -> Likeness | None:
    """Return the first file that counts; the nearest sizes come first."""
    for entry in entries:
        ratio = abs(log(target.size_bytes / entry.size_bytes))
        if ratio > log(MAX_SIZE_RATIO):
            return None
        if is_fit(entry):
            return Likeness((2, 0, ratio), entry)
    return None


def _kind(place: Place) -> _Kind:
    if place.variant is None:
        return _Kind(place.name, None)
    return _Kind(place.name.rpartition(".")[2], place.variant.info.runtime)


def _size(entry: FileEntry) -> int:
    return entry.size_bytes
