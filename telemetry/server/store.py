"""The fleet's telemetry in the controller's database: counted once, read by `query`.

Rules:
- A batch is counted once, in one transaction, even if it comes again or through another controller:
  the store first locks the device's row, then reads its window of sequence numbers.
- If a part of a batch fails because of the controller, no part of the batch is counted.
- A histogram is merged into the row that exists, never added as a second row.
- Several threads may use the store; every call takes its own connection of the engine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from telemetry.errors import TelemetryStoreError
from telemetry.server import tables
from telemetry.server.ingest import (
    AHEAD_S,
    WINDOW,
    Kind,
    Measures,
    SeriesKey,
    Window,
    event_row,
    latest_minute,
    measures_of,
)
from telemetry.server.rows import (
    DeviceLosses,
    MinuteColumns,
    MinuteRow,
    Series,
    StoredEvent,
    attributes_of,
    measure_of,
    row_of,
)
from telemetry.server.series import SeriesIds
from telemetry.server.statements import IngestStatements
from telemetry.server.tables import metadata
from wire.clock import Clock, SystemClock
from wire.errors import WireFormatError
from wire.messages import Event, TelemetryBatch

__all__ = ["TelemetryStore", "metadata"]

MAX_SEQUENCE = 2**62
MAX_DROPPED = 2**31
MAX_EVENTS = 10_000
ROWS_AT_ONCE = 20_000
ATTEMPTS = 3
"""How often an ingest begins anew because a prune took one of its series."""

SECONDS_PER_MINUTE = 60
_UNSEEN = Window(-1, 0)


class TelemetryStore:
    """Telemetry in a database whose tables exist.

    Args:
        engine: SQLite or PostgreSQL.
        clock: Wall time.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock or SystemClock()
        self._sql = IngestStatements(engine.dialect.name)
        self._series = SeriesIds(engine, self._sql)

    def create_all(self) -> None:
        """Make the tables; in production the migrations make them.

        Raises:
            TelemetryStoreError: The database refuses.
        """
        with _own_errors():
            metadata.create_all(self._engine)

    def ingest(self, batch: TelemetryBatch) -> bool:
        """Count a batch, if it is not counted yet.

        Args:
            batch: From the device that it names; the caller has checked that.

        Returns:
            Whether it was counted now. The caller may acknowledge it in both cases.

        Raises:
            WireFormatError: An impossible identifier or sequence number.
            TelemetryStoreError: The database failed; nothing was counted.
        """
        _check_identity(batch)
        latest_s = self._clock.now_s() + AHEAD_S
        measures, refused = measures_of(batch, latest_s)
        for _ in range(ATTEMPTS):
            with _own_errors():
                ids = self._series.of({key for key, _ in measures}, batch.device)
                known = {at: measure for at, measure in measures.items() if at[0] in ids}
                more_refused = refused + len(measures) - len(known)
                with contextlib.suppress(_SeriesGoneError):
                    return self._count(batch, known, ids, more_refused, latest_s)
        raise TelemetryStoreError("series are being deleted while their points come")

    def events(
        self,
        device: str | None = None,
        kinds: tuple[str, ...] = (),
        since_s: float = 0,
        limit: int = 200,
    ) -> list[StoredEvent]:
        """Return what happened on devices.

        Args:
            device: Only this one; None for all.
            kinds: Only these; empty for all.
            since_s: Only from this wall time on.
            limit: Only the newest ones, at most this many.

        Returns:
            Events, oldest first.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.event.c
        query = (
            sa.select(table.device, table.at_s, table.kind, table.reason, table.data)
            .where(table.at_s >= since_s)
            .order_by(table.at_s.desc(), table.id.desc())
            .limit(min(max(limit, 0), MAX_EVENTS))
        )
        if device is not None:
            query = query.where(table.device == device)
        if kinds:
            query = query.where(table.kind.in_(kinds))
        with _own_errors(), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [
            StoredEvent(name, Event(at_s=at_s, kind=kind, reason=reason, data=json.loads(data)))
            for name, at_s, kind, reason, data in reversed(rows)
        ]

    def devices(self) -> list[DeviceLosses]:
        """Return every device that ever reported, by name.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.device.c
        query = sa.select(table.device, table.batches, table.dropped, table.refused)
        with _own_errors(), self._engine.connect() as connection:
            return [DeviceLosses(*row) for row in connection.execute(query.order_by(table.device))]

    def metrics(self) -> list[tuple[str, Kind]]:
        """Return the names and kinds of everything that is kept, by name.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.series.c
        query = sa.select(table.metric, table.kind).distinct().order_by(table.metric, table.kind)
        with _own_errors(), self._engine.connect() as connection:
            return [(metric, kind) for metric, kind in connection.execute(query)]

    def series(self, metric: str) -> list[Series]:
        """Return the series of a metric.

        Args:
            metric: Its name.

        Returns:
            All of them, oldest first.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.series.c
        query = (
            sa.select(table.id, table.kind, table.release, table.variant, table.attributes)
            .where(table.metric == metric)
            .order_by(table.id)
        )
        with _own_errors(), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [
            Series(row.id, row.kind, attributes_of(row.release, row.variant, row.attributes))
            for row in rows
        ]

    def read(
        self,
        series: Sequence[int],
        since_minute: int,
        until_minute: int,
        devices: Sequence[str] = (),
    ) -> Iterator[MinuteColumns]:
        """Read measurements, a bounded number of rows at once.

        Args:
            series: Which series.
            since_minute: The first minute, inclusive.
            until_minute: The last minute, exclusive.
            devices: Only these; empty for all.

        Yields:
            One or more rows, as columns.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.minute.c
        query = sa.select(tables.minute).where(
            table.series_id.in_(series), table.minute >= since_minute, table.minute < until_minute
        )
        if devices:
            query = query.where(table.device.in_(devices))
        with _own_errors(), self._engine.connect() as connection:
            result = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
            for part in result.partitions():
                yield MinuteColumns._make(zip(*part, strict=True))

    def prune(self, before_s: float) -> int:
        """Delete everything older than a wall time, and the series of which nothing is left.

        Args:
            before_s: Seconds since the epoch.

        Returns:
            How many rows of measurements and events were deleted.

        Raises:
            TelemetryStoreError: The database failed; nothing is deleted.
        """
        before_minute = int(before_s // SECONDS_PER_MINUTE)
        statements = (
            sa.delete(tables.minute).where(tables.minute.c.minute < before_minute),
            sa.delete(tables.event).where(tables.event.c.at_s < before_s),
        )
        with _own_errors(), self._engine.begin() as connection:
            gone = sum(connection.execute(statement).rowcount for statement in statements)
            connection.execute(sa.delete(tables.batch).where(tables.batch.c.minute < before_minute))
            rows = sa.exists().where(tables.minute.c.series_id == tables.series.c.id)
            connection.execute(sa.delete(tables.series).where(~rows))
        return gone

    def _count(
        self,
        batch: TelemetryBatch,
        known: Measures,
        ids: dict[SeriesKey, int],
        refused: int,
        latest_s: float,
    ) -> bool:
        """Count a batch in one transaction; return False if it was counted before.

        Raises:
            _SeriesGoneError: A series was deleted meanwhile; nothing was counted.
        """
        with self._engine.begin() as connection:
            connection.execute(self._sql.lock_device, {"device": batch.device})
            if not self._claim(connection, batch, latest_minute(batch, known, latest_s)):
                return False
            if not self._series.are_current(connection, ids):
                raise _SeriesGoneError
            self._merge(connection, batch.device, known, ids)
            if batch.events:
                rows = [event_row(batch.device, event, latest_s) for event in batch.events]
                connection.execute(self._sql.insert_events, rows)
            losses = {
                "of_device": batch.device,
                "more_dropped": min(max(batch.dropped, 0), MAX_DROPPED),
                "more_refused": refused,
            }
            connection.execute(self._sql.count_losses, losses)
        return True

    def _claim(self, connection: sa.Connection, batch: TelemetryBatch, minute: int) -> bool:
        """Record that a batch is counted; return False if it was counted before."""
        boot = {"of_device": batch.device, "of_boot": batch.boot_id}
        row = connection.execute(self._sql.read_window, boot).first()
        window = _UNSEEN if row is None else Window(row.newest, int.from_bytes(row.seen, "big"))
        if window.holds(batch.sequence):
            return False
        after = window.with_counted(batch.sequence)
        written = {
            "device": batch.device,
            "boot": batch.boot_id,
            "newest": after.newest,
            "seen": after.seen.to_bytes(WINDOW // 8, "big"),
            "minute": minute if row is None else max(minute, row.minute),
        }
        connection.execute(self._sql.write_window, written)
        return True

    def _merge(
        self,
        connection: sa.Connection,
        device: str,
        measures: Measures,
        ids: dict[SeriesKey, int],
    ) -> None:
        """Add measures to what is stored for the same series and minutes of a device."""
        if not measures:
            return
        new = {(ids[key], minute): measure for (key, minute), measure in measures.items()}
        wanted = {
            "of_device": device,
            "of_series": sorted({series for series, _ in new}),
            "of_minutes": sorted({minute for _, minute in new}),
        }
        for row in map(MinuteRow._make, connection.execute(self._sql.read_minutes, wanted)):
            measure = new.get((row.series_id, row.minute))
            if measure is not None:
                measure.merge(measure_of(row))
        rows = [row_of(*at, device, measure) for at, measure in new.items()]
        connection.execute(self._sql.write_minutes, rows)


class _SeriesGoneError(Exception):
    """A series of a batch was deleted after its identifier was found."""


def _check_identity(batch: TelemetryBatch) -> None:
    boot = batch.boot_id
    if not 1 <= len(batch.device) <= tables.MAX_DEVICE or not batch.device.isprintable():
        raise WireFormatError(f"not a device identifier: {batch.device!r}")
    if not 1 <= len(boot) <= tables.MAX_BOOT or not boot.isprintable():
        raise WireFormatError(f"not a boot identifier: {boot!r}")
    if not 0 <= batch.sequence <= MAX_SEQUENCE:
        raise WireFormatError(f"not a sequence number: {batch.sequence}")


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as exc:
        cause = getattr(exc, "orig", None) or exc
        raise TelemetryStoreError(
            f"the telemetry database failed: {' '.join(str(cause).split())}",
            remedy="check that the database runs and that its migrations are applied",
        ) from exc
