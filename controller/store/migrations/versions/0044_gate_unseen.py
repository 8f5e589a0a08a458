"""Keep what part of the devices may do otherwise, unseen, when a gate passes.

Revision ID: 0044
Revises: 0043
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Of looks of before it is not known; their reasons have it as text."""
    op.add_column("rollout_gate_look", sa.Column("unseen", sa.Double(), nullable=True))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("rollout_gate_look", "unseen")
