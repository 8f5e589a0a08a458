"""Keep what webhooks are still to be told about rollouts.

Revision ID: 0034
Revises: 0033
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; what happened before is told to nobody."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "rollout_notice",
        sa.Column("event", number, nullable=False, autoincrement=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("event", name="pk_rollout_notice"),
        sa.ForeignKeyConstraint(
            ["event"], ["rollout_event.id"], name="fk_rollout_notice_event_rollout_event"
        ),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("rollout_notice")
