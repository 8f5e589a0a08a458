"""Tell rollbacks to what devices had before from those that bring something else.

Revision ID: 0041
Revises: 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Rollbacks that go on keep the rules with which they began."""
    op.add_column(
        "rollout",
        sa.Column("is_way_back", sa.Boolean(), server_default=sa.false(), nullable=False),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_column("rollout", "is_way_back")
