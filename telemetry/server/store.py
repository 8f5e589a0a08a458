"""The fleet's telemetry in the controller's database: counted once, read by `query`.

Rules:
- A batch is counted once (`telemetry.server.counting`). If the database fails, no batch of the call
  is counted; a batch with a value that it cannot store does not keep the others back.
- What a device may make the database grow by is bounded (`telemetry.server.budget`).
- Minutes become hours and days (`telemetry.server.rollups`), each kept for its time.
- Several threads may use the store; every call takes its own connection of the engine.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from telemetry.errors import TelemetryStoreError
from telemetry.metrics import Kind
from telemetry.server import bulk, dead_letters, event_log, presence, tables
from telemetry.server.bounds import Bounds
from telemetry.server.budget import BURST_BYTES, MIB, REFILL_BYTES_PER_HOUR, Budgets
from telemetry.server.clocks import Judged, judged
from telemetry.server.counting import Arrived, Counting, SeriesGoneError
from telemetry.server.dead_letters import DeadLetter
from telemetry.server.event_log import EventQuery
from telemetry.server.ingest import Span, checked, span_at
from telemetry.server.kinds import kind_of, of_its_kind
from telemetry.server.levels import LEVELS, MINUTES, Level, Part
from telemetry.server.partitions import Partitions
from telemetry.server.presence import Gap, Measured
from telemetry.server.pruning import Pruning, Retention, pruned_minute
from telemetry.server.rollups import RollUps
from telemetry.server.rows import (
    DeviceLosses,
    MinuteColumns,
    Reported,
    Series,
    StoredEvent,
    attributes_of,
)
from telemetry.server.series import Found, Published, SeriesIds, nothing_published
from telemetry.server.snapshot import Snapshot
from telemetry.server.statements import IngestStatements
from telemetry.server.tables import metadata
from wire.clock import Clock, SystemClock
from wire.errors import WireFormatError
from wire.messages import TelemetryBatch

__all__ = ["TelemetryStore", "metadata"]

MAX_SEQUENCE = 2**62
EVERYTHING = EventQuery()
USUAL = Bounds()
FOREVER = Retention(minutes_s=math.inf, hours_s=math.inf, days_s=math.inf, events_s=math.inf)
ATTEMPTS = 3
"""How often an ingest begins anew because a prune took one of its series."""

SECONDS_PER_MINUTE = 60
_log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What became of a batch."""

    is_new: bool
    """Whether it was counted now."""

    fault: WireFormatError | None = None
    """Why nothing of it can ever be stored; it is a dead letter."""

    is_asked_again: bool = False
    """Whether it is not stored now, because its device is first to say how its clock is."""


COUNTABLE: Final = Outcome(is_new=False)
"""Of a batch that nothing speaks against."""


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
        self._bounds = bounds
        statements = IngestStatements(engine.dialect.name)
        self._series = SeriesIds(engine, statements, bounds, self._clock, published)
        self._counting = Counting(engine, statements, self._series, bounds, self._clock)
        self._budgets = Budgets(self._clock)
        self._partitions = Partitions(engine)
        self._roll_ups = RollUps(engine, self._reading, self._partitions, self._clock)
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
        with _own_errors(), self._engine.begin() as connection:
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

    def ingest_all(self, batches: Sequence[TelemetryBatch]) -> list[Outcome]:
        """Count batches, each once.

        What cannot be stored is counted as refused: the device need not send it again. The caller
        may acknowledge all batches that have no fault and are not to be asked for again.

        Args:
            batches: In the order in which they came; their devices are known to the caller.

        Returns:
            What became of each.

        Raises:
            TelemetryStoreError: The database failed; nothing was counted.
        """
        now_s = self._clock.now_s()
        with _own_errors(), self._reading.connect() as connection:
            pruned = pruned_minute(connection, MINUTES)
        span = span_at(now_s, self._retention.minutes_s, pruned)
        outcomes: list[Outcome] = []
        sound: list[int] = []
        arrived: list[Arrived] = []
        for at, batch in enumerate(batches):
            by_clock = judged(batch.clock, now_s, self._bounds.clock_tolerance_s)
            outcomes.append(_first_look(batch, by_clock))
            if outcomes[at] is COUNTABLE:
                sound.append(at)
                arrived.append(self._arrived(batch, span, by_clock))
        with _own_errors():
            try:
                counted = [Outcome(is_new) for is_new in self._count(arrived)]
            except (DataError, IntegrityError):
                # One of them has a value that the database cannot store, or its row exists although
                # nothing tells of it: which?
                self._partitions.forget()
                counted = [self._alone(each) for each in arrived]
        for at, outcome in zip(sound, counted, strict=True):
            outcomes[at] = outcome
        return outcomes

    def bury(self, device: str, reason: str, payload: bytes) -> None:
        """Keep a batch that cannot be stored, for people to look at; only so many are kept.

        Args:
            device: The device that sent it.
            reason: What is wrong with it.
            payload: As it came.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with _own_errors():
            dead_letters.bury(self._engine, device, reason, payload, self._clock.now_s())

    def dead_letters(self, device: str = "") -> list[DeadLetter]:
        """Return batches that could not be stored, the newest first.

        Args:
            device: Only those of this one; empty for all.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with _own_errors():
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
        with _own_errors():
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
        with _own_errors(), self._reading.connect() as connection:
            return event_log.read(connection, query)

    def devices(self) -> list[DeviceLosses]:
        """Return every device that ever reported, by name.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.device.c
        newest = (table.newest_minute + 1) * SECONDS_PER_MINUTE
        newest_s = sa.case((table.newest_minute > 0, newest))
        query = sa.select(
            *(table.device, table.batches, table.dropped, table.refused),
            *(newest_s, table.clock_ahead_s),
        )
        with _own_errors(), self._reading.connect() as connection:
            return [DeviceLosses(*row) for row in connection.execute(query.order_by(table.device))]

    def wrong_clocks(self) -> dict[str, float]:
        """Return how far the clocks of devices are ahead, in seconds, of those that are wrong.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.device.c
        query = sa.select(table.device, table.clock_ahead_s).where(table.clock_ahead_s.is_not(None))
        with _own_errors(), self._reading.connect() as connection:
            return {row.device: row.clock_ahead_s for row in connection.execute(query)}

    def answered(self, device: str) -> str | None:
        """Return the last request to report whose answer is stored, all of it; None for none.

        Args:
            device: Whose.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.device.c
        query = sa.select(table.answered).where(table.device == device)
        with _own_errors(), self._reading.connect() as connection:
            return connection.scalar(query)

    def metrics(self) -> list[Reported]:
        """Return what there is, by name: series of the kind that each metric has.

        Raises:
            TelemetryStoreError: The database failed.
        """
        table = tables.series.c
        columns = (table.metric, table.kind, table.release, table.variant, table.attributes)
        query = sa.select(*columns).order_by(table.id)
        kinds: dict[str, Kind] = {}
        found: dict[str, set[str]] = {}
        numbers: Counter[str] = Counter()
        with _own_errors(), self._reading.connect() as connection:
            for metric, kind, *named in connection.execute(query):
                kinds.setdefault(metric, kind_of(metric, kind))
                if kind == kinds[metric]:
                    found.setdefault(metric, set()).update(attributes_of(*named))
                    numbers[metric] += 1
        return [
            Reported(metric, kinds[metric], attributes=tuple(sorted(names)), series=numbers[metric])
            for metric, names in sorted(found.items())
        ]

    def series(self, metric: str) -> list[Series]:
        """Return the series of a metric, of the kind that it has.

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
        with _own_errors(), self._reading.connect() as connection:
            rows = connection.execute(query).all()
        found = [
            Series(row.id, row.kind, attributes_of(row.release, row.variant, row.attributes))
            for row in rows
        ]
        return of_its_kind(metric, found)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Read measurements as they are at one moment.

        Yields:
            What can be read.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with _own_errors(), self._reading.connect() as connection:
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
        with _own_errors(), self._reading.connect() as connection:
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
        with _own_errors(), self._reading.connect() as connection:
            return presence.since(connection, since_minute)

    def prune(self) -> int:
        """Delete everything that is older than it is kept, and the series of which nothing is left.

        Nothing is deleted while wall time is not believed (`telemetry.server.pruning`).

        Returns:
            How many rows of measurements and events were deleted.

        Raises:
            TelemetryStoreError: The database failed; the next call goes on.
        """
        with _own_errors():
            gone = self._pruning.prune()
        self._budgets.forget_full()
        return gone

    def needs(self) -> list[str]:
        """Return what the store needs from people, one line for each; it names no device."""
        return self._series.needs

    def _arrived(self, batch: TelemetryBatch, span: Span, by_clock: Judged) -> Arrived:
        found = checked(batch, span, by_clock.shift_s)
        if self._budgets.has_room(batch.device):
            return Arrived(batch, found, ahead_s=by_clock.ahead_s)
        if self._budgets.tells(batch.device):
            _log.warning(
                "the telemetry of device %s is refused for some time: it sent more than the %d MiB "
                "at once and %d MiB an hour that are stored of one device",
                batch.device,
                BURST_BYTES // MIB,
                REFILL_BYTES_PER_HOUR // MIB,
            )
        return Arrived(batch, found, is_refused=True, ahead_s=by_clock.ahead_s)

    def _count(self, arrived: Sequence[Arrived], *, look: bool = False) -> list[bool]:
        """Count batches together; return which are new.

        Raises:
            TelemetryStoreError: Series go as fast as they come.
        """
        stored = [each for each in arrived if not each.is_refused]
        minutes = {minute for each in stored for _, minute, _ in each.checked.measures}
        self._partitions.cover(tables.minute, minutes)
        for _ in range(ATTEMPTS):
            found = self._series.of((each.batch.device, each.checked.keys) for each in stored)
            fitting = [each if each.is_refused else _fitting(each, found) for each in arrived]
            try:
                counted = self._counting.count(fitting, found.ids, look=look)
            except SeriesGoneError:
                continue
            self._budgets.spend(counted.grown_bytes)
            return counted.is_new
        raise TelemetryStoreError("series are being deleted while their points come")

    def _alone(self, arrived: Arrived) -> Outcome:
        try:
            (is_new,) = self._count([arrived], look=True)
        except (DataError, IntegrityError) as exc:
            return Outcome(
                is_new=False,
                fault=WireFormatError(f"the database cannot store it: {_cause(exc)}"),
            )
        return Outcome(is_new)


def _first_look(batch: TelemetryBatch, by_clock: Judged) -> Outcome:
    fault = _identity_fault(batch)
    if fault is None and not by_clock.is_asked_again:
        return COUNTABLE
    return Outcome(is_new=False, fault=fault, is_asked_again=fault is None)


def _fitting(arrived: Arrived, found: Found) -> Arrived:
    whole = arrived.checked.folded(found.folds)
    return arrived._replace(checked=whole.only(found.ids, found.refused))


def _identity_fault(batch: TelemetryBatch) -> WireFormatError | None:
    boot = batch.boot_id
    if not 1 <= len(batch.device) <= tables.MAX_DEVICE or not batch.device.isprintable():
        return WireFormatError(f"not a device identifier: {batch.device!r}")
    if not 1 <= len(boot) <= tables.MAX_BOOT or not boot.isprintable():
        return WireFormatError(f"not a boot identifier: {boot!r}")
    if not 0 <= batch.sequence <= MAX_SEQUENCE:
        return WireFormatError(f"not a sequence number: {batch.sequence}")
    return None


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as exc:
        raise TelemetryStoreError(
            f"the telemetry database failed: {_cause(exc)}",
            remedy="check that the database runs and that its migrations are applied",
        ) from exc


def _cause(exc: SQLAlchemyError) -> str:
    cause = getattr(exc, "orig", None) or exc
    return " ".join(str(cause).split())
