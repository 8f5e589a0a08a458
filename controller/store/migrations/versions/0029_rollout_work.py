"""Carry out orders about rollouts of large fleets in short transactions.

Revision ID: 0029
Revises: 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_ENDED = "SELECT rollout FROM rollout_work WHERE kind IN ('take_out', 'recall', 'cancel')"


def upgrade() -> None:
    """Add the table of what is left to do."""
    op.create_table(
        "rollout_work",
        sa.Column(
            "id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("rollout", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.String(length=500), nullable=False),
        sa.CheckConstraint(
            "kind IN ('take_out', 'recall', 'cancel', 'supersede', 'take_in', 'hold_out', "
            "'leave_out', 'reopen')",
            name=op.f("ck_rollout_work_kind"),
        ),
        sa.ForeignKeyConstraint(
            ["rollout"], ["rollout.id"], name=op.f("fk_rollout_work_rollout")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout_work")),
    )
    op.create_index(op.f("ix_rollout_work_rollout"), "rollout_work", ["rollout"])


def downgrade() -> None:
    """Remove it. The older controller does not go on: devices that are not taken in stay out.

    Devices that were still to be taken out are cancelled, so that they are free.
    """
    op.execute(
        "UPDATE deployment SET state = 'cancelled', error_code = 'controller.downgrade',"
        " detail = 'the rollout has ended'"
        f" WHERE state IN ('pending', 'assigned', 'waiting') AND rollout IN ({_ENDED})"
    )
    op.drop_table("rollout_work")
