"""The fleet's telemetry in the controller's database: counted once, read by `query`.

Rules:
- A batch is counted once, within bounds, or not at all (`telemetry.server.intake`).
- Minutes become hours and days (`telemetry.server.rollups`), each kept for its time.
- Several threads may use the store; every call takes its own connection of the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from telemetry.server import bulk, dead_letters, event_log, presence, reported, tables
from telemetry.server.bounds import Bounds
from telemetry.server.database_faults import own_errors
from telemetry.server.dead_letters import DeadLetter
from telemetry.server.event_log import EventQuery
from telemetry.server.intake import Intake, Outcome
from telemetry.server.levels import LEVELS, MINUTES, Level, Part
from telemetry.server.partitions import Partitions
from telemetry.server.presence import Gap, Measured
from telemetry.server.pruning import Pruning, Retention
from telemetry.server.rollups import RollUps
from telemetry.server.rows import (
    DeviceLosses,
    MinuteColumns,
    Reported,
    Series,
    StoredEvent,
)
from telemetry.server.series import Published, SeriesIds, nothing_published
from telemetry.server.snapshot import Snapshot
from telemetry.server.statements import IngestStatements
from telemetry.server.tables import metadata
from wire.clock import Clock, SystemClock
from wire.telemetry import TelemetryBatch

__all__ = ["TelemetryStore", "metadata"]

EVERYTHING = EventQuery()
USUAL = Bounds()
FOREVER = Retention(minutes_s=math.inf, hours_s=math.inf, days_s=math.inf, events_s=math.inf)


class TelemetryStore:
    """Telemetry in a database whose tables exist.

    Args:
        engine: SQLite or PostgreSQL.
        clock: Wall time, and the refill of the devices' budgets.
        retention: How long telemetry is kept: what is older than minutes are kept is refused.
        bounds: What is taken of devices.
        reading_engine: The same for transactions that only read; None for `engine`.
        published: Which values of labels are always taken, such as the names of releases.
    """

    def __init__(
        self,
        engine: sa.Engine,
        clock: Clock | None = None,
        *,
        retention: Retention = FOREVER,
        bounds: Bounds = USUAL,
        reading_engine: sa.Engine | None = None,
        published: Published = nothing_published,
    ) -> None:
        self._engine = engine
        self._reading = engine if reading_engine is None else reading_engine
        self._clock = clock or SystemClock()
        self._retention = retention
        statements = IngestStatements(engine.dialect.name)
        self._series = SeriesIds(engine, statements, bounds, self._clock, published)
        partitions = Partitions(engine)
        self._intake = Intake(
            engine,
            self._reading,
            self._series,
            statements=statements,
            partitions=partitions,
            bounds=bounds,
            minutes_s=retention.minutes_s,
            clock=self._clock,
        )
        self._roll_ups = RollUps(engine, self._reading, partitions, self._clock)
        self._pruning = Pruning(engine, self._reading, self._series, retention, self._clock)

    @property
    def retained(self) -> dict[Level, float]:
        """How long the rows of each level are kept, in seconds, from fine to coarse."""
        return {level: self._retention.of(level) for level in LEVELS}

    def create_all(self) -> None:
        """Make the tables; in production the migrations make them.

        Raises:
            TelemetryStoreError: The database refuses.
        """
        with own_errors(), self._engine.begin() as connection:
            metadata.create_all(connection)
            rows = [(name, 0, 0, 0) for name in tables.LEVEL_ROWS]
            bulk.insert_missing(connection, tables.level, rows)

    def ingest(self, batch: TelemetryBatch) -> bool:
        """Count a batch, if it is not counted yet.

        Args:
            batch: From the device that it names; the caller has checked that.

        Returns:
            Whether it was counted now. The caller may acknowledge it in both cases, unless it is
            to ask for it again (`ingest_all`).

        Raises:
            WireFormatError: An impossible identifier or sequence number.
            TelemetryStoreError: The database failed; nothing was counted.
        """
        (outcome,) = self.ingest_all([batch])
        if outcome.fault is not None:
            raise outcome.fault
        return outcome.is_new

    def first_look(self, batch: TelemetryBatch, came_s: float) -> Outcome:
        """Tell whether a batch may be counted later, or what speaks against it now.

        Args:
            batch: From the device that it names.
            came_s: Wall time when it came.
        """
        return self._intake.first_look(batch, came_s)

    def ingest_all(
        self, batches: Sequence[TelemetryBatch], came_s: Sequence[float] | None = None
    ) -> list[Outcome]:
        """Count batches, each once.

        What cannot be stored is counted as refused: the device need not send it again. The caller
        may acknowledge all batches that have no fault and are not to be asked for again.

        Args:
            batches: In the order in which they came; their devices are known to the caller.
            came_s: Wall time when each came, where they waited since; None for now.

        Returns:
            What became of each.

        Raises:
            TelemetryStoreError: The database failed; nothing was counted.
        """
        return self._intake.take(batches, came_s)

    def bury(self, device: str, reason: str, payload: bytes) -> None:
        """Keep a batch that cannot be stored, for people to look at; only so many are kept.

        Args:
            device: The device that sent it.
            reason: What is wrong with it.
            payload: As it came.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors():
            dead_letters.bury(self._engine, device, reason, payload, self._clock.now_s())

    def dead_letters(self, device: str = "") -> list[DeadLetter]:
        """Return batches that could not be stored, the newest first.

        Args:
            device: Only those of this one; empty for all.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors():
            return dead_letters.read(self._reading, device)

    def roll_up(self, limit_s: float) -> bool:
        """Make hours and days of what has come.

        Args:
            limit_s: After so long, the rest is left to the next call.

        Returns:
            Whether there is a rest.

        Raises:
            TelemetryStoreError: The database failed; the next call goes on.
        """
        with own_errors():
            return self._roll_ups.make(limit_s)

    def events(self, query: EventQuery = EVERYTHING) -> list[StoredEvent]:
        """Return what happened on devices.

        Args:
            query: Which events.

        Returns:
            The newest of them, oldest first.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors(), self._reading.connect() as connection:
            return event_log.read(connection, query)

    def devices(self) -> list[DeviceLosses]:
        """Return every device that ever reported, by name.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors(), self._reading.connect() as connection:
            return reported.devices(connection)

    def wrong_clocks(self) -> dict[str, float]:
        """Return how far the clocks of devices are ahead, in seconds, of those that are wrong.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors(), self._reading.connect() as connection:
            return reported.wrong_clocks(connection)

    def answered(self, device: str) -> str | None:
        """Return the last request to report whose answer is stored, all of it; None for none.

        Args:
            device: Whose.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors(), self._reading.connect() as connection:
            return reported.answered(connection, device)

    def metrics(self) -> list[Reported]:
        """Return what there is, by name: series of the kind that each metric has.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors(), self._reading.connect() as connection:
            return reported.metrics(connection)

    def series(self, metric: str) -> list[Series]:
        """Return the series of a metric, of the kind that it has.

        Args:
            metric: Its name.

        Returns:
            All of them, oldest first.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors(), self._reading.connect() as connection:
            return reported.series(connection, metric)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Read measurements as they are at one moment.

        Yields:
            What can be read.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors(), self._reading.connect() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield Snapshot(connection, self._retention, self._clock.now_s())

    def read(
        self,
        series: Sequence[int],
        since_minute: int,
        until_minute: int,
        devices: Sequence[str] | None = None,
        *,
        level: Level = MINUTES,
    ) -> Iterator[MinuteColumns]:
        """Read the minutes of devices, or their hours or days, a bounded number of rows at once.

        Args:
            series: Which series.
            since_minute: The first minute, inclusive.
            until_minute: The last minute, exclusive.
            devices: Only these; None for all.
            level: Which rows: those that begin in this time.

        Yields:
            One or more rows, as columns.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with self.snapshot() as snapshot:
            yield from snapshot.rows(Part(level, since_minute, until_minute), series, devices)

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
        with own_errors(), self._reading.connect() as connection:
            found = presence.measured(connection, since_minute, until_minute)
            apart = presence.gaps(connection, since_minute, until_minute, longer_than=longer_than)
        return found, apart

    def reporting(self, since_minute: int, until_minute: int) -> frozenset[str]:  # noqa: ARG002 - as `telemetry.server.past.Past`, which knows the past
        """Return the devices that have measured anything lately.

        Args:
            since_minute: Since which minute.
            until_minute: The minute that it is now.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with own_errors(), self._reading.connect() as connection:
            return presence.since(connection, since_minute)

    def prune(self) -> int:
        """Delete everything that is older than it is kept, and the series of which nothing is left.

        Nothing is deleted while wall time is not believed (`telemetry.server.pruning`).

        Returns:
            How many rows of measurements and events were deleted.

        Raises:
            TelemetryStoreError: The database failed; the next call goes on.
        """
        with own_errors():
            gone = self._pruning.prune()
        self._intake.forget_full()
        return gone

    def needs(self) -> list[str]:
        """Return what the store needs from people, one line for each; it names no device."""
        return self._series.needs
