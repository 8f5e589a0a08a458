"""How Alembic reaches the database: through the connection that `store.database` hands in.

Rules:
- No file and no environment variable is read; migrations run from code alone.
- One transaction holds a whole migration, and on PostgreSQL a lock keeps a second controller out.
"""

from __future__ import annotations

import sqlalchemy
from alembic import context

_LOCK = 7_303_014
"""Key of the lock: an arbitrary number that all controllers share."""


def run_migrations(connection: sqlalchemy.Connection) -> None:
    """Run what Alembic planned on a connection."""
    context.configure(connection=connection, transaction_per_migration=False, render_as_batch=True)
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":
            connection.execute(sqlalchemy.text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        context.run_migrations()


run_migrations(context.config.attributes["connection"])
