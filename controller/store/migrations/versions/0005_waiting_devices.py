"""Let devices that are offline wait, give rollouts a clock of their own, and let them be tried again.

The clock of a rollout that goes on begins with this migration, and so do the deadlines of its devices.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BEFORE = ("pending", "assigned", "succeeded", "failed", "cancelled")
AFTER = ("pending", "assigned", "waiting", "succeeded", "failed", "cancelled")
UNFINISHED = "uq_deployment_unfinished"
DEPLOYMENT_COLUMNS = ("release", "acknowledged", "clock_s", "away_s", "away_from_s")
ROLLOUT_COLUMNS = ("is_retry", "offline_limit_s", "ran_s")


def upgrade() -> None:
    """Add the state and the columns."""
    op.execute("ALTER TABLE rollout RENAME COLUMN rollback_of TO origin")
    op.add_column(
        "rollout", sa.Column("is_retry", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.add_column(
        "rollout",
        sa.Column("offline_limit_s", sa.Double(), server_default="86400", nullable=False),
    )
    op.add_column("rollout", sa.Column("ran_s", sa.Double(), server_default="0", nullable=False))
    op.execute("UPDATE rollout SET stage_complete_at_s = 0 WHERE stage_complete_at_s IS NOT NULL")
    with op.batch_alter_table("deployment", copy_from=deployment(BEFORE)) as batch:
        batch.drop_index(UNFINISHED)
        batch.drop_constraint(op.f("ck_deployment_state"), type_="check")
        batch.create_check_constraint(op.f("ck_deployment_state"), one_of(AFTER))
        batch.add_column(sa.Column("release", sa.String(length=64), nullable=True))
        batch.add_column(
            sa.Column("acknowledged", sa.Boolean(), server_default=sa.false(), nullable=False)
        )
        batch.add_column(sa.Column("clock_s", sa.Double(), server_default="0", nullable=False))
        batch.add_column(sa.Column("away_s", sa.Double(), server_default="0", nullable=False))
        batch.add_column(sa.Column("away_from_s", sa.Double(), nullable=True))
        batch.create_foreign_key(
            op.f("fk_deployment_release"), "release", ["release"], ["digest"]
        )
    unfinished_index(AFTER[:3])


def downgrade() -> None:
    """Remove them; a device that waits is at work again, or left out if its rollout has ended.

    A device that has not got its order is left out, too, if it was to get a release of its own: the
    older controller would bring it to the rollout's.
    """
    op.execute(
        "UPDATE deployment SET state = 'cancelled', error_code = 'controller.downgrade',"
        " detail = 'the older controller knows one release for each rollout'"
        " WHERE state = 'pending' AND release IS NOT NULL"
    )
    op.execute(
        "UPDATE deployment SET state = 'assigned' WHERE state = 'waiting' AND rollout IN"
        " (SELECT id FROM rollout WHERE state IN ('running', 'paused'))"
    )
    op.execute(
        "UPDATE deployment SET state = 'cancelled', finished_at_s = started_at_s"
        " WHERE state = 'waiting'"
    )
    added = (
        sa.Column("release", sa.String(length=64), nullable=True),
        sa.Column("acknowledged", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("clock_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("away_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("away_from_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["release"], ["release.digest"], name=op.f("fk_deployment_release")
        ),
    )
    with op.batch_alter_table("deployment", copy_from=deployment(AFTER, *added)) as batch:
        batch.drop_index(UNFINISHED)
        batch.drop_constraint(op.f("fk_deployment_release"), type_="foreignkey")
        batch.drop_constraint(op.f("ck_deployment_state"), type_="check")
        batch.create_check_constraint(op.f("ck_deployment_state"), one_of(BEFORE))
        for column in DEPLOYMENT_COLUMNS:
            batch.drop_column(column)
    unfinished_index(BEFORE[:2])
    op.execute("UPDATE rollout SET stage_complete_at_s = NULL")
    for column in ROLLOUT_COLUMNS:
        op.drop_column("rollout", column)
    op.execute("ALTER TABLE rollout RENAME COLUMN origin TO rollback_of")


def one_of(states: tuple[str, ...]) -> str:
    """Return the condition that a state is one of these."""
    return "state IN (" + ", ".join(f"'{state}'" for state in states) + ")"


def unfinished_index(states: tuple[str, ...]) -> None:
    """Make the index by which a device has one deployment in these states."""
    op.create_index(
        UNFINISHED,
        "deployment",
        ["device"],
        unique=True,
        sqlite_where=sa.text(one_of(states)),
        postgresql_where=sa.text(one_of(states)),
    )


def deployment(states: tuple[str, ...], *more: sa.schema.SchemaItem) -> sa.Table:
    """Return the table as it is, because SQLite has to copy it and tells too little about it."""
    unfinished = sa.text(one_of(tuple(state for state in states if state in AFTER[:3])))
    return sa.Table(
        "deployment",
        sa.MetaData(),
        sa.Column("rollout", sa.String(length=63), nullable=False),
        sa.Column("device", sa.String(length=63), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("previous", sa.String(length=64), nullable=True),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("done_bytes", sa.BigInteger(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.String(length=500), nullable=False),
        sa.Column("started_at_s", sa.Double(), nullable=True),
        sa.Column("reported_at_s", sa.Double(), nullable=True),
        sa.Column("finished_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint(one_of(states), name="ck_deployment_state"),
        sa.CheckConstraint(
            "state IN ('pending', 'cancelled') OR (revision IS NOT NULL AND started_at_s IS NOT NULL)",
            name="ck_deployment_started",
        ),
        sa.ForeignKeyConstraint(["device"], ["device.id"], name="fk_deployment_device"),
        sa.ForeignKeyConstraint(["previous"], ["release.digest"], name="fk_deployment_previous"),
        sa.ForeignKeyConstraint(["rollout"], ["rollout.id"], name="fk_deployment_rollout"),
        sa.PrimaryKeyConstraint("rollout", "device", name="pk_deployment"),
        sa.Index("ix_deployment_device_revision", "device", "revision"),
        sa.Index("ix_deployment_rollout_state_position", "rollout", "state", "position"),
        sa.Index(
            UNFINISHED,
            "device",
            unique=True,
            sqlite_where=unfinished,
            postgresql_where=unfinished,
        ),
        *more,
    )
