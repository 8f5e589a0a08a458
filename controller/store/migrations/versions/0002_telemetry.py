"""The tables of telemetry, as `telemetry.server.tables` declares them.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "telemetry_series",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("metric", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("release", sa.String(128), nullable=False),
        sa.Column("variant", sa.String(128), nullable=False),
        sa.Column("attributes", sa.String(2048), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint(
            "metric", "kind", "release", "variant", "attributes", name="uq_telemetry_series"
        ),
        sa.CheckConstraint(
            "kind IN ('histogram', 'sum', 'gauge')", name="ck_telemetry_series_kind"
        ),
    )
    op.create_table(
        "telemetry_minute",
        sa.Column("series_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("minute", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("value_count", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("least", sa.Double(), nullable=False),
        sa.Column("greatest", sa.Double(), nullable=False),
        sa.Column("sketch", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("series_id", "minute", "device"),
        sa.ForeignKeyConstraint(
            ["series_id"], ["telemetry_series.id"], name="fk_telemetry_minute_series"
        ),
        sa.CheckConstraint("value_count > 0", name="ck_telemetry_minute_count"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "telemetry_device",
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("batches", sa.BigInteger(), nullable=False),
        sa.Column("dropped", sa.BigInteger(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device"),
    )
    op.create_table(
        "telemetry_batch",
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("boot", sa.String(128), nullable=False),
        sa.Column("newest", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.LargeBinary(32), nullable=False),
        sa.Column("minute", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("device", "boot"),
    )
    op.create_table(
        "telemetry_event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_telemetry_event_device", "telemetry_event", ["device", "at_s"])
    op.create_index("ix_telemetry_event_at", "telemetry_event", ["at_s"])


def downgrade() -> None:
    """Remove the tables."""
    for table in (
        "telemetry_event",
        "telemetry_batch",
        "telemetry_device",
        "telemetry_minute",
        "telemetry_series",
    ):
        op.drop_table(table)
