"""Keep groups: selectors with a name.

Revision ID: 0026
Revises: 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "device_group",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("selector", sa.String(1024), nullable=False),
        sa.Column("changed_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_device_group")),
    )


def downgrade() -> None:
    """Remove it; selectors that name a group cannot be used then."""
    op.drop_table("device_group")
