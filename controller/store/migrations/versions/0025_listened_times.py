"""Keep how long an alert is pending or without data while the controller looked, not since when.

Revision ID: 0025
Revises: 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace it; both begin anew."""
    for name in ("held_s", "missing_s"):
        op.add_column("alert", sa.Column(name, sa.Double(), nullable=False, server_default="0"))
    op.drop_column("alert", "value_at_s")


def downgrade() -> None:
    """Put it back, as if the last data had come when the state began."""
    op.add_column(
        "alert", sa.Column("value_at_s", sa.Double(), nullable=False, server_default="0")
    )
    op.execute("UPDATE alert SET value_at_s = since_s")
    for name in ("missing_s", "held_s"):
        op.drop_column("alert", name)
