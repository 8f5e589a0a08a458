"""How much goes into one request of OTLP: a receiver refuses one that is too long.

Rules:
- A request takes at most `AIM_BYTES`, unless one thing alone takes more: receivers take 4 MiB and
  more. It is its length before it is packed that they bound.
- The size is estimated, and never too low: all numbers count with their greatest length.

Source:
    Protocol Buffers, "Encoding"; opentelemetry-proto 1.x, `metrics.proto` and `logs.proto`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from telemetry.metrics import known
from telemetry.server.export.places import NumberedEvent
from telemetry.server.export.reading import Measured

AIM_BYTES: Final = 2**20
POINTS_AT_ONCE: Final = 2000

RESOURCE_BYTES: Final = 256
"""Of a device's resource and scope, beside its name, which stands in it twice."""

METRIC_BYTES: Final = 64
"""Of a metric, beside its texts."""

POINT_BYTES: Final = 128
ATTRIBUTE_BYTES: Final = 24
RECORD_BYTES: Final = 256
VALUE_BYTES: Final = 24
"""Of a value of an event's data, beside its text."""

BITS_PER_BYTE: Final = 7
"""Of a number whose length varies."""


def measured_parts(found: Sequence[Measured]) -> Iterator[int]:
    """Yield where each request ends: with a minute of a device, unless that alone is too long.

    Args:
        found: What is to be sent, by device and minute.

    Yields:
        How many of them have gone when that request has; the last is all of them.
    """
    size, begin, at, minute_at = 0, 0, 0, 0
    named: set[tuple[str, ...]] = set()
    while at < len(found):
        one = found[at]
        if at and (one.device, one.minute) != (found[at - 1].device, found[at - 1].minute):
            minute_at = at
        size += _point_bytes(one) + _head_bytes(one, named)
        at += 1
        if at - begin > 1 and (size > AIM_BYTES or at - begin > POINTS_AT_ONCE):
            begin = at = minute_at if minute_at > begin else at - 1
            yield begin
            size = 0
            named.clear()
    if found:
        yield len(found)


def event_parts(found: Sequence[NumberedEvent]) -> Iterator[int]:
    """Yield where each request ends, as `measured_parts`.

    Args:
        found: What is to be sent.
    """
    size, begin = 0, 0
    for at, one in enumerate(found):
        device, event = one.found
        added = RECORD_BYTES + RESOURCE_BYTES + 2 * _length(device)
        added += _length(event.kind) + _length(event.reason) + _value_bytes(event.data)
        if at > begin and size + added > AIM_BYTES:
            yield at
            size, begin = 0, at
        size += added
    if found:
        yield len(found)


def _head_bytes(one: Measured, named: set[tuple[str, ...]]) -> int:
    """Return what a point needs that stands once in a request, and note that it is there."""
    size, device, metric = 0, (one.device,), (one.device, one.series.metric, one.series.kind)
    if device not in named:
        size += RESOURCE_BYTES + 2 * _length(one.device)
    if metric not in named:
        about = known(one.series.metric)
        texts = () if about is None else (about.meaning, about.unit)
        size += METRIC_BYTES + _length(one.series.metric) + sum(map(_length, texts))
    named.update((device, metric))
    return size


def _point_bytes(one: Measured) -> int:
    size = POINT_BYTES
    for key, value in one.series.attributes.items():
        size += ATTRIBUTE_BYTES + _length(key) + _length(value)
    if one.measure.histogram is None:
        return size
    buckets = dict(one.measure.histogram.buckets())
    if not buckets:
        return size
    span = max(buckets) - min(buckets) + 1
    longer = sum((count.bit_length() - 1) // BITS_PER_BYTE for count in buckets.values() if count)
    return size + span + longer


def _value_bytes(value: Any) -> int:  # noqa: ANN401 - of JSON
    if isinstance(value, str):
        return VALUE_BYTES + _length(value)
    if isinstance(value, Mapping):
        return VALUE_BYTES + sum(
            VALUE_BYTES + _length(str(key)) + _value_bytes(each) for key, each in value.items()
        )
    if isinstance(value, Sequence):
        return VALUE_BYTES + sum(map(_value_bytes, value))
    return VALUE_BYTES


def _length(text: str) -> int:
    return len(text.encode(errors="replace"))
