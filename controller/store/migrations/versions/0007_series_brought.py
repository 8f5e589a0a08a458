"""Note which device brought a series, because each may bring a bounded number.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

INDEX = "ix_telemetry_series_brought_by"


def upgrade() -> None:
    """Add the column; of the series that there are, nobody knows."""
    op.add_column("telemetry_series", sa.Column("brought_by", sa.String(63), nullable=True))
    op.create_index(INDEX, "telemetry_series", ["brought_by"])


def downgrade() -> None:
    """Remove it."""
    op.drop_index(INDEX, "telemetry_series")
    op.drop_column("telemetry_series", "brought_by")
