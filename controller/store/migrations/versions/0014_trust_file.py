"""Keep which devices trust keys in a trust file, and not the fleet's metadata.

Revision ID: 0014
Revises: 0013
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; devices say it when they connect."""
    op.add_column("device", sa.Column("trust_file", sa.Boolean(), nullable=True))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("device", "trust_file")
