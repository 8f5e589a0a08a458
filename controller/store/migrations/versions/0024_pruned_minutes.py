"""Keep how far minutes, hours and days of telemetry were deleted.

Revision ID: 0024
Revises: 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_SIZES = {"hour": 60, "day": 1440}


def upgrade() -> None:
    """Add the column; where coarser rows are older than finer ones, finer ones were deleted."""
    op.add_column(
        "telemetry_level",
        sa.Column("pruned_minute", sa.Integer(), nullable=False, server_default="0"),
    )
    connection = op.get_bind()
    connection.execute(
        sa.text(
            "INSERT INTO telemetry_level (name, closed_minute, done_minute, pruned_minute) "
            "VALUES ('minute', 0, 0, 0)"
        )
    )
    for finer, coarser in (("minute", "hour"), ("hour", "day")):
        pruned = max(_pruned(connection, of, finer, coarser) for of in ("", "fleet_"))
        connection.execute(
            sa.text("UPDATE telemetry_level SET pruned_minute = :pruned WHERE name = :name"),
            {"pruned": pruned, "name": finer},
        )


def _pruned(connection: sa.Connection, of: str, finer: str, coarser: str) -> int:
    size = _SIZES[coarser]
    oldest_coarse = _end(connection, f"telemetry_{of}{coarser}", "MIN")
    if oldest_coarse is None:
        return 0
    oldest = _end(connection, f"telemetry_{of}{finer}", "MIN")
    if oldest is None:
        return (_end(connection, f"telemetry_{of}{coarser}", "MAX") or 0) + size
    first = oldest // size * size
    return first if oldest_coarse < first else 0


def _end(connection: sa.Connection, table: str, which: str) -> int | None:
    """Return the first or the last minute of a table, looked up for each series."""
    found = connection.scalar(
        sa.text(
            f"SELECT {which}((SELECT {which}(minute) FROM {table} WHERE series_id = s.id)) "  # noqa: S608 - constants
            "FROM telemetry_series s"
        )
    )
    return None if found is None else int(found)


def downgrade() -> None:
    """Remove it."""
    op.execute("DELETE FROM telemetry_level WHERE name = 'minute'")
    op.drop_column("telemetry_level", "pruned_minute")
