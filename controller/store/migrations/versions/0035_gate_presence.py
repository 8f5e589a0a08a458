"""Keep which devices were away when a stage of a rollout with gates began.

Revision ID: 0035
Revises: 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; of stages that have begun, nobody knows."""
    op.create_table(
        "rollout_gate_stage",
        sa.Column("rollout", sa.String(63), nullable=False),
        sa.Column("stage", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout"], ["rollout.id"], name=op.f("fk_rollout_gate_stage_rollout")
        ),
        sa.PrimaryKeyConstraint("rollout", "stage", name=op.f("pk_rollout_gate_stage")),
    )
    op.create_table(
        "rollout_gate_away",
        sa.Column("rollout", sa.String(63), nullable=False),
        sa.Column("device", sa.String(63), nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout"], ["rollout.id"], name=op.f("fk_rollout_gate_away_rollout")
        ),
        sa.ForeignKeyConstraint(
            ["device"], ["device.id"], name=op.f("fk_rollout_gate_away_device")
        ),
        sa.PrimaryKeyConstraint("rollout", "device", name=op.f("pk_rollout_gate_away")),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("rollout_gate_away")
    op.drop_table("rollout_gate_stage")
