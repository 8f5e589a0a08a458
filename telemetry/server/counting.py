"""Counts batches in the database, each once, several in one transaction.

Rules:
- The transaction first locks the rows of the devices and then reads their windows of sequence
  numbers: so a batch is counted once, even if it comes again or through another controller.
- Measures are merged into the row that exists, never added as a second row; those of all devices
  also into the row of the fleet. Of a minute that is newer than all measures of its device there is
  no row, so nobody looks for one.
- What comes for an hour that is made already is noted, so that the hour is made anew.
- A batch that is refused whole is not noted as counted: if it comes again, it may be stored.
- What changes for a device, such as its clock, is told by an event in the same transaction: once.
"""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from telemetry.server import bulk, tables
from telemetry.server.bounds import Bounds
from telemetry.server.budget import BOOT_BYTES, event_bytes, minute_bytes
from telemetry.server.clocks import KIND as CLOCK_KIND
from telemetry.server.clocks import marked
from telemetry.server.folding import KIND as SERIES_KIND
from telemetry.server.folding import TOLD_EVERY_S, news
from telemetry.server.ingest import (
    MAX_MINUTE,
    NEWS_KIND,
    WINDOW,
    Checked,
    Fold,
    SeriesKey,
    Window,
    event_row,
)
from telemetry.server.levels import HOURS
from telemetry.server.measures import folded
from telemetry.server.rows import Measure
from telemetry.server.series import SeriesIds
from telemetry.server.statements import IngestStatements
from wire.clock import Clock
from wire.reporting import MAX_REQUEST_ID
from wire.telemetry import Event, TelemetryBatch

NO_DEVICE = ""
MAX_DROPPED = 2**31
MARK_BITS = 62

Parts = dict[tuple[int, int, str], list[Measure]]
"""What is to be merged into one row: by series, minute and device."""


class SeriesGoneError(Exception):
    """A series of a batch was deleted after its identifier was found."""


class Arrived(NamedTuple):
    """A batch and what of it is stored."""

    batch: TelemetryBatch
    checked: Checked
    is_refused: bool = False
    """Nothing of it is stored, because its device has no budget left."""

    ahead_s: float | None = None
    """How far the clock of its device is ahead; None if it does not tell."""


class Counted(NamedTuple):
    """What became of batches."""

    is_new: list[bool]
    """Of each whether it was counted now, or refused now; else it was counted before."""

    grown_bytes: Counter[str]
    """What is taken out of the budget of each device."""


class Counting:
    """Writes batches.

    Args:
        engine: SQLite or PostgreSQL.
        statements: For its dialect.
        series: Tells whether identifiers are still those of their series.
        bounds: By how much clocks may be wrong.
        clock: Wall time, of events about devices.
    """

    def __init__(
        self,
        engine: sa.Engine,
        statements: IngestStatements,
        series: SeriesIds,
        bounds: Bounds,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._sql = statements
        self._series = series
        self._bounds = bounds
        self._clock = clock
        self._present: set[str] = set()
        """Devices that had a row when one was last looked for."""

    def count(
        self, arrived: Sequence[Arrived], ids: Mapping[SeriesKey, int], *, look: bool = False
    ) -> Counted:
        """Count batches: all of them or, if the database fails, none.

        Args:
            arrived: In the order in which they came; of one device or of several.
            ids: The identifier of each of their series.
            look: Look for the rows of new minutes as well.

        Raises:
            SeriesGoneError: A series was deleted meanwhile; nothing was counted.
        """
        grown: Counter[str] = Counter()
        with self._engine.begin() as connection:
            names = [each.batch.device for each in arrived]
            rows = _locked_rows(connection, sorted(set(names)), self._present)
            devices = _Devices(rows, self._bounds, self._clock.now_s(), look=look)
            is_new = self._claim(connection, arrived, grown)
            new = [each for each, claimed in zip(arrived, is_new, strict=True) if claimed]
            for each in new:
                devices.count(each)
            stored = [each for each in new if not each.is_refused]
            if not self._series.are_current(connection, ids):
                raise SeriesGoneError
            self._merge(connection, stored, ids, devices, grown)
            events = [row for each in stored for row in each.checked.events] + devices.news
            events += self._told_of_folds(connection, stored)
            events += self._told_of_refusals(connection, stored)
            if events:
                connection.execute(self._sql.insert_events, events)
            for row in events:
                grown[row["device"]] += event_bytes(row)
            devices.write(connection)
        return Counted(is_new, grown)

    def _claim(
        self, connection: sa.Connection, arrived: Sequence[Arrived], grown: Counter[str]
    ) -> list[bool]:
        """Note batches as counted, those that are not refused; return which are new."""
        boots = sorted({(each.batch.device, each.batch.boot_id) for each in arrived})
        known = {
            (device, boot): (Window(newest, int.from_bytes(seen, "big")), minute)
            for device, boot, newest, seen, minute in bulk.matching(connection, tables.batch, boots)
        }
        is_new: list[bool] = []
        written: dict[tuple[str, str], tuple[Window, int]] = {}
        for batch, checked, is_refused, _ in arrived:
            at = (batch.device, batch.boot_id)
            window, minute = written.get(at) or known.get(at) or (Window(-1, 0), 0)
            is_new.append(not window.holds(batch.sequence))
            if is_new[-1] and not is_refused:
                newest = max(minute, checked.latest_minute)
                written[at] = (window.with_counted(batch.sequence), newest)
        for device, _ in written.keys() - known.keys():
            grown[device] += BOOT_BYTES
        rows = [
            (*at, window.newest, window.seen.to_bytes(WINDOW // 8, "big"), minute)
            for at, (window, minute) in sorted(written.items())
        ]
        bulk.upsert(connection, tables.batch, rows)
        return is_new

    def _merge(
        self,
        connection: sa.Connection,
        stored: Sequence[Arrived],
        ids: Mapping[SeriesKey, int],
        devices: _Devices,
        grown: Counter[str],
    ) -> None:
        """Add measures to what is stored for the same series and minutes."""
        new: Parts = {}
        known: Parts = {}
        of_fleet: defaultdict[tuple[int, int], list[Measure]] = defaultdict(list)
        for batch, checked, *_ in stored:
            device = batch.device
            newest = devices.newest_minute(device)
            for key, minute, measure in checked.measures:
                series = ids[key]
                parts = new if minute > newest else known
                parts.setdefault((series, minute, device), []).append(measure)
                of_fleet[series, minute].append(measure)
        if not of_fleet:
            return
        self._write_new(connection, new, grown)
        before, after = _add(connection, tables.minute, known)
        for at, measure in after.items():
            grown[at[2]] += minute_bytes(before.get(at), len(measure.sketch or b""))
        self._note_late(connection, {at[1:] for at in chain(new, known)})
        # Last, because all ingests wait here for one another.
        connection.execute(self._sql.lock_fleet).first()
        fleet = {(*at, NO_DEVICE): measures for at, measures in of_fleet.items()}
        _add(connection, tables.fleet_minute, fleet)

    def _told_of_folds(
        self, connection: sa.Connection, stored: Sequence[Arrived]
    ) -> list[dict[str, Any]]:
        """Return events about series that count for others: one for each device and hour."""
        found: dict[str, Fold] = {}
        for batch, checked, *_ in stored:
            for one in checked.folds:
                if one.device in {"", batch.device}:
                    found.setdefault(batch.device, one)
        told = {device: news(one, self._bounds) for device, one in found.items()}
        return self._new_this_hour(connection, SERIES_KIND, told)

    def _told_of_refusals(
        self, connection: sa.Connection, stored: Sequence[Arrived]
    ) -> list[dict[str, Any]]:
        """Return events about points that are refused: one for each device and hour."""
        told: dict[str, tuple[str, dict[str, Any]]] = {}
        for batch, checked, *_ in stored:
            if checked.refusal is not None:
                metric, why = checked.refusal
                told.setdefault(batch.device, (f"points are refused: {why}", {"metric": metric}))
        return self._new_this_hour(connection, NEWS_KIND, told)

    def _new_this_hour(
        self,
        connection: sa.Connection,
        kind: str,
        told: Mapping[str, tuple[str, dict[str, Any]]],
    ) -> list[dict[str, Any]]:
        """Return events for those devices that have none of that kind within the last hour.

        Args:
            connection: Of the transaction that writes them.
            kind: Their kind.
            told: Reason and data for each device.
        """
        now_s = self._clock.now_s()
        rows: list[dict[str, Any]] = []
        for device, (reason, data) in told.items():
            of_hour = {"of_device": device, "of_kind": kind, "since_s": now_s - TOLD_EVERY_S}
            if connection.scalar(self._sql.find_event, of_hour) is None:
                event = Event(at_s=now_s, kind=kind, reason=reason, data=data)
                rows.append(event_row(device, event, now_s))
        return rows

    def _write_new(self, connection: sa.Connection, parts: Parts, grown: Counter[str]) -> None:
        """Write rows that do not exist."""
        rows = sorted((*at, *measure) for at, measure in folded(parts).items())
        bulk.append(connection, tables.minute, rows)
        for _, _, device, *_, sketch in rows:
            grown[device] += minute_bytes(None, len(sketch or b""))

    def _note_late(self, connection: sa.Connection, parts: Iterable[tuple[int, str]]) -> None:
        closed = connection.execute(self._sql.closed_hours).scalar() or 0
        hours = {
            (minute // HOURS.minutes * HOURS.minutes, device)
            for minute, device in parts
            if minute < closed
        }
        hours |= {(hour, NO_DEVICE) for hour, _ in hours}
        mark = secrets.randbits(MARK_BITS)
        rows = [(HOURS.name, hour, device, mark) for hour, device in sorted(hours)]
        bulk.upsert(connection, tables.late, rows)


class _DeviceRow(NamedTuple):
    """The columns of a device's row, in their order."""

    batches: int = 0
    dropped: int = 0
    refused: int = 0
    newest_minute: int = 0
    clock_ahead_s: float | None = None
    answered: str | None = None


def _locked_rows(
    connection: sa.Connection, names: Sequence[str], present: set[str]
) -> dict[str, _DeviceRow]:
    """Return the rows of devices, which no other transaction changes until this one ends.

    Args:
        connection: In a transaction.
        names: The devices, in an order that all transactions keep.
        present: Those that are known to have a row; the others get one, and join them.
    """
    found: list[tuple[Any, ...]] = []
    missing = [name for name in names if name not in present]
    # At least one is written before any is read: it is the first write that locks in SQLite.
    # All are, a second time, if a row was deleted, or its transaction failed, since it was seen.
    for written in (missing or names[:1], names):
        bulk.insert_missing(connection, tables.device, [(name, *_DeviceRow()) for name in written])
        keys = [(name,) for name in names]
        found = list(bulk.matching(connection, tables.device, keys, lock=True))
        if len(found) == len(names):
            break
    present.update(names)
    return {device: _DeviceRow(*values) for device, *values in found}


class _Devices:
    """The rows of devices, locked, and what is added to them."""

    def __init__(
        self,
        rows: dict[str, _DeviceRow],
        bounds: Bounds,
        now_s: float,
        *,
        look: bool,
    ) -> None:
        self._bounds = bounds
        self._now_s = now_s
        self._rows = rows
        self._newest = {
            device: MAX_MINUTE if look else row.newest_minute for device, row in self._rows.items()
        }
        self.news: list[dict[str, Any]] = []
        """Rows of events about what changed."""

    def newest_minute(self, device: str) -> int:
        """Return the minute up to which rows of measures of a device may exist."""
        return self._newest[device]

    def count(self, arrived: Arrived) -> None:
        """Count a batch, and what is stored and lost of it; note what it says of its device."""
        batch, checked, is_refused, ahead_s = arrived
        row = self._rows[batch.device]
        mark = marked(row.clock_ahead_s, ahead_s, self._bounds.clock_tolerance_s)
        if mark.news:
            data = {"ahead_s": round(ahead_s or 0.0, 1)}
            event = Event(at_s=self._now_s, kind=CLOCK_KIND, reason=mark.news, data=data)
            self.news.append(event_row(batch.device, event, self._now_s))
        answers = None if isinstance(batch.answers, msgspec.UnsetType) else batch.answers
        lost = len(batch.points) + len(batch.events) if is_refused else checked.refused
        newest = 0 if is_refused else checked.latest_measured
        self._rows[batch.device] = _DeviceRow(
            batches=row.batches + 1,
            dropped=row.dropped + min(max(batch.dropped, 0), MAX_DROPPED),
            refused=row.refused + lost,
            newest_minute=max(row.newest_minute, newest),
            clock_ahead_s=mark.ahead_s,
            answered=row.answered if answers is None or is_refused else answers[:MAX_REQUEST_ID],
        )

    def write(self, connection: sa.Connection) -> None:
        rows = [(device, *row) for device, row in sorted(self._rows.items())]
        bulk.upsert(connection, tables.device, rows)


def _add(
    connection: sa.Connection, table: sa.Table, parts: Parts
) -> tuple[dict[tuple[int, int, str], int], dict[tuple[int, int, str], Measure]]:
    """Merge measures into rows; return the sizes of the sketches before, and the rows after."""
    before: dict[tuple[int, int, str], int] = {}
    for series, minute, device, *measured in bulk.matching(connection, table, list(parts)):
        stored = Measure._make(measured)
        before[series, minute, device] = len(stored.sketch or b"")
        parts[series, minute, device].append(stored)
    after = folded(parts)
    bulk.upsert(connection, table, [(*at, *measure) for at, measure in sorted(after.items())])
    return before, after
