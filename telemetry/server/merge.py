"""Merges many histograms into few and computes their quantiles: the hot path of every query.

All blobs are read as one array of bytes, so a histogram costs only the work on its buckets, without
a Python call.

Rules:
- Buckets, ranks and representatives are those of `telemetry.histogram`, so both modules give the
  same quantiles.
- What one group holds changes nothing of another: ranks are counted within each, in whole numbers.
  A bucket saturates at `COUNT_MAX`, so no group counts more than fits.
- A bounded number of buckets is worked on at once, however large the histograms are.
- Blobs come from our own store, which checks them at ingest and writes them in one of the two forms
  of `telemetry.server.sketches`; a blob of an unknown format is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from telemetry.errors import TelemetryStoreError
from telemetry.histogram import (
    BASE,
    COUNT_MAX,
    FORMAT_VERSION,
    HEADER,
    INDEX_MAX,
    INDEX_MIN,
    RANK_SLACK,
    SCALE,
)
from telemetry.server.sketches import COUNTS, DISTANCE, SPARSE_VERSION, packed

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SLOTS = INDEX_MAX - INDEX_MIN + 2
"""Slot 0 counts zeros, slot `i` the bucket `INDEX_MIN + i - 1`."""

MAX_CELLS = 4_000_000
"""32 MB of counts."""

BUCKETS_AT_ONCE = 2_000_000
"""Some 50 bytes each while they are read. Ordinary rows have some 50 buckets, so as many as are
read at once are one part."""

_UNKNOWN = "a stored histogram has an unknown format"
_REMEDY = "use the version of the controller that wrote it, or a newer version"
_HEADER = np.dtype(
    {
        "names": ["version", "scale", "width", "first", "length", "zeros"],
        "formats": ["u1", "i1", "u1", "<i2", "<u2", "<u8"],
        "offsets": [0, 1, 2, 4, 6, 8],
        "itemsize": HEADER.size,
    }
)


class MergedHistograms:
    """Histograms of groups numbered from 0, held sparsely."""

    def __init__(self) -> None:
        self._keys: Integers = np.empty(0, np.int64)
        """`group * SLOTS + slot`, rising."""

        self._counts: Integers = np.empty(0, np.int64)
        """From 1 to `COUNT_MAX`."""

    @property
    def buckets(self) -> int:
        """How many buckets there are in memory."""
        return len(self._keys)

    def add(self, blobs: Sequence[bytes], groups: Integers) -> None:
        """Add histograms to groups.

        Args:
            blobs: As `telemetry.server.sketches.encode` makes them.
            groups: The group of each.

        Raises:
            TelemetryStoreError: A blob is not one of ours.
        """
        if not blobs:
            return
        data = np.frombuffer(b"".join(blobs), np.uint8)
        sizes = np.fromiter(map(len, blobs), np.int64, len(blobs))
        offsets = np.cumsum(sizes) - sizes
        headers = _headers(data, offsets, sizes)
        for low, high in _parts(headers["length"] + np.int64(1)):
            bases = groups[low:high] * SLOTS
            self._take(*_summed(*_exploded(data, offsets[low:high], headers[low:high], bases)))

    def quantiles(self, quantiles: Sequence[float], group_count: int) -> Floats:
        """Return quantiles by nearest rank.

        Args:
            quantiles: Each within 0 to 1.
            group_count: How many groups there are.

        Returns:
            Shape (group_count, len(quantiles)); NaN where a group has no values.
        """
        result = np.full((group_count, len(quantiles)), np.nan)
        if not len(self._keys):
            return result
        # The keys of earlier groups come before a group's first key.
        starts = np.searchsorted(self._keys, np.arange(group_count + 1) * SLOTS)
        filled = np.flatnonzero(np.diff(starts))
        first, end = starts[filled], starts[filled + 1]
        running = np.zeros(len(self._counts) + 1, np.int64)
        # The sum over all groups may wrap around; the differences within one are exact.
        np.cumsum(self._counts, out=running[1:])
        totals = running[end] - running[first]
        for column, q in enumerate(quantiles):
            ranks = np.maximum(1.0, np.ceil(q * totals - RANK_SLACK)).astype(np.int64)
            at = _reached(running, first, end - 1, ranks)
            result[filled, column] = _representatives(self._keys[at] % SLOTS)
        return result

    def encoded(self, measures: Sequence[tuple[float, ...]]) -> list[tuple[int, bytes | None]]:
        """Return the count and the stored form of each group; 0 and None if it is empty.

        Args:
            measures: The total, the least and the greatest value of each group.
        """
        starts = np.searchsorted(self._keys, np.arange(len(measures) + 1) * SLOTS).tolist()
        slots = self._keys % SLOTS
        counts = self._counts
        return [
            (int(counts[low:high].sum()), packed(slots[low:high], counts[low:high], measured))
            if low < high
            else (0, None)
            for low, high, measured in zip(starts[:-1], starts[1:], measures, strict=True)
        ]

    def _take(self, keys: Integers, counts: Integers) -> None:
        """Add counts, by distinct and rising keys."""
        at = np.searchsorted(self._keys, keys)
        is_there = np.zeros(len(keys), bool)
        inside = at < len(self._keys)
        is_there[inside] = self._keys[at[inside]] == keys[inside]
        held = at[is_there]
        self._counts[held] = np.minimum(self._counts[held] + counts[is_there], COUNT_MAX)
        is_new = ~is_there
        if is_new.any():
            self._keys = np.insert(self._keys, at[is_new], keys[is_new])
            self._counts = np.insert(self._counts, at[is_new], counts[is_new])

    def table(self, group_count: int) -> tuple[Floats, Floats]:
        """Return the histograms as a table of the buckets in which there is anything.

        Args:
            group_count: How many groups there are.

        Returns:
            What stands for each bucket, rising, shape (buckets,); and the counts, shape
            (group_count, buckets).
        """
        groups, slots = np.divmod(self._keys, SLOTS)
        filled, at = np.unique(slots, return_inverse=True)
        counts = np.zeros((group_count, len(filled)))
        counts[groups, at] = self._counts
        return _representatives(filled), counts


def _parts(sizes: Integers) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of blobs, exclusive, that are worked on at once.

    Args:
        sizes: How many counts each has.
    """
    running = np.cumsum(sizes)
    at = np.arange(BUCKETS_AT_ONCE, running[-1], BUCKETS_AT_ONCE)
    return itertools.pairwise([0, *(np.searchsorted(running, at) + 1).tolist(), len(sizes)])


def _exploded(
    data: npt.NDArray[np.uint8], offsets: Integers, headers: np.ndarray, bases: Integers
) -> tuple[Integers, Integers]:
    """Return a key and a count for every bucket that is not empty.

    Args:
        data: All blobs, one after another.
        offsets: Where those begin that are wanted.
        headers: Of these.
        bases: The key of the first slot of each.

    Raises:
        TelemetryStoreError: A blob is not one of ours.
    """
    keys = [bases]
    counts = [np.minimum(headers["zeros"], COUNT_MAX).astype(np.int64)]
    for width, version in itertools.product(COUNTS, (FORMAT_VERSION, SPARSE_VERSION)):
        chosen = np.flatnonzero((headers["width"] == width) & (headers["version"] == version))
        lengths = headers["length"][chosen].astype(np.int64)
        starts = offsets[chosen] + HEADER.size
        inside = _positions(lengths)
        if version == SPARSE_VERSION:
            inside = _taken(data, starts, lengths, DISTANCE).astype(np.int64)
            starts = starts + lengths * DISTANCE.itemsize
        counts.append(_taken(data, starts, lengths, COUNTS[width]).astype(np.int64))
        first = headers["first"][chosen].astype(np.int64) - INDEX_MIN + 1
        slots = np.repeat(first, lengths) + inside
        if slots.max(initial=0) >= SLOTS:
            raise TelemetryStoreError(_UNKNOWN, remedy=_REMEDY)
        keys.append(np.repeat(bases[chosen], lengths) + slots)
    every_key, every_count = np.concatenate(keys), np.concatenate(counts)
    filled = every_count > 0
    return every_key[filled], every_count[filled]


def _positions(lengths: Integers) -> Integers:
    """Return 0, 1, 2 and so on up to each length, one after another."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _taken(
    data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers, kind: np.dtype[Any]
) -> np.ndarray:
    """Return the numbers of arrays that lie in bytes, one array after another."""
    size = kind.itemsize
    at = np.repeat(starts, lengths) + _positions(lengths) * size
    raw = data[at[:, None] + np.arange(size)] if size > 1 else data[at]
    return np.ascontiguousarray(raw).view(kind).reshape(-1)


def _headers(data: npt.NDArray[np.uint8], offsets: Integers, sizes: Integers) -> np.ndarray:
    if sizes.min() >= HEADER.size:
        raw = data[offsets[:, None] + np.arange(HEADER.size)]
        headers = np.ascontiguousarray(raw).view(_HEADER).reshape(-1)
        if _is_ours(headers, sizes):
            return headers
    raise TelemetryStoreError(_UNKNOWN, remedy=_REMEDY)


def _is_ours(headers: np.ndarray, sizes: Integers) -> bool:
    lengths = headers["length"].astype(np.int64)
    sparse = headers["version"] == SPARSE_VERSION
    last = headers["first"].astype(np.int64) + np.where(sparse, 0, lengths - 1)
    each = headers["width"] + np.where(sparse, DISTANCE.itemsize, 0)
    sound = (
        (sparse | (headers["version"] == FORMAT_VERSION))
        & (headers["scale"] == SCALE)
        & np.isin(headers["width"], list(COUNTS))
        & (sizes == HEADER.size + lengths * each)
        & ((lengths == 0) | ((headers["first"] >= INDEX_MIN) & (last <= INDEX_MAX)))
    )
    return bool(sound.all())


def _summed(keys: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Return the distinct keys, rising, and the sum of the counts of each, at most `COUNT_MAX`."""
    if not len(keys):
        return keys, counts
    slots = keys % SLOTS
    lowest = slots.min()
    width = slots.max() - lowest + 1
    if (keys.max() // SLOTS + 1) * width > max(len(keys), MAX_CELLS):
        del slots
        order = np.argsort(keys, kind="stable")  # what comes in order is sorted soon
        keys = keys[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        return keys[first], np.minimum(np.add.reduceat(counts[order], first), COUNT_MAX)
    # Values of one metric are close together: a table of all their cells is small, without sorting.
    cells = keys // SLOTS * width + (slots - lowest)
    table = np.minimum(np.bincount(cells, weights=counts), COUNT_MAX).astype(np.int64)
    filled = np.flatnonzero(table)
    groups, slots = np.divmod(filled, width)
    return groups * SLOTS + slots + lowest, table[filled]


def _reached(running: Integers, first: Integers, last: Integers, ranks: Integers) -> Integers:
    """Return where the running count of each group reaches its rank.

    Args:
        running: What is counted before each key, over all groups; it may wrap around.
        first: The first key of each group.
        last: Its last one.
        ranks: From 1 to what the group counts.
    """
    before, low, high = running[first], first, last
    while (low < high).any():
        middle = (low + high) // 2
        is_there = running[middle + 1] - before >= ranks
        low, high = np.where(is_there, low, middle + 1), np.where(is_there, middle, high)
    return low


def _representatives(slots: Integers) -> Floats:
    exponents = (slots + (INDEX_MIN - 1)) / (1 << SCALE)
    return np.where(slots == 0, 0.0, 2.0 * BASE / (1.0 + BASE) * np.exp2(exponents))
