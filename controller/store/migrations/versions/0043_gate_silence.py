"""Keep by what part fewer devices with a release told enough than others, at each look at a gate.

Revision ID: 0043
Revises: 0042
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it; of earlier looks nobody knows."""
    with op.batch_alter_table("rollout_gate_look") as batch:
        batch.add_column(sa.Column("silence", sa.Double(), server_default="0", nullable=False))


def downgrade() -> None:
    """Remove it."""
    with op.batch_alter_table("rollout_gate_look") as batch:
        batch.drop_column("silence")
