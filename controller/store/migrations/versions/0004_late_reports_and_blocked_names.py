"""Number the reports of a device, and block the identifiers of decommissioned ones.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both; the next report of each device is taken, and no identifier is free."""
    op.add_column(
        "device",
        sa.Column("report_sequence", sa.BigInteger(), server_default="0", nullable=False),
    )
    op.add_column(
        "device",
        sa.Column("may_enrol_again", sa.Boolean(), server_default=sa.false(), nullable=False),
    )


def downgrade() -> None:
    """Remove both."""
    op.drop_column("device", "may_enrol_again")
    op.drop_column("device", "report_sequence")
