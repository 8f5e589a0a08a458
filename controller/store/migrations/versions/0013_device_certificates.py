"""Keep until when a device holds a certificate for the broker.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no device has a certificate yet."""
    op.add_column("device", sa.Column("certificate_ends_at_s", sa.Double(), nullable=True))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("device", "certificate_ends_at_s")
