"""Keep the newest minute that is stored of each device.

Revision ID: 0021
Revises: 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; boots that are forgotten reach no further than what is deleted."""
    op.add_column(
        "telemetry_device",
        sa.Column("newest_minute", sa.Integer(), nullable=False, server_default="0"),
    )
    op.execute(
        "UPDATE telemetry_device SET newest_minute = (SELECT COALESCE(MAX(minute), 0) "
        "FROM telemetry_batch WHERE telemetry_batch.device = telemetry_device.device)"
    )
    with op.batch_alter_table("telemetry_device") as table:
        table.alter_column("newest_minute", server_default=None)


def downgrade() -> None:
    """Remove it."""
    with op.batch_alter_table("telemetry_device") as table:
        table.drop_column("newest_minute")
