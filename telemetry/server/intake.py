"""Takes batches of telemetry in: looks at each, counts what is sound, says what became of it.

Rules:
- If the database fails, no batch of the call is counted.
- A batch with a value that the database cannot store does not keep the others back.
- What a device may make the database grow by is bounded (`telemetry.server.budget`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError

from telemetry.errors import TelemetryStoreError
from telemetry.server import tables
from telemetry.server.bounds import Bounds
from telemetry.server.budget import BURST_BYTES, MIB, REFILL_BYTES_PER_HOUR, Budgets
from telemetry.server.clocks import Judged, judged
from telemetry.server.counting import Arrived, Counting, SeriesGoneError
from telemetry.server.database_faults import cause_of, own_errors
from telemetry.server.ingest import Span, checked, span_at
from telemetry.server.levels import MINUTES
from telemetry.server.partitions import Partitions
from telemetry.server.pruning import pruned_minute
from telemetry.server.series import Found, SeriesIds
from telemetry.server.statements import IngestStatements
from wire.clock import Clock
from wire.errors import WireFormatError
from wire.telemetry import TelemetryBatch

MAX_SEQUENCE = 2**62
ATTEMPTS = 3
"""How often a call begins anew because a prune took one of its series."""

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


class Intake:
    """Counts batches, each once.

    Args:
        engine: SQLite or PostgreSQL.
        reading: The same for transactions that only read.
        series: The identifiers of series.
        statements: For the engine's dialect.
        partitions: Where minutes are written.
        bounds: What is taken of devices.
        minutes_s: How long minutes are kept: what is older is refused.
        clock: Wall time, and the refill of the devices' budgets.
    """

    def __init__(
        self,
        engine: sa.Engine,
        reading: sa.Engine,
        series: SeriesIds,
        *,
        statements: IngestStatements,
        partitions: Partitions,
        bounds: Bounds,
        minutes_s: float,
        clock: Clock,
    ) -> None:
        self._reading = reading
        self._series = series
        self._partitions = partitions
        self._bounds = bounds
        self._minutes_s = minutes_s
        self._clock = clock
        self._counting = Counting(engine, statements, series, bounds, clock)
        self._budgets = Budgets(clock)

    def first_look(self, batch: TelemetryBatch, came_s: float) -> Outcome:
        """Tell whether a batch can be counted, without the database.

        Args:
            batch: From the device that it names.
            came_s: Wall time when it came.
        """
        return _first_look(batch, judged(batch.clock, came_s, self._bounds.clock_tolerance_s))

    def take(
        self, batches: Sequence[TelemetryBatch], came_s: Sequence[float] | None = None
    ) -> list[Outcome]:
        """Count batches.

        Args:
            batches: In the order in which they came; their devices are known to the caller.
            came_s: Wall time when each came; None for now.

        Returns:
            What became of each.

        Raises:
            TelemetryStoreError: The database failed; nothing was counted.
        """
        now_s = self._clock.now_s()
        with own_errors(), self._reading.connect() as connection:
            pruned = pruned_minute(connection, MINUTES)
        span = span_at(now_s, self._minutes_s, pruned)
        outcomes: list[Outcome] = []
        sound: list[int] = []
        arrived: list[Arrived] = []
        for at, batch in enumerate(batches):
            at_s = now_s if came_s is None else came_s[at]
            by_clock = judged(batch.clock, at_s, self._bounds.clock_tolerance_s)
            outcomes.append(_first_look(batch, by_clock))
            if outcomes[at] is COUNTABLE:
                sound.append(at)
                arrived.append(self._arrived(batch, span, by_clock))
        with own_errors():
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

    def forget_full(self) -> None:
        """Forget the budgets of devices that have all of theirs."""
        self._budgets.forget_full()

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
                fault=WireFormatError(f"the database cannot store it: {cause_of(exc)}"),
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
