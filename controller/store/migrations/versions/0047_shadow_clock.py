"""Measure by the clock of a rollout how long a stage has waited for its shadow.

Revision ID: 0047
Revises: 0046
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

TABLE = "rollout_stage_shadow"


def upgrade() -> None:
    """Add the columns. Stages that wait do so from now on; what they were told stays."""
    op.add_column(TABLE, sa.Column("began_clock_s", sa.Double(), server_default="0", nullable=False))
    op.add_column(TABLE, sa.Column("looked_clock_s", sa.Double(), nullable=True))
    op.execute(
        f"UPDATE {TABLE} SET began_clock_s ="  # noqa: S608 - no value comes from outside
        f" (SELECT ran_s FROM rollout WHERE rollout.id = {TABLE}.rollout)"
    )
    op.drop_column(TABLE, "looked_at_s")


def downgrade() -> None:
    """Remove them. The next look comes at once."""
    op.add_column(TABLE, sa.Column("looked_at_s", sa.Double(), nullable=True))
    op.drop_column(TABLE, "looked_clock_s")
    op.drop_column(TABLE, "began_clock_s")
