"""Keep the gates of rollouts, what looks at them have shown, and their control groups.

Revision ID: 0023
Revises: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; rollouts of before have none."""
    op.add_column(
        "rollout",
        sa.Column("control_released", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column(
        "rollout",
        sa.Column("gates_passed_by_hand", sa.Integer(), nullable=False, server_default="0"),
    )
    op.add_column(
        "deployment",
        sa.Column("is_control", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_table(
        "rollout_gate",
        sa.Column("rollout", sa.String(63), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("text", sa.String(512), nullable=False),
        sa.Column("is_waived", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.ForeignKeyConstraint(
            ["rollout"], ["rollout.id"], name=op.f("fk_rollout_gate_rollout")
        ),
        sa.PrimaryKeyConstraint("rollout", "number", name=op.f("pk_rollout_gate")),
    )
    op.create_table(
        "rollout_gate_look",
        sa.Column("rollout", sa.String(63), nullable=False),
        sa.Column("look", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("clock_s", sa.Double(), nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("estimate", sa.Double(), nullable=True),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("treated", sa.Integer(), nullable=False),
        sa.Column("control", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "state IN ('pass', 'fail', 'hold')", name=op.f("ck_rollout_gate_look_state")
        ),
        sa.CheckConstraint(
            "look >= 1 AND treated >= 0 AND control >= 0",
            name=op.f("ck_rollout_gate_look_counts"),
        ),
        sa.ForeignKeyConstraint(
            ["rollout"], ["rollout.id"], name=op.f("fk_rollout_gate_look_rollout")
        ),
        sa.PrimaryKeyConstraint(
            "rollout", "look", "number", name=op.f("pk_rollout_gate_look")
        ),
    )


def downgrade() -> None:
    """Remove them; what was held out is as if it had not begun."""
    op.drop_table("rollout_gate_look")
    op.drop_table("rollout_gate")
    op.drop_column("deployment", "is_control")
    op.drop_column("rollout", "gates_passed_by_hand")
    op.drop_column("rollout", "control_released")
