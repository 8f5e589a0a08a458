"""Which events are asked for, and how the store finds them.

Rules:
- Databases differ in how they look into JSON, so what stands in the data of an event is compared
  here, a part of the rows at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from telemetry.about import is_about
from telemetry.server import tables
from telemetry.server.question import MAX_NAMED
from telemetry.server.rows import StoredEvent
from wire.codec import to_json
from wire.telemetry import Event

MAX_EVENTS: Final = 10_000
EVENTS_AT_ONCE: Final = 500


class EventPlace(NamedTuple):
    """Where an event is among the others: many may have happened at one instant."""

    at_s: float
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    """Which events are asked for."""

    devices: frozenset[str] | None = None
    """Only of these; None for all."""

    kinds: tuple[str, ...] = ()
    """Only these; empty for all."""

    since_s: float = 0.0
    """Only from this wall time on."""

    until_s: float = math.inf
    """Only before this wall time."""

    model: str | None = None
    """Only those that are about this model, or about a device as a whole; None for all."""

    where: tuple[tuple[str, str], ...] = ()
    """Only those whose data have these values: names, with dots for what lies inside, and texts."""

    limit: int = 200
    """Only the newest ones, at most this many."""

    @property
    def _is_named(self) -> bool:
        return self.devices is not None and len(self.devices) <= MAX_NAMED

    @property
    def is_exact(self) -> bool:
        """Whether the database finds all of it, so that it can count, too."""
        return self.model is None and not self.where and (self.devices is None or self._is_named)

    def takes(self, found: StoredEvent) -> bool:
        """Tell whether an event is asked for, as far as the database cannot."""
        data = found.event.data
        return (
            (self.devices is None or found.device in self.devices)
            and is_about(data, self.model)
            and all(text_at(data, name) == text for name, text in self.where)
        )

    def statement(self) -> sa.Select[Any]:
        """Return what the database is asked, the newest event first."""
        table = tables.event.c
        query = (
            sa.select(table.device, table.at_s, table.kind, table.reason, table.data)
            .where(table.at_s >= self.since_s)
            .order_by(table.at_s.desc(), table.id.desc())
        )
        if self.until_s != math.inf:
            query = query.where(table.at_s < self.until_s)
        if self.devices is not None and self._is_named:
            query = query.where(table.device.in_(sorted(self.devices)))
        if self.kinds:
            query = query.where(table.kind.in_(self.kinds))
        return query.limit(self.most) if self.is_exact else query

    @property
    def most(self) -> int:
        """How many are returned at most."""
        return min(max(self.limit, 0), MAX_EVENTS)


def read(connection: sa.Connection, query: EventQuery) -> list[StoredEvent]:
    """Return the events that are asked for, oldest first."""
    in_parts = query.statement().execution_options(yield_per=EVENTS_AT_ONCE)
    with connection.execute(in_parts) as rows:
        taken = (found for found in _stored(rows) if query.takes(found))
        return list(islice(taken, query.most))[::-1]


def page(
    connection: sa.Connection,
    since_s: float,
    until_s: float,
    after: EventPlace | None = None,
    *,
    limit: int,
) -> tuple[list[StoredEvent], EventPlace | None]:
    """Return the next events of all devices, the oldest first, and where the last of them is.

    Args:
        connection: In a transaction that reads.
        since_s: From this wall time on.
        until_s: Before this one.
        after: Where the last event was that was read; None to begin.
        limit: At most so many.

    Returns:
        The events; without a place if there are no more.
    """
    table = tables.event.c
    query = (
        sa.select(table.id, table.device, table.at_s, table.kind, table.reason, table.data)
        .where(table.at_s >= (since_s if after is None else after.at_s), table.at_s < until_s)
        .order_by(table.at_s, table.id)
        .limit(limit)
    )
    if after is not None:
        place = sa.tuple_(sa.literal(after.at_s, sa.Double), sa.literal(after.number))
        query = query.where(sa.tuple_(table.at_s, table.id) > place)
    with connection.execute(query) as result:
        rows = result.all()
    last = EventPlace(rows[-1].at_s, rows[-1].id) if len(rows) == limit else None
    return list(_stored(rows)), last


def _stored(rows: Iterable[Any]) -> Iterator[StoredEvent]:
    for row in rows:
        event = Event(at_s=row.at_s, kind=row.kind, reason=row.reason, data=json.loads(row.data))
        yield StoredEvent(row.device, event)


def text_at(data: Mapping[str, Any], name: str) -> str | None:
    """Return what stands in data, as a text: a number or a truth value as JSON has it.

    Args:
        data: Of an event.
        name: Such as `variant` or `inputs.headroom`.

    Returns:
        The text; None where there is nothing.
    """
    value: Any = data
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value if isinstance(value, str) else to_json(value).decode()
