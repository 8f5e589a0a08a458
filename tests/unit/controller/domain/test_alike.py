"""The file that is found quickly is as much like the other one as any."""

from __future__ import annotations

from math import log

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.alike import MAX_SIZE_RATIO, Place
from controller.domain.deltas import Package
from tests.unit.controller.domain.test_deltas import packages
from wire.package.index import FileEntry


def rank_of(
    target: FileEntry, place: Place, entry: FileEntry, other: Place
) -> tuple[int, int, float] | None:
    """Return how alike two files are, as it is written down; None for not at all."""
    if entry.path == target.path:
        return 0, 0, 0.0
    ratio = abs(log(target.size_bytes / entry.size_bytes))
    by_size = None if ratio > log(MAX_SIZE_RATIO) else ratio
    if place.variant is None or other.variant is None:
        is_alike = place.variant is other.variant and place.name == other.name
        return (2, 0, by_size) if is_alike and by_size is not None else None
    if (place.variant.name, place.name) == (other.variant.name, other.name):
        return 1, 0, 0.0
    if place.name.rpartition(".")[2] != other.name.rpartition(".")[2] or by_size is None:
        return None
    return 2, int(place.variant.info.runtime != other.variant.info.runtime), by_size


@given(packages(), packages(), st.integers(0, 3))
def test_no_file_is_more_like_it(package: Package, base: Package, left_out: int) -> None:
    def is_fit(entry: FileEntry) -> bool:
        return entry.size_bytes % 4 != left_out

    for target in package.index.files:
        if not target.size_bytes:
            continue
        place = package.files.place(target.path)
        ranks = (
            rank_of(target, place, entry, base.files.place(entry.path))
            for entry in base.index.files
            if entry.size_bytes and is_fit(entry)
        )
        best = min((rank for rank in ranks if rank is not None), default=None)
        found = base.files.most_like(target, place, is_fit)
        assert (found.rank if found else None) == best
        if found is not None:
            other = base.files.place(found.entry.path)
            assert rank_of(target, place, found.entry, other) == best
            assert is_fit(found.entry)
