"""Keep devices that wait, those that are registered, and whom a token lets in by itself.

Revision ID: 0032
Revises: 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables and the column."""
    op.create_table(
        "waiting_device",
        sa.Column("id", sa.String(63), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("public_key", sa.String(64), nullable=False),
        sa.Column("serial", sa.String(64), nullable=False),
        sa.Column("profile_name", sa.String(63), nullable=False),
        sa.Column("architecture", sa.String(16), nullable=False),
        sa.Column("agent_version", sa.String(64), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("token", sa.String(63), nullable=False),
        sa.Column("asked_at_s", sa.Double(), nullable=False),
        sa.Column("last_asked_at_s", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "state IN ('waiting', 'accepted', 'refused')", name=op.f("ck_waiting_device_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_waiting_device")),
    )
    op.create_table(
        "registration",
        sa.Column("serial", sa.String(64), nullable=False),
        sa.Column("device", sa.String(63), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("registered_at_s", sa.Double(), nullable=False),
        sa.Column("claimed_by", sa.String(63), nullable=True),
        sa.Column("claimed_at_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_registration")),
        sa.UniqueConstraint("device", name=op.f("uq_registration_device")),
    )
    op.add_column(
        "enrolment_token",
        sa.Column("accepts", sa.String(1024), server_default="auto", nullable=False),
    )


def downgrade() -> None:
    """Remove them: tokens let in every device then."""
    op.drop_column("enrolment_token", "accepts")
    op.drop_table("registration")
    op.drop_table("waiting_device")
