"""From which file a delta begins, how it is cut into chunks, and which ones are removed. Pure.

Rules:
- A delta begins from a file of an earlier package of the same name, or from no bytes, which is
  plain compression. That one comes last: it is for first installs and for files like no other.
- A device has only the files of the variants that fit it, and nothing is offered that begins from
  another one.
- Whether a delta pays is decided by its size, when it is there (`wire.delta.layout.pays`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from controller.domain.alike import Files, Likeness
from wire.delivery import MAX_DELTA_CHUNKS
from wire.package.index import CHUNK_BYTES, FileEntry, PackageIndex, is_needed, prefixes_for
from wire.package.manifest import Manifest
from wire.profile import DeviceProfile

EMPTY: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""SHA-256 of no bytes."""

MIN_FILE_BYTES: Final = 64 * 1024
"""A smaller file is half a chunk: a delta would save less than the messages about it cost."""

MAX_FILE_BYTES: Final = 4 * 1024**3
"""Making a delta needs time and memory in proportion to its files."""

MAX_BASES: Final = 2
"""Files that a delta to one file may begin from, on one device, beside no bytes."""

MAX_COPIES: Final = 8
"""Files of the same content for which is looked what is like them."""

MAX_CHUNK_BYTES: Final = 1024**2
"""The greatest chunk that a package may have."""

CHUNKS_OF_ONE: Final = MAX_DELTA_CHUNKS // 4
"""An answer that has room for `MAX_DELTA_CHUNKS` names several deltas."""

MAX_BESIDE: Final = 4
MAX_BESIDE_BYTES: Final = 64 * 1024**2
_DESCRIBES: Final = (".xml", ".onnx")
"""What may say where the tensors of the file beside it are."""

FIRST_BYTES_PER_S: Final = 5e6
"""How fast deltas are made until one was: about what a file without known tensors takes."""

START_S: Final = 0.5
"""What starting a process costs."""

MIN_WAIT_S: Final = 1.0
MAX_WAIT_S: Final = 60.0
"""A device asks again after this time at most, however long it will take."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """What a published package says of itself."""

    index: PackageIndex
    """Its chunks may be left out."""

    manifest: Manifest

    @cached_property
    def files(self) -> Files:
        """Its files, found by what makes others alike; they are put in order once."""
        return Files(self.index, self.manifest)

    def has(self, sha256: str) -> bool:
        """Tell whether a file of it has this content."""
        return bool(self.files.of(sha256))

    def files_on(self, profile: DeviceProfile | None) -> tuple[FileEntry, ...]:
        """Return the files that a device keeps of it; all when its profile is not known."""
        if profile is None:
            return self.index.files
        return self.index.files_for(self.manifest.fitting(profile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A file that is wanted, and one that a delta to it may begin from."""

    target: FileEntry
    package: Package
    base: FileEntry | None = None
    """None for no bytes."""

    base_package: Package | None = None

    @property
    def pair(self) -> tuple[str, str]:
        """Digests of the base and the target: what one delta is known by."""
        return (EMPTY if self.base is None else self.base.sha256, self.target.sha256)

    @property
    def work_bytes(self) -> int:
        """The size of both files."""
        return self.target.size_bytes + (self.base.size_bytes if self.base else 0)


class Kept(NamedTuple):
    """A delta that is kept."""

    pair: tuple[str, str]
    sha256: str
    size_bytes: int
    used_at_s: float


def ways(
    package: Package, sha256: str, bases: Sequence[Package], profile: DeviceProfile | None
) -> tuple[Way, ...]:
    """Return what deltas to a file may begin from, the best first.

    Args:
        package: What the device has to run.
        sha256: The file of it that the device lacks.
        bases: The packages that it has, the most likely first.
        profile: Of the device; None if not known.

    Returns:
        At most `MAX_BASES` files and then no bytes; nothing for a file that deltas are not made to.
    """
    return _ways(package, sha256, [_Base.of(base, profile) for base in bases])


def ahead(package: Package, base: Package | None, profile: DeviceProfile | None) -> Iterator[Way]:
    """Yield what a device will ask for that goes from one package to another.

    Args:
        package: What it is going to run.
        base: What it runs; None for nothing that is known.
        profile: Of the device; None if not known.
    """
    bases = () if base is None else (base,)
    has = {e.sha256 for known in bases for e in known.files_on(profile)}
    kept = [_Base.of(known, profile) for known in bases]
    for sha256 in dict.fromkeys(e.sha256 for e in package.files_on(profile)):
        if sha256 not in has:
            yield from _ways(package, sha256, kept)[:1]


def beside(package: Package, path: str) -> tuple[FileEntry, ...]:
    """Return the files in the directory of another that may say where its tensors are."""
    folder, name = _split(path)
    found = (
        e
        for e in package.index.files
        if _split(e.path)[0] == folder
        and _split(e.path)[1] != name
        and e.path.endswith(_DESCRIBES)
        and e.size_bytes <= MAX_BESIDE_BYTES
    )
    return tuple(entry for _, entry in zip(range(MAX_BESIDE), found, strict=False))


def chunk_bytes_of(size_bytes: int) -> int | None:
    """Return how large the chunks of a delta are; None if there would be too many."""
    chunk_bytes = CHUNK_BYTES
    while size_bytes > CHUNKS_OF_ONE * chunk_bytes and chunk_bytes < MAX_CHUNK_BYTES:
        chunk_bytes *= 2
    return chunk_bytes if size_bytes <= MAX_DELTA_CHUNKS * chunk_bytes else None


def wait_s(work_bytes: Iterable[int], bytes_per_s: float, passed_s: float) -> float:
    """Return when to ask again for a delta.

    Args:
        work_bytes: Of it and of those that are made before it.
        bytes_per_s: How fast the last ones were made.
        passed_s: How long the first has been at work.

    Returns:
        Seconds, within bounds.
    """
    needed_s = sum(START_S + size / bytes_per_s for size in work_bytes)
    return min(max(needed_s - passed_s, MIN_WAIT_S), MAX_WAIT_S)


def to_remove(kept: Iterable[Kept], keep_bytes: int) -> list[Kept]:
    """Return the deltas that must go, those that were longest not used first.

    Args:
        kept: All of them.
        keep_bytes: How much may stay.
    """
    by_use = sorted(kept, key=lambda each: (each.used_at_s, each.pair))
    over_bytes = sum(each.size_bytes for each in by_use) - keep_bytes
    gone: list[Kept] = []
    for each in by_use:
        if over_bytes <= 0:
            break
        over_bytes -= each.size_bytes
        gone.append(each)
    return gone


class _Base(NamedTuple):
    """A package that a device has, and what the device keeps of it."""

    package: Package
    prefixes: tuple[str, ...] | None
    """None for all."""

    @classmethod
    def of(cls, package: Package, profile: DeviceProfile | None) -> _Base:
        if profile is None:
            return cls(package, None)
        return cls(package, prefixes_for(package.manifest.fitting(profile)))

    def most_like(self, package: Package, target: FileEntry) -> Likeness | None:
        if self.package.index.name != package.index.name:
            return None
        place = package.files.place(target.path)
        return self.package.files.most_like(
            target,
            place,
            lambda entry: (
                entry.size_bytes <= MAX_FILE_BYTES
                and entry.sha256 != target.sha256
                and (self.prefixes is None or is_needed(entry.path, self.prefixes))
            ),
        )


def _ways(package: Package, sha256: str, bases: Sequence[_Base]) -> tuple[Way, ...]:
    wanted = [e for e in package.files.of(sha256)[:MAX_COPIES] if _is_fit(e)]
    if not wanted:
        return ()
    found: list[tuple[tuple[int, int, float], Way]] = []
    for base in bases:
        alike = ((base.most_like(package, target), target) for target in wanted)
        of_base = [
            (
                each.rank,
                Way(target=target, package=package, base=each.entry, base_package=base.package),
            )
            for each, target in alike
            if each is not None
        ]
        found.extend(sorted(of_base, key=_by_rank)[:1])
    best = [way for _, way in sorted(found, key=_by_rank)[:MAX_BASES]]
    return (*best, Way(target=wanted[0], package=package))


def _by_rank(found: tuple[tuple[int, int, float], Way]) -> tuple[int, int, float]:
    return found[0]


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name


def _is_fit(entry: FileEntry) -> bool:
    return MIN_FILE_BYTES <= entry.size_bytes <= MAX_FILE_BYTES
