"""What is stored of devices and metrics as a whole: who reported, how completely, which series."""

from __future__ import annotations

from collections import Counter

import sqlalchemy as sa

from telemetry.metrics import Kind
from telemetry.server import tables
from telemetry.server.kinds import kind_of, of_its_kind
from telemetry.server.rows import DeviceLosses, Reported, Series, attributes_of

SECONDS_PER_MINUTE = 60


def devices(connection: sa.Connection) -> list[DeviceLosses]:
    """Return every device that ever reported, by name."""
    table = tables.device.c
    newest = (table.newest_minute + 1) * SECONDS_PER_MINUTE
    newest_s = sa.case((table.newest_minute > 0, newest))
    query = sa.select(
        *(table.device, table.batches, table.dropped, table.refused),
        *(newest_s, table.clock_ahead_s),
    )
    return [DeviceLosses(*row) for row in connection.execute(query.order_by(table.device))]


def wrong_clocks(connection: sa.Connection) -> dict[str, float]:
    """Return how far the clocks of devices are ahead, in seconds, of those that are wrong."""
    table = tables.device.c
    query = sa.select(table.device, table.clock_ahead_s).where(table.clock_ahead_s.is_not(None))
    return {row.device: row.clock_ahead_s for row in connection.execute(query)}


def answered(connection: sa.Connection, device: str) -> str | None:
    """Return a device's last request to report whose answer is stored; None for none."""
    table = tables.device.c
    query = sa.select(table.answered).where(table.device == device)
    return connection.scalar(query)


def metrics(connection: sa.Connection) -> list[Reported]:
    """Return what there is, by name: series of the kind that each metric has."""
    table = tables.series.c
    columns = (table.metric, table.kind, table.release, table.variant, table.attributes)
    kinds: dict[str, Kind] = {}
    found: dict[str, set[str]] = {}
    numbers: Counter[str] = Counter()
    for metric, kind, *named in connection.execute(sa.select(*columns).order_by(table.id)):
        kinds.setdefault(metric, kind_of(metric, kind))
        if kind == kinds[metric]:
            found.setdefault(metric, set()).update(attributes_of(*named))
            numbers[metric] += 1
    return [
        Reported(metric, kinds[metric], attributes=tuple(sorted(names)), series=numbers[metric])
        for metric, names in sorted(found.items())
    ]


def series(connection: sa.Connection, metric: str) -> list[Series]:
    """Return the series of a metric, of the kind that it has, oldest first."""
    table = tables.series.c
    query = (
        sa.select(table.id, table.kind, table.release, table.variant, table.attributes)
        .where(table.metric == metric)
        .order_by(table.id)
    )
    rows = connection.execute(query).all()
    found = [
        Series(row.id, row.kind, attributes_of(row.release, row.variant, row.attributes))
        for row in rows
    ]
    return of_its_kind(metric, found)
