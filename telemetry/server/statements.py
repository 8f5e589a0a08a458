"""The statements of an ingest, built once, because building one takes longer than running it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from telemetry.server import tables
from telemetry.server.levels import HOURS


class IngestStatements:
    """SQL with named parameters.

    Args:
        dialect: `sqlite` or `postgresql`, which share the upsert but not the class that makes it.
    """

    def __init__(self, dialect: str) -> None:
        insert = sqlite.insert if dialect == "sqlite" else postgresql.insert

        level = tables.level
        self.closed_hours = (
            sa.select(level.c.closed_minute)
            .where(level.c.name == HOURS.name)
            .with_for_update(read=True)
        )
        """Up to which minute hours are made, or are being made; that stays so until the transaction
        ends."""

        self.lock_fleet = (
            sa.select(level.c.name).where(level.c.name == tables.FLEET).with_for_update()
        )
        """Other ingests that come to this wait until the transaction ends."""

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
        self.read_series = (
            sa.select(series.id, *(series[name] for name in names))
            .where(series.id.in_(sa.bindparam("of_ids", expanding=True)))
            .with_for_update(read=True, key_share=True)
        )
        """Locked, so that they are not deleted before the transaction ends."""

        self.find_series = sa.select(series.id).where(
            *(series[name] == sa.bindparam(name) for name in names)
        )
        self.names_of_metric = (
            sa.select(series.brought_by, *(series[name] for name in names))
            .where(series.metric == sa.bindparam("of_metric"))
            .order_by(series.id)
        )
        self.make_series = insert(tables.series).on_conflict_do_nothing()

        self.insert_events = sa.insert(tables.event)
        event = tables.event.c
        self.find_event = (
            sa.select(event.id)
            .where(
                event.device == sa.bindparam("of_device"),
                event.at_s > sa.bindparam("since_s"),
                event.kind == sa.bindparam("of_kind"),
            )
            .limit(1)
        )
