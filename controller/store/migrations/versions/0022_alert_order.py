"""Keep what names an alert, what a waiting post tells of, and since when a device is expected.

Revision ID: 0022
Revises: 0021
"""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_KEY_CHARS = 16


def upgrade() -> None:
    """Add them; alerts that fire keep their names, and posts that wait their order."""
    op.add_column(
        "alert",
        sa.Column("incident", sa.String(_KEY_CHARS), nullable=False, server_default=""),
    )
    op.add_column("device", sa.Column("expected_from_s", sa.Double(), nullable=True))
    op.create_table(
        "alert_delivery_group",
        sa.Column("webhook", sa.String(63), nullable=False),
        sa.Column("group_key", sa.String(_KEY_CHARS), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(
            ["number"],
            ["alert_delivery.number"],
            name=op.f("fk_alert_delivery_group_number"),
        ),
        sa.PrimaryKeyConstraint(
            "webhook", "group_key", "number", name=op.f("pk_alert_delivery_group")
        ),
    )
    op.create_index("ix_alert_delivery_group_number", "alert_delivery_group", ["number"])
    connection = op.get_bind()
    _name_alerts(connection)
    _order_posts(connection)
    op.execute("UPDATE alert_delivery SET body = '' WHERE state <> 'waiting'")


def _name_alerts(connection: sa.Connection) -> None:
    """Name alerts that fire as receivers know them."""
    alert = sa.table(
        "alert",
        *map(sa.column, ("rule", "group_text", "phase", "since_s", "incident")),
    )
    firing = sa.select(alert.c.rule, alert.c.group_text, alert.c.since_s)
    for rule, group, since_s in connection.execute(firing.where(alert.c.phase == "firing")).all():
        connection.execute(
            sa.update(alert)
            .where(alert.c.rule == rule, alert.c.group_text == group)
            .values(incident=_digest(f"{rule}\n{group}\n{since_s:.3f}"))
        )


def _order_posts(connection: sa.Connection) -> None:
    """Note of which groups each post tells that waits."""
    post = sa.table(
        "alert_delivery",
        *map(sa.column, ("number", "webhook", "state", "body")),
    )
    group = sa.table(
        "alert_delivery_group",
        *map(sa.column, ("webhook", "group_key", "number")),
    )
    waiting = sa.select(post.c.number, post.c.webhook, post.c.body)
    for number, webhook, body in connection.execute(waiting.where(post.c.state == "waiting")).all():
        told = json.loads(body)["alerts"]
        for key in {_digest(f"{each['alert']}\n{each['group']}") for each in told}:
            connection.execute(
                sa.insert(group).values(webhook=webhook, group_key=key, number=number)
            )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_CHARS]


def downgrade() -> None:
    """Remove them."""
    op.drop_index("ix_alert_delivery_group_number", "alert_delivery_group")
    op.drop_table("alert_delivery_group")
    op.drop_column("device", "expected_from_s")
    op.drop_column("alert", "incident")
