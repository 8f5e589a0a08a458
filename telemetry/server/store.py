"""The fleet's telemetry in the controller's database: counted once, read by `query`.

Rules:
- A batch is counted once, in one transaction (`telemetry.server.counting`). If a part of it fails
  because of the controller, no part of it is counted.
- What a device may make the database grow by is bounded (`telemetry.server.budget`).
- Several threads may use the store; every call takes its own connection of the engine.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from telemetry.errors import TelemetryStoreError
from telemetry.metrics import Kind
from telemetry.server import event_log, presence, tables
from telemetry.server.budget import BURST_BYTES, MIB, REFILL_BYTES_PER_HOUR, Budgets
from telemetry.server.counting import Counting, SeriesGoneError
from telemetry.server.event_log import EventQuery
from telemetry.server.ingest import checked, span_at
from telemetry.server.presence import Gap, Measured
from telemetry.server.rows import (
    DeviceLosses,
    Grain,
    MinuteColumns,
    Reported,
    Series,
    StoredEvent,
    attributes_of,
)
from telemetry.server.series import SeriesIds
from telemetry.server.statements import IngestStatements
from telemetry.server.tables import metadata
from wire.clock import Clock, SystemClock
from wire.errors import WireFormatError
from wire.messages import TelemetryBatch

__all__ = ["TelemetryStore", "metadata"]

MAX_SEQUENCE = 2**62
ROWS_AT_ONCE = 20_000
EVERYTHING = EventQuery()
ATTEMPTS = 3
"""How often an ingest begins anew because a prune took one of its series."""

SECONDS_PER_MINUTE = 60
_log = logging.getLogger(__name__)


class TelemetryStore:
    """Telemetry in a database whose tables exist.

    Args:
        engine: SQLite or PostgreSQL.
        clock: Wall time, and the refill of the devices' budgets.
        retention_s: How long telemetry is kept: what is older is refused.
    """

    def __init__(
        self,
        engine: sa.Engine,
        clock: Clock | None = None,
        *,
        retention_s: float = math.inf,
    ) -> None:
        self._engine = engine
        self._clock = clock or SystemClock()
        self._retention_s = retention_s
        statements = IngestStatements(engine.dialect.name)
        self._series = SeriesIds(engine, statements)
        self._counting = Counting(engine, statements, self._series)
        self._budgets = Budgets(self._clock)

    def create_all(self) -> None:
        """Make the tables; in production the migrations make them.

        Raises:
            TelemetryStoreError: The database refuses.
        """
        with _own_errors():
            metadata.create_all(self._engine)

    def ingest(self, batch: TelemetryBatch) -> bool:
        """Count a batch, if it is not counted yet.

        What cannot be stored is counted as refused: the device need not send it again.

        Args:
            batch: From the device that it names; the caller has checked that.

        Returns:
            Whether it was counted now. The caller may acknowledge it in both cases.

        Raises:
            WireFormatError: An impossible identifier or sequence number.
            TelemetryStoreError: The database failed; nothing was counted.
        """
        _check_identity(batch)
        if not self._budgets.has_room(batch.device):
            return self._refuse(batch)
        found = checked(batch, span_at(self._clock.now_s(), self._retention_s))
        keys = {key for key, _ in found.measures}
        for _ in range(ATTEMPTS):
            with _own_errors(), contextlib.suppress(SeriesGoneError):
                ids = self._series.of(keys, batch.device)
                grown_bytes = self._counting.count(batch, found.without(keys - ids.keys()), ids)
                self._budgets.spend(batch.device, grown_bytes or 0)
                return grown_bytes is not None
        raise TelemetryStoreError("series are being deleted while their points come")

    def events(self, query: EventQuery = EVERYTHING) -> list[StoredEvent]:
        """Return what happened on devices.

        Args:
            query: Which events.

        Returns:
            The newest of them, oldest first.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with _own_errors(), self._engine.connect() as connection:
            return event_log.read(connection, query)

    def devices(self) -> list[DeviceLosses]:
        """Return every device that ever reported, by name.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table, batch = tables.device.c, tables.batch.c
        newest = (
            sa.select((sa.func.max(batch.minute) + 1) * SECONDS_PER_MINUTE)
            .where(batch.device == table.device, batch.minute > 0)
            .scalar_subquery()
        )
        query = sa.select(table.device, table.batches, table.dropped, table.refused, newest)
        with _own_errors(), self._engine.connect() as connection:
            return [DeviceLosses(*row) for row in connection.execute(query.order_by(table.device))]

    def metrics(self) -> list[Reported]:
        """Return what there is, by name.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.series.c
        columns = (table.metric, table.kind, table.release, table.variant, table.attributes)
        found: dict[tuple[str, Kind], set[str]] = {}
        numbers: Counter[tuple[str, Kind]] = Counter()
        with _own_errors(), self._engine.connect() as connection:
            for metric, kind, *named in connection.execute(sa.select(*columns)):
                found.setdefault((metric, kind), set()).update(attributes_of(*named))
                numbers[metric, kind] += 1
        return [
            Reported(*at, attributes=tuple(sorted(names)), series=numbers[at])
            for at, names in sorted(found.items())
        ]

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
        devices: Sequence[str] | None = None,
    ) -> Iterator[MinuteColumns]:
        """Read measurements, a bounded number of rows at once.

        Args:
            series: Which series.
            since_minute: The first minute, inclusive.
            until_minute: The last minute, exclusive.
            devices: Only these; None for all.

        Yields:
            One or more rows, as columns.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.minute.c
        query = sa.select(
            table.series_id, table.minute, table.minute, table.device, table.value_count,
            table.total, table.least, table.greatest, table.sketch,
        ).where(_within(series, since_minute, until_minute, devices))  # fmt: skip
        yield from self._columns(query)

    def sums(
        self,
        series: Sequence[int],
        since_minute: int,
        until_minute: int,
        devices: Sequence[str] | None = None,
        *,
        grain: Grain,
    ) -> Iterator[MinuteColumns]:
        """Let the database add measurements up; their histograms are not read.

        Args:
            series: Which series.
            since_minute: The first minute, inclusive.
            until_minute: The last minute, exclusive.
            devices: Only these; None for all.
            grain: Which rows stay apart.

        Yields:
            One or more sums, as columns; without sketches.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.minute.c
        apart: list[sa.ColumnElement[Any]] = [table.series_id]
        if grain.step:
            apart.append(table.minute // grain.step)
        if grain.by_minute:
            apart.append(table.minute)
        if grain.by_device:
            apart.append(table.device)
        query = sa.select(
            table.series_id,
            sa.func.min(table.minute),
            sa.func.max(table.minute),
            table.device if grain.by_device else sa.literal(""),
            # As floating point: a sum of counts that devices made up must not overflow.
            sa.func.sum(sa.cast(table.value_count, sa.Double)),
            sa.func.sum(table.total),
            sa.func.min(table.least),
            sa.func.max(table.greatest),
            sa.null(),
        ).where(_within(series, since_minute, until_minute, devices))
        yield from self._columns(query.group_by(*apart))

    def silences(
        self, since_minute: int, until_minute: int, *, longer_than: int
    ) -> tuple[list[Measured], list[Gap]]:
        """Return which devices measured anything in a time, and where they did not for long.

        Args:
            since_minute: The first minute, inclusive.
            until_minute: The last minute, exclusive.
            longer_than: Gaps of no more minutes are left out.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with _own_errors(), self._engine.connect() as connection:
            found = presence.measured(connection, since_minute, until_minute)
            apart = presence.gaps(connection, since_minute, until_minute, longer_than=longer_than)
        return found, apart

    def _columns(self, query: sa.Select[Any]) -> Iterator[MinuteColumns]:
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
            self._series.look(connection)
        self._budgets.forget_full()
        return gone

    def needs(self) -> list[str]:
        """Return what the store needs from people, one line for each; it names no device."""
        return self._series.needs

    def _refuse(self, batch: TelemetryBatch) -> bool:
        """Count a batch as refused, because its device has no budget left."""
        if self._budgets.tells(batch.device):
            _log.warning(
                "the telemetry of device %s is refused for some time: it sent more than the %d MiB "
                "at once and %d MiB an hour that are stored of one device",
                batch.device,
                BURST_BYTES // MIB,
                REFILL_BYTES_PER_HOUR // MIB,
            )
        with _own_errors():
            return self._counting.refuse(batch)


def _within(
    series: Sequence[int], since_minute: int, until_minute: int, devices: Sequence[str] | None
) -> sa.ColumnElement[bool]:
    table = tables.minute.c
    found = (
        table.series_id.in_(series) & (table.minute >= since_minute) & (table.minute < until_minute)
    )
    return found if devices is None else found & table.device.in_(devices)


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
