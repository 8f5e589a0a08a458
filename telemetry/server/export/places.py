"""How far telemetry was handed on to each other system, in the database.

Rules:
- A place is kept after what it stands for has arrived, so a stop in between lets that be handed on
  once more, and never be left out. What is counted in this database is kept in one transaction with
  its places, so it is counted exactly once.
- One process hands on at a time; whoever calls sees to that. If two do nevertheless, the one whose
  place was moved meanwhile is refused, and keeps nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from telemetry.errors import TelemetryStoreError
from telemetry.server import tables
from telemetry.server.database_faults import own_errors
from telemetry.server.export.settled import Window
from telemetry.server.rows import StoredEvent
from wire.telemetry import Event

ALL: Final = ""
"""In the place of a device."""

AT_ONCE: Final = 500
"""As many devices as one statement names, and as many events as are read at once."""


_log = logging.getLogger(__name__)


class NumberedEvent(NamedTuple):
    """An event and its number in the database."""

    number: int
    found: StoredEvent


class Places:
    """The places of one other system.

    Args:
        engine: The database of the telemetry.
        sink: The name of that system.
    """

    def __init__(self, engine: sa.Engine, sink: str) -> None:
        self._engine = engine
        self._sink = sink

    def start(self, now: int) -> int:
        """Return the minute at which devices begin that have no place; the first call says where.

        Args:
            now: The minute that the clock shows: where, if nothing was ever handed on, or if the
                clock was ahead when that was said.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with self.writing() as connection:
            found = self._read(connection, ALL)
            if found is None:
                self._insert(connection, [ALL], now)
            elif found > now:
                self._move(connection, [ALL], now)
                _log.warning(
                    "the clock was %d minutes ahead when %s were first handed on: they begin now",
                    *(found - now, self._sink),
                )
            return now if found is None else min(found, now)

    def done(self) -> dict[str, int]:
        """Return, of each device that has a place, the first minute that was not handed on.

        Raises:
            TelemetryStoreError: The database failed.
        """
        place = tables.export_place.c
        query = sa.select(place.device, place.place)
        query = query.where(place.sink == self._sink, place.device != ALL)
        with own_errors(), self._engine.connect() as connection:
            return {row.device: row.place for row in connection.execute(query)}

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction.

        Yields:
            Its connection.

        Raises:
            TelemetryStoreError: The database failed; nothing is kept.
        """
        with own_errors(), self._engine.begin() as connection:
            yield connection

    def keep(self, connection: sa.Connection, window: Window, known: Mapping[str, int]) -> None:
        """Keep that a window was handed on.

        Args:
            connection: Of a transaction.
            window: The window.
            known: The devices that have a place, from `done`.

        Raises:
            TelemetryStoreError: Another process has handed it on.
        """
        new = [device for device in window.devices if device not in known]
        old = [device for device in window.devices if device in known]
        self._insert(connection, new, window.until)
        for at in range(0, len(old), AT_ONCE):
            some = old[at : at + AT_ONCE]
            if self._move(connection, some, window.until, window.since) != len(some):
                raise TelemetryStoreError(
                    f"another process has handed on the same measurements ({self._sink})",
                    remedy="let one controller of this database have the setting",
                )

    def keep_event(self, number: int) -> None:
        """Keep that events up to one were handed on.

        Args:
            number: Of the last of them.

        Raises:
            TelemetryStoreError: The database failed.
        """
        with self.writing() as connection:
            self._move(connection, [ALL], number)

    def next_events(self) -> list[NumberedEvent]:
        """Return events that were not handed on, in the order in which they came.

        The first call for a system returns none: what came before is not handed on.

        Raises:
            TelemetryStoreError: The database failed.
        """
        event = tables.event.c
        with self.writing() as connection:
            newest = connection.scalar(sa.select(sa.func.max(event.id))) or 0
            last = self._read(connection, ALL)
            if last is None:
                self._insert(connection, [ALL], newest)
            elif last > newest:  # SQLite numbers anew once all events are deleted
                self._move(connection, [ALL], last := 0)
            if last is None or last == newest:
                return []
            rows = connection.execute(
                sa.select(tables.event).where(event.id > last).order_by(event.id).limit(AT_ONCE)
            )
            return [NumberedEvent(row.id, _stored(row)) for row in rows]

    def _read(self, connection: sa.Connection, device: str) -> int | None:
        place = tables.export_place.c
        query = sa.select(place.place).where(place.sink == self._sink, place.device == device)
        return connection.scalar(query)

    def _insert(self, connection: sa.Connection, devices: Sequence[str], place: int) -> None:
        rows = [{"sink": self._sink, "device": device, "place": place} for device in devices]
        if rows:
            connection.execute(sa.insert(tables.export_place), rows)

    def _move(
        self,
        connection: sa.Connection,
        devices: Sequence[str],
        place: int,
        before: int | None = None,
    ) -> int:
        """Move places, those that are where they were; return how many."""
        kept = tables.export_place.c
        of_them = (kept.sink == self._sink) & kept.device.in_(devices)
        if before is not None:
            of_them &= kept.place == before
        statement = sa.update(tables.export_place).where(of_them).values(place=place)
        return connection.execute(statement).rowcount


def _stored(row: sa.Row[Any]) -> StoredEvent:
    event = Event(at_s=row.at_s, kind=row.kind, reason=row.reason, data=json.loads(row.data))
    return StoredEvent(row.device, event)
