"""Keep how many devices with a release told enough at each look at a gate, and how many should have.

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
    """Add both; of earlier looks nobody knows, so they count nothing."""
    with op.batch_alter_table("rollout_gate_look") as batch:
        for name in ("told", "expected"):
            batch.add_column(sa.Column(name, sa.Double(), server_default="0", nullable=False))


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("rollout_gate_look") as batch:
        batch.drop_column("expected")
        batch.drop_column("told")
