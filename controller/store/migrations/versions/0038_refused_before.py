"""Remember whom an operator refused when another one asks for the identifier.

Revision ID: 0038
Revises: 0036
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add who was refused before."""
    op.add_column("waiting_device", sa.Column("refused", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Forget that; who was refused may wait again."""
    op.drop_column("waiting_device", "refused")
