"""Keep what part of a rollout's devices is its control group, for devices that join it.

Revision ID: 0046
Revises: 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Of rollouts of before it is not known: who joins them has no such group."""
    op.add_column(
        "rollout", sa.Column("control_percent", sa.Double(), server_default="0", nullable=False)
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_column("rollout", "control_percent")
