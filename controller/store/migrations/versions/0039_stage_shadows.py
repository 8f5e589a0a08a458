"""Let stages of rollouts wait for a shadow.

Revision ID: 0039
Revises: 0038
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what stages need, how far they are, whose shadows are, and which devices run none."""
    op.create_table(
        "rollout_stage_shadow",
        sa.Column("rollout", sa.String(63), nullable=False),
        sa.Column("stage", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("began_at_s", sa.Double(), nullable=False),
        sa.Column("looked_at_s", sa.Double(), nullable=True),
        sa.Column("looks", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("is_waived", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.CheckConstraint(
            "state IN ('pass', 'fail', 'hold')", name=op.f("ck_rollout_stage_shadow_state")
        ),
        sa.CheckConstraint("looks >= 0", name=op.f("ck_rollout_stage_shadow_looks")),
        sa.ForeignKeyConstraint(
            ["rollout"], ["rollout.id"], name=op.f("fk_rollout_stage_shadow_rollout")
        ),
        sa.PrimaryKeyConstraint("rollout", "stage", name=op.f("pk_rollout_stage_shadow")),
    )
    op.add_column("rollout_stage", sa.Column("shadow", sa.JSON(), nullable=True))
    op.add_column(
        "device",
        sa.Column("allows_shadows", sa.Boolean(), server_default=sa.true(), nullable=False),
    )
    op.add_column("shadow", sa.Column("rollout", sa.String(63), nullable=True))


def downgrade() -> None:
    """Remove them. Shadows that belong to a rollout would never end: they go."""
    op.execute("DELETE FROM shadow WHERE rollout IS NOT NULL")
    op.execute("UPDATE policy_set SET generation = generation + 1")
    op.drop_column("shadow", "rollout")
    op.drop_column("device", "allows_shadows")
    op.drop_column("rollout_stage", "shadow")
    op.drop_table("rollout_stage_shadow")
