"""Keep rollouts of large fleets fast: indexes that answer without reading wide rows.

Revision ID: 0028
Revises: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_ORDER = ["rollout", "state", "position"]


def upgrade() -> None:
    """Add them."""
    op.create_index("ix_device_id_online", "device", ["id", "online"])
    op.create_index(
        "ix_deployment_rollout_state_position_device", "deployment", [*_ORDER, "device"]
    )
    op.drop_index("ix_deployment_rollout_state_position", "deployment")
    op.create_index(
        "ix_deployment_control",
        "deployment",
        ["rollout", "state"],
        sqlite_where=sa.text("is_control IS 1"),
        postgresql_where=sa.text("is_control IS true"),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_index("ix_deployment_control", "deployment")
    op.create_index("ix_deployment_rollout_state_position", "deployment", _ORDER)
    op.drop_index("ix_deployment_rollout_state_position_device", "deployment")
    op.drop_index("ix_device_id_online", "device")
