"""Reads two packages from disk, compares them, and shows old and new side by side in tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from packager.package.differences import (
    Package,
    PackageDifference,
    ProfileDifference,
    compare_packages,
)
from packager.package.directory import open_package
from packager.report.text import size_text
from wire.package.index import ENVELOPE_FILE

KIB: Final = 1024

VARIANT_COLUMNS: Final = ("VARIANT", "CHANGE", "METRIC", "VALUE", "KIB", "P50 MS", "NOTE")
PROFILE_COLUMNS: Final = ("PROFILE", "CHANGE", "OLD VARIANTS", "NEW VARIANTS", "FETCHES", "OF")
FILE_COLUMNS: Final = ("CHANGE", "PATH", "OLD BYTES", "NEW BYTES", "CHUNKS SHARED")


def compare_directories(old: Path, new: Path) -> PackageDifference:
    """Compare two packages.

    Args:
        old: The package that devices have.
        new: The package that they would get.

    Returns:
        The differences.

    Raises:
        PackageError: Not a package.
        IntegrityError: A file does not match the index.
        WireFormatError: A manifest, an index or an envelope is malformed.
    """
    return compare_packages(_read(old), _read(new))


def variant_rows(difference: PackageDifference) -> list[tuple[object, ...]]:
    """Return one row per variant, with the old and the new figure in one cell."""
    return [
        (
            v.name,
            v.change if v.change != "declared" else f"declared: {', '.join(v.differs)}",
            v.metric,
            _pair(v.old_value, v.new_value, ".4f"),
            _pair(_kib(v.old_bytes), _kib(v.new_bytes), ".1f"),
            _pair(v.old_latency_p50_ms, v.new_latency_p50_ms, ".3f"),
            "; ".join(v.notes),
        )
        for v in difference.variants
    ]


def profile_rows(difference: PackageDifference) -> list[tuple[object, ...]]:
    """Return one row per profile, and one for a device that keeps every variant."""
    return [
        (
            p.name or "(all variants)",
            p.change,
            len(p.old_variants),
            len(p.new_variants),
            _fetch_text(p),
            None if p.new_bytes is None else size_text(p.new_bytes),
        )
        for p in difference.profiles
    ]


def file_rows(difference: PackageDifference) -> list[tuple[object, ...]]:
    """Return one row per file that differs."""
    return [(d.change, d.path, d.old_bytes, d.new_bytes, d.shared_chunks) for d in difference.files]


def _read(directory: Path) -> Package:
    """Open a package, after checking the digest of every file."""
    manifest, index = open_package(directory)
    envelope = directory / ENVELOPE_FILE
    size_bytes = envelope.stat().st_size if envelope.is_file() else 0
    return Package(manifest=manifest, index=index, envelope_bytes=size_bytes)


def _fetch_text(profile: ProfileDifference) -> str | None:
    if profile.fetch_bytes is None:
        return None
    return f"{'at most ' if profile.change == 'gained' else ''}{size_text(profile.fetch_bytes)}"


def _kib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / KIB


def _pair(old: float | None, new: float | None, form: str) -> str | None:
    if old is None and new is None:
        return None
    was, now = ("-" if value is None else format(value, form) for value in (old, new))
    return was if was == now else f"{was} -> {now}"
