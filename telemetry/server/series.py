"""The identifiers of series: made once, kept in memory, and checked before rows refer to them.

Rules:
- A series for which there is no room counts for another one (`telemetry.server.folding`). Which
  values labels have is known from the database, up to `LOOK_EVERY_S` ago; several controllers may
  therefore bring some more.
- A metric that no agent of this version reports has the kind of its oldest series
  (`telemetry.server.kinds`): no series of another kind is made or found.
- Series are the fleet's: devices that measure the same share one. The device that brings a new one
  is noted, and brings a bounded number, which is smaller when many series are there.
- What one device may not bring, another one that has it as well may.
- Releases and variants that are published are never too many values of a label.
- A series without rows is deleted (`TelemetryStore.prune`), by any controller of the fleet, and
  SQLite gives its identifier to another. So whoever writes rows first asks `are_current`, in the
  same transaction.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import sqlalchemy as sa

from telemetry.metrics import known
from telemetry.server.bounds import Bounds
from telemetry.server.folding import Full, LabelValues, fold, fold_values, labels_of
from telemetry.server.ingest import Fold, SeriesKey
from telemetry.server.kinds import other_kind
from telemetry.server.statements import IngestStatements
from wire.clock import Clock

MAX_SERIES = 30_000
"""Points of further series are refused, so devices that invent names cannot fill the disk. A query
names the identifiers of all series of a metric, and SQLite takes 32,766 of them."""

COMMON_SERIES = 10_000
"""Until there are so many, a device may bring `Bounds.device_series`; the rest is reserved for
devices that brought few. So who wants to keep new series out for the whole fleet needs 72 devices,
not a handful. A release of nine variants has some 150 series: this is room for 66 of them.
Where the packages carry distributions, each variant that serves has up to 64 more."""

RESERVED_OF_DEVICE = 250
"""What a device may bring in all when the common ones are used up: those of a release and more."""

FOLDED_OF_DEVICE = 50
"""What it may bring beyond that, of series in which all labels are `folding.OTHER`: one for each
metric is enough."""

LOOK_EVERY_S = 60.0
MAX_METRICS = 1000
"""Of which the values of labels are in memory."""

MAX_REMEMBERED = 20_000
"""Identifiers in memory: their names take 2 KB each at most."""

MOST_NAMED = 3
_log = logging.getLogger(__name__)

Named = Mapping[str, Collection[str]]
"""Values of labels that are always taken, by label."""

Published = Callable[[sa.Connection], Named]
"""Reads them, in any transaction."""


def nothing_published(_connection: sa.Connection) -> Named:
    """Return no values: nobody knows which ones are genuine."""
    return {}


class Found(NamedTuple):
    """What there is for some series."""

    ids: dict[SeriesKey, int]
    """The identifiers of those that there are, and of those that others are counted for."""

    folds: dict[SeriesKey, Fold]
    """What counts for another series."""

    refused: dict[SeriesKey, str]
    """Why there are not others, unless there is no room for them."""


class SeriesIds:
    """The identifiers of series.

    Args:
        engine: SQLite or PostgreSQL.
        statements: For its dialect.
        bounds: How many there may be.
        clock: Durations.
        published: Which values of labels are always taken.
    """

    def __init__(
        self,
        engine: sa.Engine,
        statements: IngestStatements,
        bounds: Bounds,
        clock: Clock,
        published: Published = nothing_published,
    ) -> None:
        self._engine = engine
        self._sql = statements
        self._bounds = bounds
        self._clock = clock
        self._values: dict[str, tuple[float, LabelValues]] = {}
        """The values of the labels of metrics, and when they were looked up."""

        self._published = published
        self._named: tuple[float, Named] = (-math.inf, {})
        """What is published, and when that was looked up."""

        self._lock = threading.Lock()
        self._known: dict[SeriesKey, int] = {}
        self._count = 0
        """How many series there were when somebody looked last."""

    @property
    def needs(self) -> list[str]:
        """What is to be told to people who ask how the controller is; it names no device."""
        if self._count < COMMON_SERIES:
            return []
        used = f"{self._count} of at most {MAX_SERIES}"
        return [f"fewer series of telemetry ({used}): the log names who brought most of them"]

    def look(self, connection: sa.Connection) -> int:
        """Return how many series there are; warn if their number has come near its limit.

        Args:
            connection: In any transaction.

        Returns:
            Their number.
        """
        before, self._count = self._count, connection.execute(self._sql.count_series).scalar_one()
        if before < COMMON_SERIES <= self._count:
            most = connection.execute(self._sql.most_brought, {"limit": MOST_NAMED})
            _log.warning(
                "there are %d series of telemetry, so a device may bring no more than %d, and at "
                "%d new ones are refused; most came from %s: decommission what is not yours, and "
                "its series go when nothing of them is kept any more",
                self._count,
                RESERVED_OF_DEVICE,
                MAX_SERIES,
                ", ".join(f"{device} ({number})" for device, number in most) or "unknown devices",
            )
        return self._count

    def of(self, brought: Iterable[tuple[str, Iterable[SeriesKey]]]) -> Found:
        """Return the identifiers of series; make missing ones, but none beyond the limits.

        They have a transaction of their own: an identifier that is known must not be rolled back.

        Args:
            brought: Devices, each with the series that it brings.

        Returns:
            Those that there are now.
        """
        found: dict[SeriesKey, int] = {}
        folds: dict[SeriesKey, Fold] = {}
        refused: dict[SeriesKey, str] = {}
        missing: set[tuple[str, SeriesKey]] = set()
        with self._lock:
            for device, keys in brought:
                for key in keys:
                    number = self._known.get(key)
                    if number is None:
                        missing.add((device, key))
                    else:
                        found[key] = number
        if not missing:
            return Found(found, folds, refused)
        with self._engine.begin() as connection:
            for device, group in groupby(sorted(missing), itemgetter(0)):
                left = [key for _, key in group if key not in found]
                made = self._made(connection, device, left)
                found |= made.ids
                folds |= made.folds
                refused |= made.refused
        with self._lock:
            if len(self._known) + len(found) > MAX_REMEMBERED:
                self._known.clear()
            self._known.update(found)
        folds = {key: one for key, one in folds.items() if key not in found}
        return Found(found, folds, refused)

    def _made(self, connection: sa.Connection, device: str, keys: Iterable[SeriesKey]) -> Found:
        """Return the identifiers of series; make those for which the device has room."""
        found = Found({}, {}, {})
        own = connection.execute(self._sql.count_brought, {"of_device": device}).scalar_one()
        every = self.look(connection)
        for key in keys:
            if why := self._other_kind(connection, key):
                found.refused[key] = why
                continue
            target = key
            number = self._find(connection, key)
            if number is None and (full := self._full(connection, key, device)):
                found.folds[key] = fold_values(key, full, device)
                target = found.folds[key].key
                number = self._find(connection, target)
            room = room_for(every, own, self._bounds.device_series)
            if number is None and not room and (named := labels_of(target)):
                found.folds[key] = fold(key, named, device)
                target = found.folds[key].key
                number = self._find(connection, target)
                room = room_for(every, own, self._bounds.device_series, more=FOLDED_OF_DEVICE)
            if number is None and room:
                number = self._make(connection, target, device)
                own, every = own + 1, every + 1
            if number is None:
                found.folds.pop(key, None)
            else:
                found.ids[target] = number
        return found

    def _find(self, connection: sa.Connection, key: SeriesKey) -> int | None:
        return connection.scalar(self._sql.find_series, key._asdict())

    def _make(self, connection: sa.Connection, key: SeriesKey, device: str) -> int | None:
        connection.execute(self._sql.make_series, {**key._asdict(), "brought_by": device})
        self._label_values(connection, key.metric).add(key, device)
        return self._find(connection, key)

    def _other_kind(self, connection: sa.Connection, key: SeriesKey) -> str:
        """Return why a series is not one of its metric; empty if it is."""
        if known(key.metric) is not None:
            return ""  # its kind was checked with its points
        oldest = self._label_values(connection, key.metric).kind or key.kind
        return "" if oldest == key.kind else other_kind(key.metric, oldest, key.kind)

    def _full(self, connection: sa.Connection, key: SeriesKey, device: str) -> Full:
        """Return the labels of a new series of which there are too many values."""
        full = self._label_values(connection, key.metric).full(key, device, self._bounds)
        if not full:
            return full
        named = self._named_values(connection)
        return full.without(
            [name for name, value in labels_of(key).items() if value in named.get(name, ())]
        )

    def _named_values(self, connection: sa.Connection) -> Named:
        now_s = self._clock.monotonic_s()
        if now_s - self._named[0] >= LOOK_EVERY_S:
            self._named = (now_s, self._published(connection))
        return self._named[1]

    def _label_values(self, connection: sa.Connection, metric: str) -> LabelValues:
        now_s = self._clock.monotonic_s()
        looked_s, values = self._values.get(metric, (-math.inf, None))
        if values is None or now_s - looked_s >= LOOK_EVERY_S:
            rows = connection.execute(self._sql.names_of_metric, {"of_metric": metric})
            values = LabelValues((SeriesKey._make(row[1:]), row.brought_by) for row in rows)
            if len(self._values) >= MAX_METRICS:
                self._values.clear()
            self._values[metric] = (now_s, values)
        return values

    def are_current(self, connection: sa.Connection, ids: Mapping[SeriesKey, int]) -> bool:
        """Tell whether identifiers still mean these series; forget those that do not.

        Args:
            connection: In the transaction that writes the rows.
            ids: As `of` returned them.

        Returns:
            Whether rows may refer to all of them.
        """
        if not ids:
            return True
        wanted = {"of_ids": sorted(ids.values())}
        rows = connection.execute(self._sql.read_series, wanted)
        present = {SeriesKey._make(row[1:]): row.id for row in rows}
        gone = [key for key, number in ids.items() if present.get(key) != number]
        with self._lock:
            for key in gone:
                self._known.pop(key, None)
        return not gone


def room_for(every: int, own: int, most: int, *, more: int = 0) -> int:
    """Return how many new series a device may bring.

    Args:
        every: How many there are.
        own: How many of them the device brought.
        most: How many it may bring while there are few.
        more: What it may bring beyond its share.

    Returns:
        The number, not below 0.
    """
    common = min(COMMON_SERIES - every, most + more - own)
    reserved = min(MAX_SERIES - every, RESERVED_OF_DEVICE + more - own)
    return max(common, reserved, 0)
