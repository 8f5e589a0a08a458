"""Keep where a device serves the devices of its site.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; devices say it when they connect."""
    op.add_column("device", sa.Column("peer_url", sa.String(64), nullable=True))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("device", "peer_url")
