"""Checks what a device sent and converts it to the form of the store. Pure.

Rules:
- Every point of a batch is checked. An impossible point is refused alone: the rest is kept, and the
  device does not send the batch again.
- All sizes and values have limits, so a device cannot make a row grow without end or a sum
  overflow.
- Nothing lies further ahead than a day, by the controller's clock: no prune would ever reach it,
  and it would come first in every list. Nothing lies further back than what is kept: the next prune
  would delete it. If a device's clock is wrong by years, its points are refused, and so are its
  events while it is behind; while it is ahead, they are kept with the latest time that is allowed.
  If the clock of the controller is wrong by as much, all points are refused until it is right.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from telemetry.batches import MAX_EVENT_BYTES, shorten
from telemetry.histogram import COUNT_MAX, ExponentialHistogram
from telemetry.limits import MAX_ATTRIBUTES, MAX_TEXT, is_name
from telemetry.metrics import Kind
from telemetry.server.tables import MAX_SERIES_BYTES
from wire.codec import to_json
from wire.errors import WireFormatError
from wire.messages import Event, HistogramPoint, Point, SumPoint, TelemetryBatch

MAX_MINUTE = 2**31 - 1
AHEAD_S = 86_400.0
"""How far ahead the clock of a device may be: more than any time zone set as UTC."""

MAX_MAGNITUDE = 1e30
MAX_COUNT = 2**62
WINDOW = 256
"""The store knows for this many sequence numbers, up to the newest, whether they are counted."""


class SeriesKey(NamedTuple):
    """The key of a series."""

    metric: str
    kind: Kind
    release: str
    variant: str
    attributes: str
    """All other attributes, as canonical JSON."""


@dataclass(slots=True, kw_only=True)
class Measure:
    """The values of one series in one minute."""

    count: int
    total: float
    least: float
    greatest: float
    histogram: ExponentialHistogram | None = None

    def merge(self, other: Measure) -> None:
        """Add the values of another measure of the same series and minute."""
        self.total += other.total
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        if self.histogram is None or other.histogram is None:
            self.count = min(self.count + other.count, MAX_COUNT)
        else:
            self.histogram.merge(other.histogram)
            self.count = self.histogram.count


Measures = dict[tuple[SeriesKey, int], Measure]


class Window(NamedTuple):
    """Which sequence numbers of a boot are counted."""

    newest: int
    seen: int
    """Bit `i` stands for `newest - i`."""

    def holds(self, sequence: int) -> bool:
        """Tell whether a batch is counted, or so old that it is assumed to be counted."""
        age = self.newest - sequence
        return age >= WINDOW or (age >= 0 and bool(self.seen >> age & 1))

    def with_counted(self, sequence: int) -> Window:
        """Return the window that also holds a batch which is not in it yet."""
        if sequence <= self.newest:
            return Window(self.newest, self.seen | 1 << (self.newest - sequence))
        shift = min(sequence - self.newest, WINDOW)
        return Window(sequence, (self.seen << shift | 1) & ((1 << WINDOW) - 1))


class Span(NamedTuple):
    """The wall times that are stored."""

    earliest_s: float
    latest_s: float


@dataclass(slots=True, kw_only=True)
class Checked:
    """What of a batch is stored."""

    measures: Measures
    events: list[dict[str, Any]]
    """Rows of the store."""

    refused: int
    """How many points and events are not."""

    def without(self, missing: Collection[SeriesKey]) -> Checked:
        """Return what is left if some series have no room."""
        left = {at: measure for at, measure in self.measures.items() if at[0] not in missing}
        refused = self.refused + len(self.measures) - len(left)
        return Checked(measures=left, events=self.events, refused=refused)


def span_at(now_s: float, retention_s: float) -> Span:
    """Return the wall times that are stored at some time.

    Args:
        now_s: That time.
        retention_s: How long what is stored is kept.

    Returns:
        From the first whole minute that is kept, until as far ahead as a clock may be.
    """
    return Span(max(now_s - retention_s, 0.0) // 60 * 60, now_s + AHEAD_S)


def checked(batch: TelemetryBatch, span: Span) -> Checked:
    """Return what of a batch is stored.

    Args:
        batch: As decoded.
        span: The wall times that are stored.

    Returns:
        One measure for each series and minute, and the events.
    """
    measures, refused = measures_of(batch, span)
    rows = [event_row(batch.device, event, span.latest_s) for event in batch.events]
    kept = [row for row in rows if row["at_s"] >= span.earliest_s]
    return Checked(measures=measures, events=kept, refused=refused + len(rows) - len(kept))


def measures_of(batch: TelemetryBatch, span: Span) -> tuple[Measures, int]:
    """Return the checked points of a batch.

    Args:
        batch: As decoded.
        span: The wall times that a point may have.

    Returns:
        One measure for each series and minute, and how many points were refused.
    """
    found: Measures = {}
    refused = 0
    for point in batch.points:
        try:
            key = (_series_key(point), _checked_minute(point.minute, span))
            measure = _measure(point)
        except WireFormatError:
            refused += 1
            continue
        if key in found:
            found[key].merge(measure)
        else:
            found[key] = measure
    return found, refused


def event_row(device: str, event: Event, latest_s: float) -> dict[str, Any]:
    """Return an event as a row of the store.

    Args:
        device: Where it happened.
        event: As decoded.
        latest_s: The latest wall time that it may have; a later one becomes this.

    Returns:
        The columns; data that is too large is left out.
    """
    short = shorten(event)
    data = to_json(short.data)
    if len(data) > MAX_EVENT_BYTES * 2:
        data = b"{}"
    return {
        "device": device,
        "at_s": _possible_s(short.at_s, latest_s),
        "kind": short.kind,
        "reason": short.reason,
        "data": data.decode(),
    }


def latest_minute(stored: Checked) -> int:
    """Return the newest minute of what is stored; 0 for nothing."""
    minutes = [minute for _, minute in stored.measures]
    minutes += [int(row["at_s"]) // 60 for row in stored.events]
    return max(minutes, default=0)


def _possible_s(at_s: float, latest_s: float) -> float:
    """Return a wall time that the store can hold; 0 for what is not a number."""
    return 0.0 if math.isnan(at_s) else min(max(at_s, 0.0), latest_s, MAX_MINUTE * 60.0)


def _series_key(point: Point) -> SeriesKey:
    if not is_name(point.metric):
        raise WireFormatError(f"not a metric's name: {point.metric!r}")
    attributes = _checked_attributes(point.attributes)
    release = attributes.pop("release", "")
    variant = attributes.pop("variant", "")
    key = SeriesKey(point.metric, _kind(point), release, variant, to_json(attributes).decode())
    size_bytes = sum(len(part.encode()) for part in key)
    if size_bytes > MAX_SERIES_BYTES:
        raise WireFormatError(f"a series with names of {size_bytes} bytes")
    return key


def _kind(point: Point) -> Kind:
    if isinstance(point, HistogramPoint):
        return "histogram"
    return "sum" if isinstance(point, SumPoint) else "gauge"


def _checked_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    if len(attributes) > MAX_ATTRIBUTES:
        raise WireFormatError(f"{len(attributes)} attributes are too many")
    for name, value in attributes.items():
        if not is_name(name) or len(value) > MAX_TEXT or not value.isprintable():
            raise WireFormatError(f"not an attribute: {name!r}")
    return dict(attributes)


def _checked_minute(minute: int, span: Span) -> int:
    if not span.earliest_s // 60 <= minute <= min(span.latest_s // 60, MAX_MINUTE):
        raise WireFormatError(f"not a minute: {minute}")
    return minute


def _measure(point: Point) -> Measure:
    if isinstance(point, HistogramPoint):
        histogram = ExponentialHistogram.from_bytes(point.blob)
        least, greatest = histogram.least, histogram.greatest
        if least is None or greatest is None:
            raise WireFormatError("an empty histogram")
        return Measure(
            count=histogram.count,
            total=histogram.total,
            least=least,
            greatest=greatest,
            histogram=histogram,
        )
    if isinstance(point, SumPoint):
        if not 0.0 <= point.value <= MAX_MAGNITUDE:
            raise WireFormatError(f"a counter cannot grow by {point.value}")
        return Measure(count=1, total=point.value, least=point.value, greatest=point.value)
    values = (point.least, point.greatest, point.total)
    sane = all(math.isfinite(value) and abs(value) <= MAX_MAGNITUDE for value in values)
    if not sane or point.least > point.greatest or not 1 <= point.count <= COUNT_MAX:
        raise WireFormatError("the values of a gauge are impossible")
    return Measure(count=point.count, total=point.total, least=point.least, greatest=point.greatest)
