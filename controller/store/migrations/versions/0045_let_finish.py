"""Let devices that a halted rollback rids of a release finish, and no others.

Revision ID: 0045
Revises: 0044
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

BEFORE = (
    "take_out",
    "recall",
    "cancel",
    "supersede",
    "take_in",
    "hold_out",
    "leave_out",
    "reopen",
)
AFTER = (*BEFORE, "let_finish")


def upgrade() -> None:
    """Know the kind of work."""
    _change(BEFORE, AFTER)


def downgrade() -> None:
    """Forget it: the older controller lets all of such a rollback finish."""
    op.execute(
        "UPDATE deployment SET state = 'waiting' WHERE state = 'assigned' AND rollout IN"
        " (SELECT rollout FROM rollout_work WHERE kind = 'let_finish')"
    )
    op.execute("UPDATE rollout_work SET kind = 'cancel' WHERE kind = 'let_finish'")
    _change(AFTER, BEFORE)


def _change(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    with op.batch_alter_table("rollout_work", copy_from=_table(old)) as batch:
        batch.drop_constraint(op.f("ck_rollout_work_kind"), type_="check")
        batch.create_check_constraint(op.f("ck_rollout_work_kind"), _one_of(new))


def _one_of(kinds: tuple[str, ...]) -> str:
    return "kind IN (" + ", ".join(f"'{kind}'" for kind in kinds) + ")"


def _table(kinds: tuple[str, ...]) -> sa.Table:
    """Return the table as it is, because SQLite has to copy it and tells too little about it."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Table(
        "rollout_work",
        sa.MetaData(),
        sa.Column("id", number, autoincrement=True, nullable=False),
        sa.Column("rollout", sa.String(length=63), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.String(length=500), nullable=False),
        sa.CheckConstraint(_one_of(kinds), name="ck_rollout_work_kind"),
        sa.ForeignKeyConstraint(["rollout"], ["rollout.id"], name="fk_rollout_work_rollout"),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_work"),
        sa.Index("ix_rollout_work_rollout", "rollout"),
    )
