"""Add API tokens, the audit log, and who did what to a rollout.

Revision ID: 0027
Revises: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_REFUSAL = "the audit log is append-only"


def upgrade() -> None:
    """Add them; who did what before is not known."""
    op.create_table(
        "api_token",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("old_sha256", sa.String(64), nullable=True),
        sa.Column("old_until_s", sa.Double(), nullable=True),
        sa.Column("rate_per_s", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(63), nullable=False),
        sa.Column("created_at_s", sa.Double(), nullable=False),
        sa.Column("expires_at_s", sa.Double(), nullable=False),
        sa.Column("used_at_s", sa.Double(), nullable=True),
        sa.Column("revoked_at_s", sa.Double(), nullable=True),
        sa.CheckConstraint(
            "role IN ('viewer', 'operator', 'approver', 'admin')", name=op.f("ck_api_token_role")
        ),
        sa.CheckConstraint("rate_per_s > 0", name=op.f("ck_api_token_rate_per_s")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_api_token")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_token_sha256")),
    )
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(63), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("action", sa.String(100), nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit")),
    )
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for statement in _SQLITE_TRIGGERS if is_sqlite else _POSTGRESQL_TRIGGERS:
        op.execute(statement)
    op.add_column(
        "rollout", sa.Column("created_by", sa.String(63), nullable=False, server_default="")
    )
    op.add_column(
        "rollout_event", sa.Column("actor", sa.String(63), nullable=False, server_default="")
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_column("rollout_event", "actor")
    op.drop_column("rollout", "created_by")
    op.drop_table("audit")  # with its triggers
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_append_only()")
    op.drop_table("api_token")


_SQLITE_TRIGGERS = tuple(
    f"CREATE TRIGGER audit_refuses_{event.lower()} BEFORE {event} ON audit "
    f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
    for event in ("UPDATE", "DELETE")
)
_POSTGRESQL_TRIGGERS = (
    "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$",
    "CREATE TRIGGER audit_refuses_rows BEFORE UPDATE OR DELETE ON audit "
    "FOR EACH ROW EXECUTE FUNCTION audit_is_append_only()",
    "CREATE TRIGGER audit_refuses_truncate BEFORE TRUNCATE ON audit "
    "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()",
)
