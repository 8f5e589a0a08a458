"""Remember which deltas between files there are, and which do not pay.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "delta",
        sa.Column("base", sa.String(64), nullable=False),
        sa.Column("target", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("full_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("chunk_bytes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("chunks", sa.JSON(), nullable=False),
        sa.Column("made_at_s", sa.Double(), nullable=False),
        sa.Column("used_at_s", sa.Double(), nullable=False),
        sa.CheckConstraint(
            "state IN ('making', 'ready', 'none', 'failed')", name=op.f("ck_delta_state")
        ),
        sa.CheckConstraint(
            "state <> 'ready' OR (sha256 IS NOT NULL AND size_bytes IS NOT NULL)",
            name=op.f("ck_delta_ready"),
        ),
        sa.PrimaryKeyConstraint("base", "target", name=op.f("pk_delta")),
    )
    op.create_index("ix_delta_sha256", "delta", ["sha256"])
    op.create_index("ix_delta_target", "delta", ["target"])


def downgrade() -> None:
    """Remove it; the controller removes the deltas themselves when it has the table again."""
    op.drop_index("ix_delta_target", "delta")
    op.drop_index("ix_delta_sha256", "delta")
    op.drop_table("delta")
