"""How the store writes histograms: as they came, or sparsely where that is shorter. Pure.

Two values far apart make a histogram of 3,072 counts, nearly all 0. Devices send it so; stored so,
a point of 100 bytes would make a row of 24 KB.

Rules:
- What is stored is not longer than `2 + width` bytes for each bucket that counts something.
- The version in the first byte tells the two forms apart. The dense one is that of
  `telemetry.histogram`, which older rows and all messages have.
- Both forms hold the same histogram: a change between them loses nothing.

The sparse form: the header of the dense one, with its own version, and with the number of buckets
that follow in the place of the length. Then the distance of each from the first, rising, in 2
bytes, and then the count of each.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from telemetry.histogram import (
    COUNT_MAX,
    FORMAT_VERSION,
    HEADER,
    INDEX_MAX,
    INDEX_MIN,
    SCALE,
    TOTAL_MAX,
    VALUE_MAX,
    ExponentialHistogram,
)
from telemetry.server.rows import Measure
from wire.errors import WireFormatError

SPARSE_VERSION: Final = 2
DISTANCE: Final = np.dtype("<u2")
COUNTS: Final[dict[int, np.dtype[Any]]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
"""The type of a count, by its width in bytes."""

_VERSION_AT: Final = 0
_PAD_AT: Final = 3
_LENGTH_AT: Final = 4
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


def taken(data: bytes) -> Measure:
    """Check a histogram as it came and bring it into the shorter form.

    It is what `encode(ExponentialHistogram.from_bytes(data))` gives, without an object for each
    bucket: nearly all histograms come in the form in which devices of this version write them.

    Args:
        data: From a device; every part of it is checked.

    Returns:
        What stands in a row.

    Raises:
        WireFormatError: Not such bytes, values that no histogram has, or none at all.
    """
    found = _at_once(data) or _one_by_one(data)
    # A count that stopped growing says less than the total.
    if found.value_count < COUNT_MAX and not found.has_possible_mean():
        raise WireFormatError(f"histogram: the total {found.total} is impossible")
    return found


def _one_by_one(data: bytes) -> Measure:
    """Return a histogram in whatever form it came.

    Raises:
        WireFormatError: See `taken`.
    """
    histogram = ExponentialHistogram.from_bytes(data)
    least, greatest = histogram.least, histogram.greatest
    if least is None or greatest is None:
        raise WireFormatError("an empty histogram")
    return Measure(histogram.count, histogram.total, least, greatest, encode(histogram))


def _at_once(data: bytes) -> Measure | None:
    """Return a sound histogram whose counts are as narrow and as few as can be; None for others."""
    if len(data) <= HEADER.size:
        return None
    version, scale, width, first, length, zeros, total, least, greatest = HEADER.unpack_from(data)
    code = _CODES.get(width)
    if (version, scale) != (FORMAT_VERSION, SCALE) or code is None:
        return None
    if len(data) != HEADER.size + width * length or not (
        INDEX_MIN <= first <= INDEX_MAX + 1 - length
    ):
        return None
    counts = struct.unpack_from(f"<{length}{code}", data, HEADER.size)
    most = max(counts)
    is_narrow = width == 1 or most >= 1 << (4 * width)
    is_plain = counts[0] and counts[-1] and not data[_PAD_AT]
    if not (is_narrow and is_plain) or max(most, zeros) > COUNT_MAX:
        return None
    # A total that is not a number fails here as well.
    if not (0.0 <= least <= greatest <= VALUE_MAX and 0.0 <= total <= TOTAL_MAX):
        return None
    filled = length - counts.count(0)
    if filled * (DISTANCE.itemsize + width) < length * width:
        distances = [at for at, count in enumerate(counts) if count]
        data = (
            HEADER.pack(SPARSE_VERSION, scale, width, first, filled, zeros, total, least, greatest)
            + struct.pack(f"<{filled}H", *distances)
            + struct.pack(f"<{filled}{code}", *(counts[at] for at in distances))
        )
    return Measure(zeros + sum(counts), total, least, greatest, data)


def packed(
    slots: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], measures: tuple[float, ...]
) -> bytes:
    """Return a histogram in the shorter form.

    Args:
        slots: The places of its counts, rising: 0 for zeros, `i` for the bucket
            `INDEX_MIN + i - 1`; at least one.
        counts: Those counts, above 0 and at most `COUNT_MAX`.
        measures: The total, the least and the greatest value.
    """
    measures = (min(measures[0], TOTAL_MAX), *measures[1:])
    zeros = 0
    if slots[0] == 0:
        zeros, slots, counts = int(counts[0]), slots[1:], counts[1:]
    if not len(slots):
        return HEADER.pack(FORMAT_VERSION, SCALE, 1, 0, 0, zeros, *measures)
    first = int(slots[0])
    length = int(slots[-1]) - first + 1
    most = int(counts.max())
    width = next(width for width in COUNTS if most < 1 << (8 * width))
    distances, short = slots - first, counts.astype(COUNTS[width])
    if len(slots) * (DISTANCE.itemsize + width) < length * width:
        head = (SPARSE_VERSION, SCALE, width, first + INDEX_MIN - 1, len(slots), zeros)
        return (
            HEADER.pack(*head, *measures) + distances.astype(DISTANCE).tobytes() + short.tobytes()
        )
    dense = np.zeros(length, COUNTS[width])
    dense[distances] = short
    head = (FORMAT_VERSION, SCALE, width, first + INDEX_MIN - 1, length, zeros)
    return HEADER.pack(*head, *measures) + dense.tobytes()


def encode(histogram: ExponentialHistogram) -> bytes:
    """Return a histogram in the shorter form."""
    dense = histogram.to_bytes()
    fields = list(HEADER.unpack_from(dense))
    counts = np.frombuffer(dense, COUNTS[fields[2]], offset=HEADER.size)
    filled = np.flatnonzero(counts)
    if len(filled) * (DISTANCE.itemsize + counts.itemsize) >= counts.nbytes:
        return dense
    fields[_VERSION_AT], fields[_LENGTH_AT] = SPARSE_VERSION, len(filled)
    return HEADER.pack(*fields) + filled.astype(DISTANCE).tobytes() + counts[filled].tobytes()


def decode(data: bytes) -> ExponentialHistogram:
    """Return the histogram that `encode` was given.

    Args:
        data: Either form.

    Returns:
        The histogram.

    Raises:
        WireFormatError: Neither of them.
    """
    if data[:1] != bytes((SPARSE_VERSION,)):
        return ExponentialHistogram.from_bytes(data)
    return ExponentialHistogram.from_bytes(_dense(data))


def _dense(data: bytes) -> bytes:
    if len(data) < HEADER.size:
        raise WireFormatError(f"histogram: {len(data)} bytes are no sparse one")
    fields = list(HEADER.unpack_from(data))
    kind, number = COUNTS.get(fields[2]), fields[_LENGTH_AT]
    if kind is None or len(data) != HEADER.size + number * (DISTANCE.itemsize + kind.itemsize):
        raise WireFormatError(f"histogram: {len(data)} bytes are no {number} sparse counts")
    distances = np.frombuffer(data, DISTANCE, number, HEADER.size)
    if (
        not number
        or distances[-1] > INDEX_MAX - INDEX_MIN
        or (distances[1:] <= distances[:-1]).any()
    ):
        raise WireFormatError("histogram: the sparse counts are not in order")
    counts = np.zeros(int(distances[-1]) + 1, kind)
    counts[distances] = np.frombuffer(data, kind, number, HEADER.size + distances.nbytes)
    fields[_VERSION_AT], fields[_LENGTH_AT] = FORMAT_VERSION, len(counts)
    return HEADER.pack(*fields) + counts.tobytes()
