"""Let rollouts have limits by kind of failure, a priority, windows, and a rule for their halt.

Revision ID: 0031
Revises: 0030
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

def _columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("max_refused", sa.Integer(), nullable=True),
        sa.Column("max_timed_out", sa.Integer(), nullable=True),
        sa.Column("worst_case", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("on_halt", sa.String(16), server_default="keep", nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("superseded_by", sa.String(64), nullable=True),
        sa.Column("awaited_by", sa.String(64), nullable=True),
        sa.Column("windows", sa.JSON(), nullable=True),
    ]


def upgrade() -> None:
    """Add the columns."""
    for column in _columns():
        op.add_column("rollout", column)
    op.add_column("desired_model", sa.Column("windows", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("desired_model", "windows")
    for column in _columns():
        op.drop_column("rollout", column.name)
