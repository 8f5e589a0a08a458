"""Let the looks at the ends of soaks have a part of what gates may err.

Revision ID: 0042
Revises: 0041
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Rollouts that go on have looks that took more: they get no part of it."""
    op.add_column(
        "rollout", sa.Column("gate_ends_left", sa.Integer(), server_default="0", nullable=False)
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_column("rollout", "gate_ends_left")
