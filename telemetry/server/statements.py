"""The statements of an ingest, built once, because building one takes longer than running it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from telemetry.server import tables
from telemetry.server.rows import MinuteRow


class IngestStatements:
    """SQL with named parameters.

    Args:
        dialect: `sqlite` or `postgresql`, which share the upsert but not the class that makes it.
    """

    def __init__(self, dialect: str) -> None:
        insert = sqlite.insert if dialect == "sqlite" else postgresql.insert

        device = insert(tables.device).values(batches=0, dropped=0, refused=0)
        self.lock_device = device.values(device=sa.bindparam("device")).on_conflict_do_update(
            index_elements=["device"], set_={"device": device.excluded.device}
        )
        """Makes a missing row; other ingests of that device wait until the transaction ends."""

        batch = tables.batch.c
        self.read_window = sa.select(batch.newest, batch.seen, batch.minute).where(
            batch.device == sa.bindparam("of_device"), batch.boot == sa.bindparam("of_boot")
        )
        window = insert(tables.batch)
        self.write_window = window.on_conflict_do_update(
            index_elements=["device", "boot"],
            set_={name: window.excluded[name] for name in ("newest", "seen", "minute")},
        )

        minute = tables.minute.c
        self.read_minutes = sa.select(tables.minute).where(
            minute.series_id.in_(sa.bindparam("of_series", expanding=True)),
            minute.minute.in_(sa.bindparam("of_minutes", expanding=True)),
            minute.device == sa.bindparam("of_device"),
        )
        measure = insert(tables.minute)
        values = [name for name in MinuteRow._fields if not tables.minute.c[name].primary_key]
        self.write_minutes = measure.on_conflict_do_update(
            index_elements=["series_id", "minute", "device"],
            set_={name: measure.excluded[name] for name in values},
        )

        series = tables.series.c
        names = ("metric", "kind", "release", "variant", "attributes")
        self.count_series = sa.select(sa.func.count(series.id))
        self.count_brought = self.count_series.where(series.brought_by == sa.bindparam("of_device"))
        number = sa.func.count(series.id)
        self.most_brought = (
            sa.select(series.brought_by, number)
            .where(series.brought_by.is_not(None))
            .group_by(series.brought_by)
            .order_by(number.desc(), series.brought_by)
            .limit(sa.bindparam("limit", type_=sa.Integer))
        )
        self.read_series = sa.select(series.id, *(series[name] for name in names)).where(
            series.id.in_(sa.bindparam("of_ids", expanding=True))
        )
        self.find_series = sa.select(series.id).where(
            *(series[name] == sa.bindparam(name) for name in names)
        )
        self.make_series = insert(tables.series).on_conflict_do_nothing()

        self.insert_events = sa.insert(tables.event)
        losses = tables.device.c
        self.count_losses = (
            sa.update(tables.device)
            .where(losses.device == sa.bindparam("of_device"))
            .values(
                batches=losses.batches + 1,
                dropped=losses.dropped + sa.bindparam("more_dropped", type_=sa.BigInteger),
                refused=losses.refused + sa.bindparam("more_refused", type_=sa.BigInteger),
            )
        )
