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
- Histograms are merged and kept as the store writes them: objects take a hundred times more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Final, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa

from telemetry.histogram import HEADER, ExponentialHistogram
from telemetry.metrics import Kind
from telemetry.server import sketches, tables
from telemetry.server.aggregate import Aggregate
from telemetry.server.database_faults import own_errors
from telemetry.server.export.places import Places
from telemetry.server.export.reading import (
    AllSeries,
    NamedSeries,
    all_series,
    next_windows,
    read_window,
)
from telemetry.server.export.settled import Window
from telemetry.server.measures import folded
from telemetry.server.question import DEVICE, SECONDS_PER_MINUTE
from telemetry.server.rows import Measure, MinuteColumns
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
    count: int
    """How many values were counted; of a plain counter, how many parts of it came."""

    total: float
    sketch: bytes | None
    """Its histogram, as `telemetry.server.sketches` writes it; None for a plain counter."""

    created_at_s: float
    minute: int
    """The newest that was added."""

    @property
    def histogram(self) -> ExponentialHistogram | None:
        """Its histogram, made for each call; None for a plain counter."""
        return None if self.sketch is None else sketches.decode(self.sketch)


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
        self._done: dict[str, int] = {}
        """The places up to which they count."""

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
        """
        now_s = self._clock.now_s()
        done = self._places.done()
        if done != self._done:  # another process has counted
            self.forget()
        self._done = done
        found = list(islice(next_windows(self._store, self._places, done, now_s), MAX_WINDOWS))
        series = all_series(self._store, *_KINDS) if found else {}
        for whole in found:
            window, rows = read_window(self._store, series, whole)
            added = _Added(series, by_device=self._by_device)
            for columns in rows:
                added.add(columns)
            self._keep(added, window, done, now_s)
        self._forget(int(now_s // SECONDS_PER_MINUTE) - KEPT_MINUTES)
        return bool(found)

    def _keep(self, added: _Added, window: Window, done: dict[str, int], now_s: float) -> None:
        with self._lock:
            known = self._loaded()
            grown = _grown(known, added.sums(), now_s)
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
                        count=row.value_count,
                        total=row.total,
                        sketch=row.sketch,
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


class _Sum(NamedTuple):
    """What was added up of a series."""

    series: NamedSeries
    minute: int
    """The newest."""

    measure: Measure


class _Added:
    """Rows, added up by series, or by series and device."""

    def __init__(self, series: AllSeries, *, by_device: bool) -> None:
        self._all = series
        self._by_device = by_device
        self._numbers: dict[tuple[int, str], int] = {}
        self._digests: dict[str, int] = {}
        self._series: list[NamedSeries] = []
        self._minutes = np.zeros(0, np.int64)
        self._measures = Aggregate(with_histograms=True)

    def add(self, columns: MinuteColumns) -> None:
        """Add rows of the store."""
        devices = columns.device if self._by_device else repeat("")
        keys = zip(columns.series_id, devices, strict=False)
        numbers = self._numbers
        at = [numbers[key] if key in numbers else self._number(*key) for key in keys]
        self._minutes = np.pad(self._minutes, (0, len(self._series) - len(self._minutes)))
        np.maximum.at(self._minutes, at, np.array(columns.minute))
        self._measures.add(columns, at, len(self._series))

    def sums(self) -> dict[str, _Sum]:
        """Return the sums, by the digest of their series."""
        found = zip(self._series, self._minutes.tolist(), self._measures.measures(), strict=True)
        return dict(zip(self._digests, map(_Sum._make, found), strict=True))

    def _number(self, series_id: int, device: str) -> int:
        """Return the number of a counter: series of the same names are one."""
        series = self._all[series_id]
        digest = sha256_hex(to_json([_named(series), device]))
        if digest not in self._digests:
            if self._by_device:
                series = series._replace(attributes={**series.attributes, DEVICE: device})
            self._digests[digest] = len(self._series)
            self._series.append(series)
        number = self._numbers[series_id, device] = self._digests[digest]
        return number


def _series(text: str) -> NamedSeries:
    stored = from_json(text.encode(), _StoredSeries)
    return NamedSeries(stored.metric, stored.kind, stored.attributes)


def _named(series: NamedSeries) -> list[object]:
    return [series.metric, series.kind, dict(sorted(series.attributes.items()))]


def _grown(
    known: Mapping[str, Counter], sums: Mapping[str, _Sum], now_s: float
) -> dict[str, Counter]:
    """Return the counters to which something was added."""
    parts = {digest: [one.measure] for digest, one in sums.items()}
    for digest, added in parts.items():
        if (counter := known.get(digest)) is not None:
            added.append(_measure(counter))
    measures = folded(parts)
    found = {}
    for digest, (series, minute, _) in sums.items():
        count, total, _, _, sketch = measures[digest]
        counter = known.get(digest)
        found[digest] = Counter(
            series=series,
            count=count,
            total=total,
            sketch=sketch,
            created_at_s=now_s if counter is None else counter.created_at_s,
            minute=minute if counter is None else max(counter.minute, minute),
        )
    return found


def _measure(counter: Counter) -> Measure:
    if counter.sketch is None:
        return Measure(counter.count, counter.total, counter.total, counter.total)
    *_, least, greatest = HEADER.unpack_from(counter.sketch)
    return Measure(counter.count, counter.total, least, greatest, counter.sketch)


def _row(sink: str, digest: str, counter: Counter) -> dict[str, object]:
    return {
        "sink": sink,
        "digest": digest,
        "series": to_json(_named(counter.series)).decode(),
        "value_count": counter.count,
        "total": counter.total,
        "sketch": counter.sketch,
        "created_at_s": counter.created_at_s,
        "minute": counter.minute,
    }
