"""Keep which runtimes a device has, where they are fewer than its profile's.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; each device tells at its next connection."""
    op.add_column("device", sa.Column("runtimes", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("device", "runtimes")
