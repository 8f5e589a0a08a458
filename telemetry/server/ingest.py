"""Checks what a device sent and converts it to the form of the store. Pure.

Rules:
- Every point of a batch is checked. An impossible point is refused alone: the rest is kept, and the
  device does not send the batch again. An event says why, one an hour at most.
- A point of a metric that agents report has the metric's kind (`telemetry.server.kinds`).
- No attribute has the name of what a query knows by itself (`RESERVED`).
- All sizes and values have limits, so a device cannot make a row grow without end or a sum
  overflow.
- Nothing lies further ahead than a day, by the controller's clock: no prune would ever reach it,
  and it would come first in every list. Nothing lies further back than what is kept: the next prune
  would delete it. Nothing lies where rows were deleted: its hour could not be made anew. Times of a
  clock that is known to be wrong are corrected first (`telemetry.server.clocks`). If it is wrong by
  years and nobody knows, its points are refused, and so are its events while it is behind; while it
  is ahead, they are kept with the latest time that is allowed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from telemetry.batches import MAX_EVENT_BYTES, shorten
from telemetry.histogram import COUNT_MAX
from telemetry.limits import MAX_ATTRIBUTES, MAX_TEXT, is_name
from telemetry.metrics import Kind, known
from telemetry.server.kinds import other_kind
from telemetry.server.question import DEVICE, MINUTE, MODEL, START
from telemetry.server.rows import Measure
from telemetry.server.sketches import taken
from telemetry.server.tables import MAX_SERIES_BYTES
from wire.codec import to_json
from wire.errors import WireFormatError
from wire.telemetry import (
    Event,
    GaugePoint,
    HistogramPoint,
    Point,
    SumPoint,
    TelemetryBatch,
)

MAX_MINUTE = 2**31 - 1
AHEAD_S = 86_400.0
"""How far ahead the clock of a device may be: more than any time zone set as UTC."""

MAX_MAGNITUDE = 1e30
WINDOW = 256
"""The store knows for this many sequence numbers, up to the newest, whether they are counted."""

NO_ROOM = "there is no room for a further series"
MAX_REMEMBERED = 20_000
"""How many series are known to be sound: their names take 2 KB each at most."""

RESERVED = frozenset({DEVICE, MINUTE, MODEL, START})
"""The model is a part of the release; the others are columns of an answer."""

NEWS_KIND = "points"
"""Of the events about points that are refused."""

_KINDS: dict[type[Point], Kind] = {
    HistogramPoint: "histogram",
    SumPoint: "sum",
    GaugePoint: "gauge",
}


class SeriesKey(NamedTuple):
    """The key of a series."""

    metric: str
    kind: Kind
    release: str
    variant: str
    attributes: str
    """All other attributes, as canonical JSON."""


class Fold(NamedTuple):
    """What a series is counted as, because there is no room for it."""

    key: SeriesKey
    labels: tuple[str, ...]
    """Those that became `folding.OTHER`."""

    device: str = ""
    """Who brings too many values or series; empty where a label has too many in the fleet."""

    brings_values: bool = False
    """Whether the device brings too many values of a label, or series."""


class Refusal(NamedTuple):
    """Why a point is not stored."""

    metric: str
    reason: str


Measures = list[tuple[SeriesKey, int, Measure]]
"""Series, minutes and what came for them: seldom twice for the same two."""


class Taken(NamedTuple):
    """What of the points of a batch is sound."""

    measures: Measures
    refused: int
    """How many points are not."""

    refusal: Refusal | None
    """Why the first of them is not; None where it only is too old or ahead."""


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

    refusal: Refusal | None = None
    """Why the first of them is not; None where it only is too old or ahead."""

    folds: tuple[Fold, ...] = ()
    """What of the measures counts for other series."""

    keys: set[SeriesKey] = field(init=False)
    """The series of the measures."""

    latest_measured: int = field(init=False)
    """The newest minute of a measure; 0 for none."""

    latest_minute: int = field(init=False)
    """The same with events: their times may be ahead, and say nothing of measures."""

    def __post_init__(self) -> None:
        self.keys = {key for key, _, _ in self.measures}
        self.latest_measured = max((minute for _, minute, _ in self.measures), default=0)
        self.latest_minute = self.latest_measured
        for row in self.events:
            self.latest_minute = max(self.latest_minute, int(row["at_s"]) // 60)

    def only(self, present: Container[SeriesKey], why: Mapping[SeriesKey, str]) -> Checked:
        """Return what is left if there are some series alone.

        Args:
            present: Those series.
            why: Why there are not others; there is no room for those that it lacks.
        """
        missing = {key for key in self.keys if key not in present}
        if not missing:
            return self
        first = min(missing)
        left = [each for each in self.measures if each[0] not in missing]
        return replace(
            self,
            measures=left,
            refused=self.refused + len(self.measures) - len(left),
            refusal=self.refusal or Refusal(first.metric, why.get(first, NO_ROOM)),
        )

    def folded(self, folds: Mapping[SeriesKey, Fold]) -> Checked:
        """Return the same with the measures of some series counted for others."""
        used = [folds[key] for key in self.keys if key in folds] if folds else []
        if not used:
            return self
        measures = [
            (folds[key].key if key in folds else key, minute, measure)
            for key, minute, measure in self.measures
        ]
        return replace(self, measures=measures, folds=tuple(sorted(used)))


def span_at(now_s: float, retention_s: float, pruned_minute: int = 0) -> Span:
    """Return the wall times that are stored at some time.

    Args:
        now_s: That time.
        retention_s: How long what is stored is kept.
        pruned_minute: What is before it was deleted, also if it would be kept today.

    Returns:
        From the first whole minute that is kept, until as far ahead as a clock may be.
    """
    first = max(now_s - retention_s, 0.0) // 60
    return Span(max(first, pruned_minute) * 60.0, now_s + AHEAD_S)


def checked(batch: TelemetryBatch, span: Span, shift_s: float = 0.0) -> Checked:
    """Return what of a batch is stored.

    Args:
        batch: As decoded.
        span: The wall times that are stored.
        shift_s: How far the clock of the batch was ahead; that is taken from its times.

    Returns:
        The measures and the events.
    """
    measures, refused, refusal = measures_of(batch, span, round(shift_s / 60.0))
    rows = [event_row(batch.device, event, span.latest_s, shift_s) for event in batch.events]
    kept = [row for row in rows if row["at_s"] >= span.earliest_s]
    refused += len(rows) - len(kept)
    return Checked(measures=measures, events=kept, refused=refused, refusal=refusal)


def measures_of(batch: TelemetryBatch, span: Span, shift_minutes: int = 0) -> Taken:
    """Check the points of a batch.

    Args:
        batch: As decoded.
        span: The wall times that a point may have.
        shift_minutes: What is taken from their minutes.

    Returns:
        Those that are sound, and what was refused.
    """
    found: Measures = []
    refused = 0
    refusal: Refusal | None = None
    first, last = span.earliest_s // 60, min(span.latest_s // 60, MAX_MINUTE)
    for point in batch.points:
        minute = point.minute - shift_minutes
        if not first <= minute <= last:
            refused += 1
            continue
        try:
            key = _series_key(_KINDS[type(point)], point.metric, tuple(point.attributes.items()))
            measure = _measure(point)
        except WireFormatError as exc:
            refused += 1
            refusal = refusal or Refusal(point.metric[:MAX_TEXT], str(exc))
            continue
        found.append((key, minute, measure))
    return Taken(found, refused, refusal)


def event_row(device: str, event: Event, latest_s: float, shift_s: float = 0.0) -> dict[str, Any]:
    """Return an event as a row of the store.

    Args:
        device: Where it happened.
        event: As decoded.
        latest_s: The latest wall time that it may have; a later one becomes this.
        shift_s: What is taken from its time.

    Returns:
        The columns; data that is too large is left out.
    """
    short = shorten(event)
    data = to_json(short.data)
    if len(data) > MAX_EVENT_BYTES * 2:
        data = b"{}"
    return {
        "device": device,
        "at_s": _possible_s(short.at_s - shift_s, latest_s),
        "kind": short.kind,
        "reason": short.reason,
        "data": data.decode(),
    }


def _possible_s(at_s: float, latest_s: float) -> float:
    """Return a wall time that the store can hold; 0 for what is not a number."""
    return 0.0 if math.isnan(at_s) else min(max(at_s, 0.0), latest_s, MAX_MINUTE * 60.0)


@functools.lru_cache(MAX_REMEMBERED)
def _series_key(kind: Kind, metric: str, attributes: tuple[tuple[str, str], ...]) -> SeriesKey:
    if not is_name(metric):
        raise WireFormatError(f"not a metric's name: {metric!r}")
    named = known(metric)
    if named is not None and named.kind != kind:
        raise WireFormatError(other_kind(metric, named.kind, kind))
    others = _checked_attributes(dict(attributes))
    release = others.pop("release", "")
    variant = others.pop("variant", "")
    key = SeriesKey(metric, kind, release, variant, to_json(others).decode())
    size_bytes = sum(len(part.encode()) for part in key)
    if size_bytes > MAX_SERIES_BYTES:
        raise WireFormatError(f"a series with names of {size_bytes} bytes")
    return key


def _checked_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    if len(attributes) > MAX_ATTRIBUTES:
        raise WireFormatError(f"{len(attributes)} attributes are too many")
    for name, value in attributes.items():
        if not is_name(name) or len(value) > MAX_TEXT or not value.isprintable():
            raise WireFormatError(f"not an attribute: {name!r}")
        if name in RESERVED:
            raise WireFormatError(f"an attribute of a series cannot be called {name!r}")
    return dict(attributes)


def _measure(point: Point) -> Measure:
    # What is not a number is not within any bounds.
    if isinstance(point, HistogramPoint):
        return taken(point.blob)
    if isinstance(point, SumPoint):
        if not 0.0 <= point.value <= MAX_MAGNITUDE:
            raise WireFormatError(f"a counter cannot grow by {point.value}")
        value = float(point.value)
        return Measure(1, value, value, value)
    count, total, least, greatest = point.count, point.total, point.least, point.greatest
    if (
        not -MAX_MAGNITUDE <= least <= greatest <= MAX_MAGNITUDE
        or not -MAX_MAGNITUDE <= total <= MAX_MAGNITUDE
        or not 1 <= count <= COUNT_MAX
    ):
        raise WireFormatError("the values of a gauge are impossible")
    measure = Measure(count, float(total), float(least), float(greatest))
    if not measure.has_possible_mean():
        raise WireFormatError(f"the total {total} of a gauge is impossible")
    return measure
