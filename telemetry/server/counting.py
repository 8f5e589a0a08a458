"""Counts a batch in the database, once, in one transaction.

Rules:
- The transaction first locks the device's row and then reads its window of sequence numbers: so a
  batch is counted once, even if it comes again or through another controller.
- A histogram is merged into the row that exists, never added as a second row.
- A batch that is refused whole is not noted as counted: if it comes again, it may be stored.
"""

from __future__ import annotations

import sqlalchemy as sa

from telemetry.server.budget import BOOT_BYTES, event_bytes, minute_bytes
from telemetry.server.ingest import WINDOW, Checked, SeriesKey, Window, latest_minute
from telemetry.server.rows import MinuteRow, measure_of, row_of
from telemetry.server.series import SeriesIds
from telemetry.server.statements import IngestStatements
from wire.messages import TelemetryBatch

MAX_DROPPED = 2**31
_UNSEEN = Window(-1, 0)


class SeriesGoneError(Exception):
    """A series of a batch was deleted after its identifier was found."""


class Counting:
    """Writes batches.

    Args:
        engine: SQLite or PostgreSQL.
        statements: For its dialect.
        series: Tells whether identifiers are still those of their series.
    """

    def __init__(self, engine: sa.Engine, statements: IngestStatements, series: SeriesIds) -> None:
        self._engine = engine
        self._sql = statements
        self._series = series

    def count(
        self, batch: TelemetryBatch, checked: Checked, ids: dict[SeriesKey, int]
    ) -> int | None:
        """Count a batch.

        Args:
            batch: From a device.
            checked: What of it is stored.
            ids: The identifier of each of its series.

        Returns:
            How many bytes it takes out of the device's budget; None if it was counted before.

        Raises:
            SeriesGoneError: A series was deleted meanwhile; nothing was counted.
        """
        with self._engine.begin() as connection:
            connection.execute(self._sql.lock_device, {"device": batch.device})
            claimed_bytes = self._claim(connection, batch, latest_minute(checked))
            if claimed_bytes is None:
                return None
            if not self._series.are_current(connection, ids):
                raise SeriesGoneError
            grown_bytes = self._merge(connection, batch.device, checked, ids)
            if checked.events:
                connection.execute(self._sql.insert_events, checked.events)
            self._count_losses(connection, batch, checked.refused)
        return claimed_bytes + grown_bytes + sum(map(event_bytes, checked.events))

    def refuse(self, batch: TelemetryBatch) -> bool:
        """Count all of a batch as refused; return False if it was counted before."""
        with self._engine.begin() as connection:
            connection.execute(self._sql.lock_device, {"device": batch.device})
            window, _ = self._window(connection, batch)
            if window.holds(batch.sequence):
                return False
            self._count_losses(connection, batch, len(batch.points) + len(batch.events))
        return True

    def _window(
        self, connection: sa.Connection, batch: TelemetryBatch
    ) -> tuple[Window, int | None]:
        """Return what is counted of the boot of a batch, and its minute if its row exists."""
        boot = {"of_device": batch.device, "of_boot": batch.boot_id}
        row = connection.execute(self._sql.read_window, boot).first()
        if row is None:
            return _UNSEEN, None
        return Window(row.newest, int.from_bytes(row.seen, "big")), row.minute

    def _claim(self, connection: sa.Connection, batch: TelemetryBatch, minute: int) -> int | None:
        """Record that a batch is counted; return the growth, or None if it was counted before."""
        window, known_minute = self._window(connection, batch)
        if window.holds(batch.sequence):
            return None
        after = window.with_counted(batch.sequence)
        written = {
            "device": batch.device,
            "boot": batch.boot_id,
            "newest": after.newest,
            "seen": after.seen.to_bytes(WINDOW // 8, "big"),
            "minute": minute if known_minute is None else max(minute, known_minute),
        }
        connection.execute(self._sql.write_window, written)
        return BOOT_BYTES if known_minute is None else 0

    def _merge(
        self,
        connection: sa.Connection,
        device: str,
        checked: Checked,
        ids: dict[SeriesKey, int],
    ) -> int:
        """Add measures to what is stored for the same series and minutes; return the growth."""
        if not checked.measures:
            return 0
        new = {(ids[key], minute): measure for (key, minute), measure in checked.measures.items()}
        wanted = {
            "of_device": device,
            "of_series": sorted({series for series, _ in new}),
            "of_minutes": sorted({minute for _, minute in new}),
        }
        before: dict[tuple[int, int], int] = {}
        for row in map(MinuteRow._make, connection.execute(self._sql.read_minutes, wanted)):
            at = (row.series_id, row.minute)
            if at in new:
                before[at] = len(row.sketch or b"")
                new[at].merge(measure_of(row))
        rows = {at: row_of(*at, device, measure) for at, measure in new.items()}
        connection.execute(self._sql.write_minutes, list(rows.values()))
        return sum(
            minute_bytes(before.get(at), len(row["sketch"] or b"")) for at, row in rows.items()
        )

    def _count_losses(self, connection: sa.Connection, batch: TelemetryBatch, refused: int) -> None:
        losses = {
            "of_device": batch.device,
            "more_dropped": min(max(batch.dropped, 0), MAX_DROPPED),
            "more_refused": refused,
        }
        connection.execute(self._sql.count_losses, losses)
