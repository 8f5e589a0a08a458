"""Let stages choose devices and have rules of their own, and let devices start at a rate.

Revision ID: 0030
Revises: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("rollout", "spread", sa.String(63), ""),
    ("rollout_stage", "selector", sa.String(1024), ""),
    ("rollout_stage", "soak_s", sa.Double(), None),
    ("rollout_stage", "approval", sa.Boolean(), None),
    ("rollout_stage", "asks_gates", sa.Boolean(), None),
    ("rollout_gate", "stage", sa.Integer(), None),
)


def upgrade() -> None:
    """Add what is set of them; rollouts of before have none of it."""
    for table, name, kind, default in _COLUMNS:
        op.add_column(
            table, sa.Column(name, kind, nullable=default is None, server_default=default)
        )
    op.create_table(
        "rollout_rate",
        sa.Column("rollout", sa.String(63), nullable=False),
        *(
            sa.Column(name, sa.Double(), nullable=False)
            for name in ("per_minute", "factor", "max_per_minute", "room", "at_s")
        ),
        sa.Column("after", sa.Integer(), nullable=False),
        sa.CheckConstraint("per_minute > 0 AND factor >= 1 AND after >= 1", name=op.f("ck_rollout_rate_growth")),
        sa.ForeignKeyConstraint(["rollout"], ["rollout.id"]),
        sa.PrimaryKeyConstraint("rollout"),
    )


def downgrade() -> None:
    """Remove it. Stages that choose devices become stages of so many, in the same order."""
    op.drop_table("rollout_rate")
    for table, name, _, _ in reversed(_COLUMNS):
        op.drop_column(table, name)
