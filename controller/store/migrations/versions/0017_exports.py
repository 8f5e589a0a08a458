"""Keep how far telemetry was handed on to other systems, and what was counted for them.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "telemetry_export_place",
        sa.Column("sink", sa.String(32), primary_key=True),
        sa.Column("device", sa.String(63), primary_key=True),
        sa.Column("place", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "telemetry_export_counter",
        sa.Column("sink", sa.String(32), primary_key=True),
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("value_count", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("sketch", sa.LargeBinary(), nullable=True),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("minute", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("telemetry_export_counter")
    op.drop_table("telemetry_export_place")
