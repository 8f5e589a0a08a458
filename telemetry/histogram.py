"""OpenTelemetry exponential histograms: they merge without loss and give quantiles within 1.1 %.

Bucket `i` counts the values in `(BASE**i, BASE**(i + 1)]`. Merging adds counts, so the histogram of
a fleet equals the histogram that one device would make of all values.

Rules:
- Values up to `ZERO_MAX`, and all negative ones, count as 0; values over `VALUE_MAX` count as
  `VALUE_MAX`. Between them no quantile is off by more than `RELATIVE_ERROR`.
- A bucket's count saturates at `COUNT_MAX` instead of failing. So merging stays associative, and no
  device can cause a row that cannot be read.
- Pure, and only the standard library: the device's supervisor imports this module.

Source:
    OpenTelemetry metrics data model, "ExponentialHistogram", scale 5.
"""

from __future__ import annotations

import math
import struct

from wire.errors import WireFormatError

SCALE = 5
BASE = math.pow(2.0, 2.0**-SCALE)
RELATIVE_ERROR = (BASE - 1) / (BASE + 1)
"""1.083 %: a bucket's representative has this relative distance from both bounds of the bucket."""

ZERO_MAX = 2.0**-32
VALUE_MAX = 2.0**64
INDEX_MIN = -32 << SCALE
INDEX_MAX = (64 << SCALE) - 1
COUNT_MAX = 2**40
"""As many as a million values a second for twelve days give, in one bucket of one minute."""

TOTAL_MAX = VALUE_MAX * COUNT_MAX * (INDEX_MAX - INDEX_MIN)
"""Totals stop growing here, as counts do."""

RANK_SLACK = 1e-9
"""0.07 * 100 is 7.000000000000001 in binary; minus this slack, the rank is 7 as it should be."""

HEADER = struct.Struct("<BbBxhHQddd")
"""Version, scale, bytes per count, first index, number of counts, zeros, total, least, greatest."""

FORMAT_VERSION = 1
MAX_BLOB_BYTES = HEADER.size + 8 * (INDEX_MAX - INDEX_MIN + 1)
_BUCKETS_PER_OCTAVE = 1 << SCALE
_TYPE_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


class ExponentialHistogram:
    """A growing histogram of one metric; not thread-safe."""

    __slots__ = ("_buckets", "_greatest", "_least", "_zeros", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self._buckets: dict[int, int] = {}
        self._zeros = 0
        self._least = math.inf
        self._greatest = -math.inf

    @property
    def count(self) -> int:
        """How many values were added."""
        return self._zeros + sum(self._buckets.values())

    @property
    def least(self) -> float | None:
        """The least value, exactly; None while empty."""
        return self._least if self._least <= self._greatest else None

    @property
    def greatest(self) -> float | None:
        """The greatest value, exactly; None while empty."""
        return self._greatest if self._least <= self._greatest else None

    @property
    def zeros(self) -> int:
        """How many values count as 0."""
        return self._zeros

    def buckets(self) -> list[tuple[int, int]]:
        """Return the buckets that count something, rising: the index of each, and its count."""
        return sorted((index, count) for index, count in self._buckets.items() if count)

    def add(self, value: float, count: int = 1) -> None:
        """Count a value.

        Args:
            value: In the metric's unit.
            count: How often it occurred.

        Raises:
            ValueError: The value is not a finite number, or the count is not within 1 to
                `COUNT_MAX`.
        """
        if not math.isfinite(value):
            raise ValueError(f"not a finite number: {value}")
        if not 1 <= count <= COUNT_MAX:
            raise ValueError(f"a count of {count} is not within 1 to {COUNT_MAX}")
        if value <= ZERO_MAX:
            value = 0.0
            self._zeros = min(self._zeros + count, COUNT_MAX)
        else:
            value = min(value, VALUE_MAX)
            index = bucket_index(value)
            self._buckets[index] = min(self._buckets.get(index, 0) + count, COUNT_MAX)
        self.total = min(self.total + value * count, TOTAL_MAX)
        self._least = min(self._least, value)
        self._greatest = max(self._greatest, value)

    def merge(self, other: ExponentialHistogram) -> None:
        """Add all values of another histogram, which stays as it is."""
        # A copy, so that a histogram can be merged with itself.
        for index, count in tuple(other._buckets.items()):
            self._buckets[index] = min(self._buckets.get(index, 0) + count, COUNT_MAX)
        self._zeros = min(self._zeros + other._zeros, COUNT_MAX)
        self.total = min(self.total + other.total, TOTAL_MAX)
        self._least = min(self._least, other._least)
        self._greatest = max(self._greatest, other._greatest)

    def copy(self) -> ExponentialHistogram:
        """Return one of the same values."""
        twin = ExponentialHistogram()
        twin.merge(self)
        return twin

    def quantile(self, q: float) -> float | None:
        """Return a quantile by nearest rank, within `RELATIVE_ERROR` of the true one.

        Args:
            q: 0.0 for the least, 0.5 for the median, 1.0 for the greatest.

        Returns:
            The quantile, or None while the histogram is empty.

        Raises:
            ValueError: `q` is not within 0 to 1.
        """
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"a quantile is within 0 to 1, not {q}")
        count = self.count
        if count == 0:
            return None
        rank = nearest_rank(q, count)
        if rank >= count:
            return self._greatest
        seen = self._zeros
        estimate = 0.0
        for index in sorted(self._buckets):
            if seen >= rank:
                break
            seen += self._buckets[index]
            estimate = representative(index)
        return min(max(estimate, self._least), self._greatest)

    def to_bytes(self) -> bytes:
        """Encode: a header of 40 bytes, then the counts from the first to the last bucket."""
        first, last = (min(self._buckets), max(self._buckets)) if self._buckets else (0, -1)
        counts = [self._buckets.get(index, 0) for index in range(first, last + 1)]
        width = _width(max(counts, default=0))
        header = HEADER.pack(
            FORMAT_VERSION,
            SCALE,
            width,
            first,
            len(counts),
            self._zeros,
            self.total,
            self.least or 0.0,
            self.greatest or 0.0,
        )
        return header + struct.pack(f"<{len(counts)}{_TYPE_CODES[width]}", *counts)

    @classmethod
    def from_bytes(cls, data: bytes) -> ExponentialHistogram:
        """Decode what `to_bytes` made.

        Args:
            data: From a device; every part of it is checked.

        Returns:
            The histogram.

        Raises:
            WireFormatError: Not such bytes, or values that no histogram has.
        """
        if not HEADER.size <= len(data) <= MAX_BLOB_BYTES:
            raise WireFormatError(f"histogram: {len(data)} bytes is not a possible size")
        version, scale, width, first, length, zeros, *measures = HEADER.unpack_from(data)
        if (version, scale) != (FORMAT_VERSION, SCALE) or width not in _TYPE_CODES:
            raise WireFormatError(f"histogram: unknown format {version}, {scale}, {width}")
        if len(data) != HEADER.size + width * length:
            raise WireFormatError(
                f"histogram: {len(data)} bytes are not enough for {length} counts"
            )
        if length and not INDEX_MIN <= first <= INDEX_MAX + 1 - length:
            raise WireFormatError(f"histogram: {length} buckets from {first} are out of range")
        counts = struct.unpack_from(f"<{length}{_TYPE_CODES[width]}", data, HEADER.size)
        if max(zeros, *counts, 0) > COUNT_MAX:
            raise WireFormatError("histogram: a count is out of range")
        made = cls()
        made._buckets = {first + at: count for at, count in enumerate(counts) if count}
        made._zeros = zeros
        made._take_measures(*measures)
        return made

    def _take_measures(self, total: float, least: float, greatest: float) -> None:
        count = self.count
        if count == 0:
            return
        if not 0.0 <= least <= greatest <= VALUE_MAX:
            raise WireFormatError(
                f"histogram: the least {least} and the greatest {greatest} are impossible"
            )
        if not 0.0 <= total <= TOTAL_MAX:
            raise WireFormatError(f"histogram: the total {total} is impossible")
        self.total, self._least, self._greatest = total, least, greatest


def bucket_index(value: float) -> int:
    """Return the bucket of a value between `ZERO_MAX` and `VALUE_MAX`."""
    # The logarithm of a value just over `ZERO_MAX` rounds down to the zero bucket's bound.
    return max(math.ceil(math.log2(value) * _BUCKETS_PER_OCTAVE) - 1, INDEX_MIN)


def representative(index: int) -> float:
    """Return the value that stands for a bucket, at the same relative distance from both bounds."""
    return 2.0 * BASE / (1.0 + BASE) * math.pow(2.0, index / _BUCKETS_PER_OCTAVE)


def nearest_rank(q: float, count: int) -> int:
    """Return the rank of the quantile among the sorted values, counted from 1."""
    return max(1, math.ceil(q * count - RANK_SLACK))


def _width(greatest_count: int) -> int:
    return next(width for width in _TYPE_CODES if greatest_count < 1 << (8 * width))
