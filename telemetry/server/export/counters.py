"""Counters that never fall, made of minutes, for Prometheus.

A sum over the store would fall whenever old rows are deleted. So each settled measurement is added
once. The sums are in the database, in one transaction with the places up to which they count, so a
restart of the controller does not set them back.

Rules:
- A series that nobody has reported for `KEPT_MINUTES` goes. If it comes back it begins at 0, and
  says since when.
- A pass adds `MAX_WINDOWS` windows at most; after a long outage the rest is added by the next ones.
- After a transaction that failed, the sums are read from the database again: it may have been kept,
  and only the answer was lost.
- The values of a histogram are counted in its buckets alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import msgspec
import sqlalchemy as sa

from telemetry.histogram import ExponentialHistogram
from telemetry.metrics import Kind
from telemetry.server import sketches, tables
from telemetry.server.export.places import Places, own_errors
from telemetry.server.export.reading import (
    Measured,
    NamedSeries,
    all_series,
    measured,
    next_windows,
)
from telemetry.server.export.settled import Window
from telemetry.server.measures import MAX_COUNT
from telemetry.server.question import DEVICE, SECONDS_PER_MINUTE
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.codec import from_json, sha256_hex, to_json

KEPT_MINUTES: Final = 7 * 1440
MAX_WINDOWS: Final = 100
_KINDS: Final[tuple[Kind, ...]] = ("histogram", "sum")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """What was counted of a series."""

    series: NamedSeries
    parts: int
    """How many parts of a plain counter came; what a histogram counts stands in its buckets."""

    total: float
    histogram: ExponentialHistogram | None
    """Not to be changed."""

    created_at_s: float
    minute: int
    """The newest that was added."""

    @property
    def count(self) -> int:
        """How many values were counted."""
        return self.parts if self.histogram is None else self.histogram.count


class Counters:
    """The counters of all series.

    Args:
        engine: The database of the telemetry.
        store: The telemetry.
        clock: Wall time.
        by_device: Whether each device has counters of its own.
    """

    def __init__(
        self, engine: sa.Engine, store: TelemetryStore, clock: Clock, *, by_device: bool = False
    ) -> None:
        self._sink = "counters-by-device" if by_device else "counters"
        self._by_device = by_device
        self._engine = engine
        self._store = store
        self._clock = clock
        self._places = Places(engine, self._sink)
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] | None = None

    def all(self) -> list[Counter]:
        """Return what was counted.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with self._lock:
            return list(self._loaded().values())

    def forget(self) -> None:
        """Read the sums from the database the next time: another process may count."""
        with self._lock:
            self._counters = None

    def count(self) -> bool:
        """Add what is settled by now.

        Returns:
            Whether there may be more.

        Raises:
            TelemetryStoreError: The database failed.
            WireFormatError: A stored histogram is not one of ours.
        """
        now_s = self._clock.now_s()
        done = self._places.done()
        found = list(islice(next_windows(self._store, self._places, done, now_s), MAX_WINDOWS))
        series = all_series(self._store, *_KINDS) if found else {}
        for window in found:
            added = _Added(by_device=self._by_device)
            added.add(measured(self._store, series, window))
            self._keep(added, window, done, now_s)
        self._forget(int(now_s // SECONDS_PER_MINUTE) - KEPT_MINUTES)
        return bool(found)

    def _keep(self, added: _Added, window: Window, done: dict[str, int], now_s: float) -> None:
        with self._lock:
            known = self._loaded()
            grown = {
                digest: _sum(known.get(digest), each, now_s) for digest, each in added.sums.items()
            }
            with self._writing() as connection:
                self._write(connection, grown, known)
                self._places.keep(connection, window, done)
            known.update(grown)
        done.update(dict.fromkeys(window.devices, window.until))

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """Open a transaction; if it fails, forget what is in memory.

        Yields:
            Its connection.

        Raises:
            TelemetryStoreError: The database failed; nobody knows what is kept.
        """
        try:
            with self._places.writing() as connection:
                yield connection
        except BaseException:
            self._counters = None
            raise

    def _write(
        self, connection: sa.Connection, grown: dict[str, Counter], known: dict[str, Counter]
    ) -> None:
        table = tables.export_counter
        rows = [_row(self._sink, digest, counter) for digest, counter in grown.items()]
        new = [row for row in rows if row["digest"] not in known]
        if new:
            connection.execute(sa.insert(table), new)
        changed = [
            {f"new_{name}": value for name, value in row.items()}
            for row in rows
            if row["digest"] in known
        ]
        if changed:
            names = ("value_count", "total", "sketch", "minute")
            statement = (
                sa.update(table)
                .where(table.c.sink == self._sink, table.c.digest == sa.bindparam("new_digest"))
                .values({name: sa.bindparam(f"new_{name}") for name in names})
            )
            connection.execute(statement, changed)

    def _forget(self, before: int) -> None:
        with self._lock:
            known = self._loaded()
            old = [digest for digest, counter in known.items() if counter.minute < before]
            if not old:
                return
            table = tables.export_counter.c
            statement = sa.delete(tables.export_counter).where(
                table.sink == self._sink, table.minute < before
            )
            with self._writing() as connection:
                connection.execute(statement)
            for digest in old:
                del known[digest]
            _log.info("%d series that nobody reports any more are not counted further", len(old))

    def _loaded(self) -> dict[str, Counter]:
        if self._counters is None:
            table = tables.export_counter
            query = sa.select(table).where(table.c.sink == self._sink)
            with own_errors(), self._engine.connect() as connection:
                self._counters = {
                    row.digest: Counter(
                        series=_series(row.series),
                        parts=row.value_count,
                        total=row.total,
                        histogram=None if row.sketch is None else sketches.decode(row.sketch),
                        created_at_s=row.created_at_s,
                        minute=row.minute,
                    )
                    for row in connection.execute(query)
                }
        return self._counters


class _StoredSeries(msgspec.Struct, array_like=True):
    metric: str
    kind: Kind
    attributes: dict[str, str]


class _Added:
    """Measurements, added up by series."""

    def __init__(self, *, by_device: bool) -> None:
        self._by_device = by_device
        self._digests: dict[tuple[int, str], str] = {}
        self.sums: dict[str, Measured] = {}

    def add(self, part: Iterable[Measured]) -> None:
        """Add measurements, which are changed."""
        for found in part:
            digest = self._digest(found)
            so_far = self.sums.get(digest)
            if so_far is None:
                series = found.series
                if self._by_device:
                    attributes = {**series.attributes, DEVICE: found.device}
                    series = series._replace(attributes=attributes)
                self.sums[digest] = found._replace(series=series)
            else:
                so_far.measure.merge(found.measure)
                if found.minute > so_far.minute:
                    self.sums[digest] = so_far._replace(minute=found.minute)

    def _digest(self, found: Measured) -> str:
        device = found.device if self._by_device else ""
        at = (id(found.series), device)  # one object for each series in a pass
        if at not in self._digests:
            self._digests[at] = sha256_hex(to_json([_named(found.series), device]))
        return self._digests[at]


def _series(text: str) -> NamedSeries:
    stored = from_json(text.encode(), _StoredSeries)
    return NamedSeries(stored.metric, stored.kind, stored.attributes)


def _named(series: NamedSeries) -> list[object]:
    return [series.metric, series.kind, dict(sorted(series.attributes.items()))]


def _sum(counter: Counter | None, added: Measured, now_s: float) -> Counter:
    measure = added.measure
    if counter is None:
        return Counter(
            series=added.series,
            parts=measure.count,
            total=measure.total,
            histogram=measure.histogram,
            created_at_s=now_s,
            minute=added.minute,
        )
    histogram = counter.histogram
    if histogram is not None and measure.histogram is not None:
        measure.histogram.merge(histogram)
        histogram = measure.histogram
    return replace(
        counter,
        parts=min(counter.parts + measure.count, MAX_COUNT),
        total=counter.total + measure.total,
        histogram=histogram,
        minute=max(counter.minute, added.minute),
    )


def _row(sink: str, digest: str, counter: Counter) -> dict[str, object]:
    histogram = counter.histogram
    return {
        "sink": sink,
        "digest": digest,
        "series": to_json(_named(counter.series)).decode(),
        "value_count": counter.count,
        "total": counter.total,
        "sketch": None if histogram is None else sketches.encode(histogram),
        "created_at_s": counter.created_at_s,
        "minute": counter.minute,
    }
