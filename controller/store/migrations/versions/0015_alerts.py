"""Keep rules of alerts, their states and history, and what webhooks are still to be sent.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "alert_rule",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("changed_at_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_alert_rule")),
    )
    op.create_table(
        "alert",
        sa.Column("rule", sa.String(63), nullable=False),
        sa.Column("group_text", sa.String(500), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("value_at_s", sa.Double(), nullable=False),
        sa.Column("told_at_s", sa.Double(), nullable=True),
        sa.Column("acked_at_s", sa.Double(), nullable=True),
        sa.Column("acked_until_s", sa.Double(), nullable=True),
        sa.Column("acked_by", sa.String(63), server_default="", nullable=False),
        sa.Column("comment", sa.String(500), server_default="", nullable=False),
        sa.CheckConstraint(
            "phase IN ('inactive', 'pending', 'firing', 'resolved')", name=op.f("ck_alert_phase")
        ),
        sa.PrimaryKeyConstraint("rule", "group_text", name=op.f("pk_alert")),
    )
    op.create_index("ix_alert_phase_since_s", "alert", ["phase", "since_s"])
    op.create_table(
        "alert_history",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("rule", sa.String(63), nullable=False),
        sa.Column("group_text", sa.String(500), nullable=False),
        sa.Column("what", sa.String(16), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("actor", sa.String(63), nullable=False),
        sa.Column("detail", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_history")),
    )
    op.create_index("ix_alert_history_rule_id", "alert_history", ["rule", "id"])
    op.create_index("ix_alert_history_at_s", "alert_history", ["at_s"])
    op.create_table(
        "alert_delivery",
        sa.Column("number", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(63), nullable=False),
        sa.Column("webhook", sa.String(63), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("alerts", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("next_at_s", sa.Double(), nullable=False),
        sa.Column("ended_at_s", sa.Double(), nullable=True),
        sa.Column("fault", sa.String(500), nullable=False),
        sa.CheckConstraint(
            "state IN ('waiting', 'delivered', 'given-up')", name=op.f("ck_alert_delivery_state")
        ),
        sa.CheckConstraint(
            "state = 'waiting' OR ended_at_s IS NOT NULL", name=op.f("ck_alert_delivery_ended")
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_alert_delivery")),
        sa.UniqueConstraint("id", name=op.f("uq_alert_delivery_id")),
    )
    op.create_index(
        "ix_alert_delivery_webhook_state_next_at_s",
        "alert_delivery",
        ["webhook", "state", "next_at_s"],
    )
    op.create_index("ix_alert_delivery_ended_at_s", "alert_delivery", ["ended_at_s"])


def downgrade() -> None:
    """Remove them, with all that they hold."""
    for name in ("ended_at_s", "webhook_state_next_at_s"):
        op.drop_index(f"ix_alert_delivery_{name}", "alert_delivery")
    op.drop_table("alert_delivery")
    for name in ("at_s", "rule_id"):
        op.drop_index(f"ix_alert_history_{name}", "alert_history")
    op.drop_table("alert_history")
    op.drop_index("ix_alert_phase_since_s", "alert")
    op.drop_table("alert")
    op.drop_table("alert_rule")
