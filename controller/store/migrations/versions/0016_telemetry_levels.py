"""Keep hours and days of telemetry, figures of the whole fleet, and batches that cannot be stored.

The measurements of minutes get partitions on PostgreSQL, and lose their foreign key. Those that
are there are kept; the fleet's figures begin after the newest of them.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

DAY = 1440
COLUMNS = "series_id, minute, device, value_count, total, least, greatest, sketch"


def upgrade() -> None:
    """Make the tables; move the minutes into one without a foreign key."""
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    _measures("telemetry_minute_new", "telemetry_minute", partitioned=True)
    first, last = (op.get_bind().execute(sa.text(
        "SELECT MIN(minute), MAX(minute) FROM telemetry_minute"
    )).one())
    if is_postgresql and first is not None:
        for start in range(first // DAY * DAY, last + 1, DAY):
            op.execute(
                f"CREATE TABLE telemetry_minute_{start} PARTITION OF telemetry_minute_new "
                f"FOR VALUES FROM ({start}) TO ({start + DAY})"
            )
    op.execute(f"INSERT INTO telemetry_minute_new ({COLUMNS}) SELECT {COLUMNS} FROM telemetry_minute")
    op.drop_table("telemetry_minute")
    op.rename_table("telemetry_minute_new", "telemetry_minute")
    if is_postgresql:
        op.execute("ALTER INDEX telemetry_minute_new_pkey RENAME TO telemetry_minute_pkey")
    for name in ("telemetry_hour", "telemetry_day"):
        _measures(name, name, *_span(), partitioned=True)
    _measures("telemetry_fleet_minute", "telemetry_fleet_minute", partitioned=False)
    for name in ("telemetry_fleet_hour", "telemetry_fleet_day"):
        _measures(name, name, *_span(), partitioned=False)
    level = op.create_table(
        "telemetry_level",
        sa.Column("name", sa.String(16), primary_key=True),
        sa.Column("closed_minute", sa.Integer, nullable=False),
        sa.Column("done_minute", sa.Integer, nullable=False),
        sa.CheckConstraint("done_minute <= closed_minute", name="ck_telemetry_level_done"),
    )
    of_fleet = 0 if last is None else last + 1
    op.bulk_insert(
        level,
        [
            {"name": "hour", "closed_minute": 0, "done_minute": 0},
            {"name": "day", "closed_minute": 0, "done_minute": 0},
            {"name": "fleet", "closed_minute": of_fleet, "done_minute": of_fleet},
        ],
    )
    op.create_table(
        "telemetry_late",
        sa.Column("level", sa.String(16), primary_key=True),
        sa.Column("minute", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("device", sa.String(63), primary_key=True),
        sa.Column("mark", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "telemetry_dead_letter",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.Integer, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    op.create_index("ix_telemetry_dead_letter_device", "telemetry_dead_letter", ["device"])


def downgrade() -> None:
    """Remove them; the minutes get their foreign key again."""
    for name in (
        "telemetry_dead_letter",
        "telemetry_late",
        "telemetry_level",
        "telemetry_fleet_day",
        "telemetry_fleet_hour",
        "telemetry_fleet_minute",
        "telemetry_day",
        "telemetry_hour",
    ):
        op.drop_table(name)
    _measures(
        "telemetry_minute_old",
        "telemetry_minute",
        sa.ForeignKeyConstraint(
            ["series_id"], ["telemetry_series.id"], name="fk_telemetry_minute_series"
        ),
        partitioned=False,
    )
    op.execute(f"INSERT INTO telemetry_minute_old ({COLUMNS}) SELECT {COLUMNS} FROM telemetry_minute")
    op.drop_table("telemetry_minute")
    op.rename_table("telemetry_minute_old", "telemetry_minute")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER INDEX telemetry_minute_old_pkey RENAME TO telemetry_minute_pkey")


def _measures(name: str, final_name: str, *further: Any, partitioned: bool) -> None:
    op.create_table(
        name,
        sa.Column("series_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("minute", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("device", sa.String(63), primary_key=True),
        sa.Column("value_count", sa.BigInteger, nullable=False),
        sa.Column("total", sa.Double, nullable=False),
        sa.Column("least", sa.Double, nullable=False),
        sa.Column("greatest", sa.Double, nullable=False),
        sa.Column("sketch", sa.LargeBinary, nullable=True),
        *further,
        sa.CheckConstraint("value_count > 0", name=f"ck_{final_name}_count"),
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (minute)" if partitioned else None,
    )


def _span() -> tuple[sa.Column[Any], sa.Column[Any]]:
    return (
        sa.Column("first_minute", sa.Integer, nullable=False),
        sa.Column("last_minute", sa.Integer, nullable=False),
    )
