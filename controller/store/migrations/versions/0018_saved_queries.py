"""Keep queries of the telemetry that operators share.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "saved_query",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("query", sa.JSON(), nullable=False),
        sa.Column("saved_by", sa.String(64), nullable=False),
        sa.Column("saved_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_saved_query")),
    )


def downgrade() -> None:
    """Remove it, with all saved queries."""
    op.drop_table("saved_query")
