"""Families in the protobuf format of Prometheus, which alone carries native histograms. Pure.

The few messages are written here, field by field, so that the controller needs no library for them.

Rules:
- Our scale is Prometheus' schema. Bucket `i` of OpenTelemetry is bucket `i + 1` of Prometheus,
  which numbers a bucket by its upper bound.
- A histogram has classic buckets beside the native ones; a Prometheus takes the kind that it knows.

Source:
    `io/prometheus/client/metrics.proto` of github.com/prometheus/client_model, and Protocol
    Buffers' "Encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Final

from telemetry.histogram import SCALE, ZERO_MAX
from telemetry.server.export.families import Family, FamilyKind, HistogramValue, Sample
from telemetry.server.export.text_format import classic_buckets

CONTENT_TYPE: Final = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
_TYPES: Final[dict[FamilyKind, int]] = {"counter": 0, "gauge": 1, "histogram": 4}
_VARINT, _EIGHT_BYTES, _BYTES = 0, 1, 2
_NANOS: Final = 10**9
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
"""The numbers that fit into seven bits: nearly all of a page."""


def encode(families: Iterable[Family]) -> bytes:
    """Return families as messages, each after its length."""
    return b"".join(_delimited(_family(family)) for family in families)


def spans(buckets: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return buckets as Prometheus writes them.

    Args:
        buckets: Index and count of each, rising.

    Returns:
        For each run of neighbours the distance from the run before, and its length; then the
        difference of each count from the one before.
    """
    runs: list[tuple[int, int]] = []
    deltas = []
    end = before = 0
    for index, count in buckets:
        if runs and index == end:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index - end, 1))
        deltas.append(count - before)
        end, before = index + 1, count
    return runs, deltas


def _family(family: Family) -> bytes:
    return b"".join((
        _text(1, family.name),
        _text(2, family.meaning),
        _unsigned(3, _TYPES[family.kind]),
        *(_message(4, _metric(family.kind, sample)) for sample in family.samples),
    ))  # fmt: skip


def _metric(kind: FamilyKind, sample: Sample) -> bytes:
    labels = b"".join(_label(*label) for label in sample.labels)
    if isinstance(sample.value, HistogramValue):
        return labels + _message(7, _histogram(sample.value) + _created(15, sample))
    if kind == "counter":
        return labels + _message(3, _double(1, sample.value) + _created(3, sample))
    return labels + _message(2, _double(1, sample.value))


@lru_cache(maxsize=4096)
def _label(name: str, text: str) -> bytes:
    return _message(1, _text(1, name) + _text(2, text))


@cache
def _upper(bound: float) -> bytes:
    """Return the upper bound of a classic bucket; there are few."""
    return _double(2, bound)


def _histogram(value: HistogramValue) -> bytes:
    runs, deltas = spans([(index + 1, count) for index, count in value.histogram.buckets()])
    return b"".join((
        _unsigned(1, value.number),
        _double(2, value.total),
        *(
            _message(3, _unsigned(1, count) + _upper(bound))
            for bound, count in classic_buckets(value)
        ),
        _unsigned(5, _zigzag(SCALE)),
        _double(6, ZERO_MAX),
        _unsigned(7, value.histogram.zeros),
        *(
            _message(12, _unsigned(1, _zigzag(offset)) + _unsigned(2, length))
            for offset, length in runs
        ),
        *(_unsigned(13, _zigzag(delta)) for delta in deltas),
    ))  # fmt: skip


def _created(field: int, sample: Sample) -> bytes:
    if sample.created_at_s is None:
        return b""
    whole, part_s = divmod(sample.created_at_s, 1)
    nanos = min(int(part_s * _NANOS), _NANOS - 1)
    return _message(field, _unsigned(1, int(whole)) + _unsigned(2, nanos))


def _message(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _delimited(content)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode(errors="replace"))


def _unsigned(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _key(field, _EIGHT_BYTES) + struct.pack("<d", value)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _delimited(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _varint(value: int) -> bytes:
    if value < len(_ONE_BYTE):
        return _ONE_BYTE[value]
    groups = bytearray()
    while value >= len(_ONE_BYTE):
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _zigzag(value: int) -> int:
    """Return a signed number as an unsigned one, small where it is near 0."""
    return value << 1 if value >= 0 else (-value << 1) - 1
