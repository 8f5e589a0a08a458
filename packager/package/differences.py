"""Compares two packages: variants, their figures, files, and what a device would fetch.

The functions are pure: they take manifests and indexes and return differences.

Rules:
- The comparison puts only comparable figures side by side: latencies of the same machine and number
  of threads, values of the same metric. For the others a note says why not.
- A device fetches the whole manifest and the whole signature. Of the other files it fetches each
  chunk that none of its own files has. This is how the agent fetches.
- A device has the variants that were kept for its profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packager.judge.further import clause, figures_of
from wire.codec import to_builtins
from wire.package.accuracy import Accuracy
from wire.package.index import FileEntry, PackageIndex
from wire.package.manifest import MANIFEST_FILE, Manifest
from wire.package.performance import Performance
from wire.package.variant import Variant

FILES: Final = "files"


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """An open package."""

    manifest: Manifest
    index: PackageIndex
    envelope_bytes: int = 0
    """Size of the signature's file; 0 for an unsigned package."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How a file differs between two packages."""

    path: str
    change: str
    """`added`, `removed` or `changed`."""

    old_bytes: int
    new_bytes: int
    shared_chunks: int
    """Number of the new file's chunks that the old package also has, in any file."""


class FurtherDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A further metric of a variant, in both packages."""

    metric: str
    """`OUTPUT=METRIC`, with the labels that it was given."""

    old_value: float | None
    new_value: float | None
    old_retention: float | None
    new_retention: float | None


class VariantDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of either package, with its figures in both."""

    name: str
    change: str
    """`added`, `removed`, `changed` (its files), `declared` (only its entry in the manifest) or
    `same`."""

    differs: tuple[str, ...] = ()
    """The parts that differ: `files`, and fields of its declaration."""

    metric: str = ""
    old_value: float | None = None
    new_value: float | None = None
    old_retention: float | None = None
    new_retention: float | None = None
    old_bytes: int | None = None
    new_bytes: int | None = None
    old_latency_p50_ms: float | None = None
    new_latency_p50_ms: float | None = None
    further: tuple[FurtherDifference, ...] | msgspec.UnsetType = msgspec.UNSET
    """Further metrics of either package; unset where there are none."""

    notes: tuple[str, ...] = ()
    """Why figures are missing or must not be compared."""


class ProfileDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind of device has, and what it would get."""

    name: str
    """Empty for a device that keeps every variant."""

    change: str
    """`gained`, `lost` or `common`."""

    old_variants: tuple[str, ...]
    new_variants: tuple[str, ...]
    fetch_bytes: int | None
    """Bytes that such a device lacks if it has the old package; for a gained profile, the most that
    it may lack. None for a lost profile, whose devices get every variant that can run there."""

    new_bytes: int | None
    """Bytes of everything that it would have with the new package."""


class PackageDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How two packages differ."""

    old: str
    """`name:version`."""

    new: str
    old_digest: str
    new_digest: str
    files: tuple[Difference, ...]
    variants: tuple[VariantDifference, ...]
    profiles: tuple[ProfileDifference, ...]

    @property
    def same(self) -> bool:
        """Whether both packages have the same files."""
        return not self.files


def compare_packages(old: Package, new: Package) -> PackageDifference:
    """Compare two packages.

    Args:
        old: What devices have.
        new: What they would get.

    Returns:
        The differences.
    """
    return PackageDifference(
        old=f"{old.manifest.name}:{old.manifest.version}",
        new=f"{new.manifest.name}:{new.manifest.version}",
        old_digest=old.index.digest,
        new_digest=new.index.digest,
        files=compare_files(old.index, new.index),
        variants=_compare_variants(old, new),
        profiles=_compare_profiles(old, new),
    )


def compare_files(old: PackageIndex, new: PackageIndex) -> tuple[Difference, ...]:
    """List the files in which two packages differ, by path.

    Args:
        old: What devices have.
        new: What they would get.

    Returns:
        The differences.
    """
    before = {entry.path: entry for entry in old.files}
    after = {entry.path: entry for entry in new.files}
    known = {chunk for entry in old.files for chunk in entry.chunks}
    found: list[Difference] = []
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        if was and now and was.sha256 == now.sha256:
            continue
        found.append(
            Difference(
                path=path,
                change="added" if was is None else "removed" if now is None else "changed",
                old_bytes=was.size_bytes if was else 0,
                new_bytes=now.size_bytes if now else 0,
                shared_chunks=sum(chunk in known for chunk in now.chunks) if now else 0,
            )
        )
    return tuple(found)


def _compare_variants(old: Package, new: Package) -> tuple[VariantDifference, ...]:
    before = {variant.name: variant for variant in old.manifest.variants}
    after = {variant.name: variant for variant in new.manifest.variants}
    other_data = _evaluation(old.manifest) != _evaluation(new.manifest)
    found: list[VariantDifference] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = _Side.of(old, before.get(name)), _Side.of(new, after.get(name))
        found.append(_compare_variant(name, was, now, other_data=other_data))
    return tuple(found)


class _Side(msgspec.Struct, frozen=True, kw_only=True):
    """A variant in one of the packages."""

    files: dict[str, str]
    declaration: dict[str, Any]
    accuracy: Accuracy | None
    performance: Performance | None
    size_bytes: int

    @classmethod
    def of(cls, package: Package, variant: Variant | None) -> _Side | None:
        if variant is None:
            return None
        prefix = f"{variant.directory}/"
        told = to_builtins(variant.info) | {"ort": variant.ort}
        return cls(
            files={
                entry.path.removeprefix(prefix): entry.sha256
                for entry in package.index.files
                if entry.path.startswith(prefix)
            },
            declaration={k: v for k, v in told.items() if k != "files_sha256"},
            accuracy=variant.info.accuracy,
            performance=variant.info.performance,
            size_bytes=variant.info.size_bytes,
        )


def _compare_variant(
    name: str, old: _Side | None, new: _Side | None, *, other_data: bool
) -> VariantDifference:
    differs: tuple[str, ...] = ()
    change = "added" if old is None else "removed"
    notes: tuple[str, ...] = ()
    was, now = old.accuracy if old else None, new.accuracy if new else None
    latencies = (_p50(old), _p50(new))
    if old and new:
        fields = sorted(
            key
            for key in old.declaration.keys() | new.declaration.keys()
            if old.declaration.get(key) != new.declaration.get(key)
        )
        differs = (*((FILES,) if old.files != new.files else ()), *fields)
        change = "changed" if old.files != new.files else "declared" if fields else "same"
        quality_notes = _quality_notes(was, now, other_data=other_data)
        latency_notes = _latency_notes(old.performance, new.performance)
        notes = (*quality_notes, *latency_notes)
        if latency_notes:
            latencies = (None, None)
    return VariantDifference(
        name=name,
        change=change,
        differs=differs,
        metric=" and ".join(dict.fromkeys(a.metric for a in (was, now) if a)),
        old_value=was.value if was else None,
        new_value=now.value if now else None,
        old_retention=was.retention if was else None,
        new_retention=now.retention if now else None,
        further=_compare_further(was, now) or msgspec.UNSET,
        old_bytes=old.size_bytes if old else None,
        new_bytes=new.size_bytes if new else None,
        old_latency_p50_ms=latencies[0],
        new_latency_p50_ms=latencies[1],
        notes=notes,
    )


def _compare_further(was: Accuracy | None, now: Accuracy | None) -> tuple[FurtherDifference, ...]:
    before, after = ({clause(f): f for f in figures_of(side)} for side in (was, now))
    found: list[FurtherDifference] = []
    for metric in dict.fromkeys((*before, *after)):
        old, new = before.get(metric), after.get(metric)
        found.append(
            FurtherDifference(
                metric=metric,
                old_value=old.value if old else None,
                new_value=new.value if new else None,
                old_retention=old.retention if old else None,
                new_retention=new.retention if new else None,
            )
        )
    return tuple(found)


def _quality_notes(
    was: Accuracy | None, now: Accuracy | None, *, other_data: bool
) -> tuple[str, ...]:
    if was is None or now is None:
        return ("quality not measured in both",)
    if was.metric != now.metric:
        return ("another metric",)
    if was.samples != now.samples:
        return (f"judged on other samples: {was.samples} and {now.samples}",)
    if other_data:
        return ("judged on other samples",)
    return ()


def _latency_notes(was: Performance | None, now: Performance | None) -> tuple[str, ...]:
    if was is None or now is None:
        sides = [side for side, p in (("OLD", was), ("NEW", now)) if p is None]
        return (f"latency not measured in {' and '.join(sides)}",)
    if was.machine != now.machine:
        return (f"latency measured on {was.machine} and on {now.machine}",)
    if was.threads != now.threads:
        return (f"latency measured with {was.threads} and with {now.threads} threads",)
    return ()


def _compare_profiles(old: Package, new: Package) -> tuple[ProfileDifference, ...]:
    before = {profile for v in old.manifest.variants for profile in v.info.profiles}
    after = {profile for v in new.manifest.variants for profile in v.info.profiles}
    found = [_compare_profile("", "common", old, new)]
    for name in sorted(before | after):
        change = "lost" if name not in after else "common" if name in before else "gained"
        found.append(_compare_profile(name, change, old, new))
    return tuple(found)


def _compare_profile(name: str, change: str, old: Package, new: Package) -> ProfileDifference:
    was, now = (
        tuple(v for v in side.manifest.variants if not name or name in v.info.profiles)
        for side in (old, new)
    )
    wanted = new.index.files_for(now) if now else ()
    fetch_bytes = _fetch_bytes(old.index.files_for(was), old.index.digest, new, wanted)
    new_bytes = sum(entry.size_bytes for entry in wanted) + new.envelope_bytes
    return ProfileDifference(
        name=name,
        change=change,
        old_variants=tuple(v.name for v in was),
        new_variants=tuple(v.name for v in now),
        fetch_bytes=fetch_bytes if now else None,
        new_bytes=new_bytes if now else None,
    )


def _fetch_bytes(
    held: Sequence[FileEntry], held_digest: str, new: Package, wanted: Sequence[FileEntry]
) -> int:
    if held_digest == new.index.digest:
        return 0
    known = {chunk for entry in held for chunk in entry.chunks}
    total = new.envelope_bytes
    for entry in wanted:
        if entry.path == MANIFEST_FILE:
            total += entry.size_bytes
            continue
        for number, chunk in enumerate(entry.chunks):
            if chunk not in known:
                left = entry.size_bytes - number * new.index.chunk_bytes
                total += min(left, new.index.chunk_bytes)
    return total


def _evaluation(manifest: Manifest) -> object:
    sources = manifest.metadata.get("sources_sha256")
    return sources.get("evaluation") if isinstance(sources, dict) else None


def _p50(side: _Side | None) -> float | None:
    return side.performance.latency_p50_ms if side and side.performance else None
