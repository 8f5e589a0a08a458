"""Keep which releases run as shadows.

Revision ID: 0036
Revises: 0035
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table, and which shadow each model of a device has."""
    op.create_table(
        "shadow",
        sa.Column("model", sa.String(63), nullable=False),
        sa.Column("release", sa.String(64), nullable=False),
        sa.Column("selector", sa.String(1024), nullable=False),
        sa.Column("rule", sa.JSON(), nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["release"], ["release.digest"], name=op.f("fk_shadow_release")),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_shadow")),
    )
    op.add_column("desired_model", sa.Column("shadow", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Remove them; devices end their shadows with the next desired state."""
    op.drop_column("desired_model", "shadow")
    op.drop_table("shadow")
