"""Policies of the fleet, and which of them a desired state carries.

Desired states from before stay valid: they have the default policy and their release's revision.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

COLUMNS = ("policy_generation", "policy", "policy_name", "release_revision")


def upgrade() -> None:
    """Make the tables and columns."""
    op.create_table(
        "policy",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("selector", sa.String(length=1024), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("changed_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_policy")),
    )
    policy_set = op.create_table(
        "policy_set",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1 AND generation >= 1", name=op.f("ck_policy_set_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_set")),
    )
    op.bulk_insert(policy_set, [{"id": 1, "generation": 1}])
    # The database has the defaults, because SQLite adds a NOT NULL column only with a default.
    op.add_column(
        "desired_state",
        sa.Column("release_revision", sa.BigInteger(), server_default="0", nullable=False),
    )
    op.add_column("desired_state", sa.Column("policy_name", sa.String(length=63), nullable=True))
    op.add_column("desired_state", sa.Column("policy", sa.JSON(), nullable=True))
    op.add_column(
        "desired_state",
        sa.Column("policy_generation", sa.BigInteger(), server_default="0", nullable=False),
    )
    op.execute("UPDATE desired_state SET release_revision = revision, policy_generation = 1")
    op.create_index(
        op.f("ix_desired_state_policy_generation"),
        "desired_state",
        ["policy_generation"],
        unique=False,
    )


def downgrade() -> None:
    """Remove them; deployments refer to the newest revision again."""
    op.execute(
        "UPDATE deployment SET revision = ("
        "SELECT desired_state.revision FROM desired_state"
        " WHERE desired_state.device = deployment.device)"
        " WHERE EXISTS (SELECT 1 FROM desired_state"
        " WHERE desired_state.device = deployment.device"
        " AND desired_state.release_revision = deployment.revision)"
    )
    op.drop_index(op.f("ix_desired_state_policy_generation"), table_name="desired_state")
    for column in COLUMNS:
        op.drop_column("desired_state", column)
    op.drop_table("policy_set")
    op.drop_table("policy")
