"""Keep that a device has greeted since it enrolled, also over a restore.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; who named a boot has greeted."""
    op.add_column(
        "device", sa.Column("greeted", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.execute("UPDATE device SET greeted = (boot_id <> '')")


def downgrade() -> None:
    """Remove it."""
    op.drop_column("device", "greeted")
