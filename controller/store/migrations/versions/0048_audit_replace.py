"""Refuse to put another row of the audit log in the place of one.

Revision ID: 0048
Revises: 0047
"""

from __future__ import annotations

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the trigger: `INSERT OR REPLACE` of SQLite removes a row, and no trigger sees that."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE TRIGGER audit_refuses_replace BEFORE INSERT ON audit "
            "WHEN EXISTS (SELECT 1 FROM audit WHERE sequence = NEW.sequence) "
            "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        )


def downgrade() -> None:
    """Remove it."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER audit_refuses_replace")
