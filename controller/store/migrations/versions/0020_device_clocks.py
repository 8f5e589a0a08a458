"""Keep how wrong the clock of a device is, and which request to report it has answered.

Revision ID: 0020
Revises: 0019
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; of devices that reported before nothing is known."""
    op.add_column("telemetry_device", sa.Column("clock_ahead_s", sa.Double(), nullable=True))
    op.add_column("telemetry_device", sa.Column("answered", sa.String(32), nullable=True))


def downgrade() -> None:
    """Remove them."""
    op.drop_column("telemetry_device", "answered")
    op.drop_column("telemetry_device", "clock_ahead_s")
