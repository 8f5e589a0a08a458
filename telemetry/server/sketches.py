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

from typing import Any, Final

import numpy as np

from telemetry.histogram import FORMAT_VERSION, HEADER, INDEX_MAX, INDEX_MIN, ExponentialHistogram
from wire.errors import WireFormatError

SPARSE_VERSION: Final = 2
DISTANCE: Final = np.dtype("<u2")
COUNTS: Final[dict[int, np.dtype[Any]]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
"""The type of a count, by its width in bytes."""

_VERSION_AT: Final = 0
_LENGTH_AT: Final = 4


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
