"""Keep which devices are held out of rollouts for a time.

Revision ID: 0033
Revises: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "device_penalty",
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("held_out", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("from_s", sa.Double(), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["device"], ["device.id"], name=op.f("fk_device_penalty_device")
        ),
        sa.PrimaryKeyConstraint("device", name=op.f("pk_device_penalty")),
    )


def downgrade() -> None:
    """Remove it."""
    op.drop_table("device_penalty")
