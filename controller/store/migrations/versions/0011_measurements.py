"""Keep which devices are lent for measurements, and what they measured.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the table; no device is lent yet."""
    op.add_column(
        "device", sa.Column("lent", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.create_table(
        "measurement",
        sa.Column("id", sa.String(63), nullable=False),
        sa.Column("device", sa.String(63), nullable=False),
        sa.Column("release", sa.String(64), nullable=False),
        sa.Column("profile", sa.String(63), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=True),
        sa.Column("asked_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.Column("answered_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "state IN ('asked', 'measured', 'refused', 'interrupted', 'timed-out')",
            name=op.f("ck_measurement_state"),
        ),
        sa.CheckConstraint(
            "state = 'asked' OR answered_at_s IS NOT NULL", name=op.f("ck_measurement_answered")
        ),
        sa.ForeignKeyConstraint(
            ["device"], ["device.id"], name=op.f("fk_measurement_device_device")
        ),
        sa.ForeignKeyConstraint(
            ["release"], ["release.digest"], name=op.f("fk_measurement_release_release")
        ),
        sa.PrimaryKeyConstraint("id", "device", name=op.f("pk_measurement")),
    )
    op.create_index("ix_measurement_device_state", "measurement", ["device", "state"])
    op.create_index("ix_measurement_release", "measurement", ["release"])
    op.create_index("ix_measurement_asked_at_s", "measurement", ["asked_at_s"])


def downgrade() -> None:
    """Remove them, with all figures."""
    for name in ("asked_at_s", "release", "device_state"):
        op.drop_index(f"ix_measurement_{name}", "measurement")
    op.drop_table("measurement")
    op.drop_column("device", "lent")
