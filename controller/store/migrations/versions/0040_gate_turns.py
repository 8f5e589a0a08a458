"""Keep who was away at its turn in a stage, and whether it had the release by then.

Revision ID: 0040
Revises: 0039
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it; in stages that have begun the turn of all is over, as it was noted then."""
    with op.batch_alter_table("rollout_gate_stage") as batch:
        batch.add_column(sa.Column("before", sa.Integer(), server_default="0", nullable=False))
        batch.add_column(sa.Column("passed", sa.Integer(), server_default="1000", nullable=False))
        batch.add_column(sa.Column("began_at_s", sa.Double(), server_default="0", nullable=False))
    with op.batch_alter_table("rollout_gate_away") as batch:
        batch.add_column(
            sa.Column("has_release", sa.Boolean(), server_default=sa.false(), nullable=False)
        )


def downgrade() -> None:
    """Remove it."""
    with op.batch_alter_table("rollout_gate_away") as batch:
        batch.drop_column("has_release")
    with op.batch_alter_table("rollout_gate_stage") as batch:
        batch.drop_column("began_at_s")
        batch.drop_column("passed")
        batch.drop_column("before")
