"""Batches that could not be read or stored: kept for people, and only so many.

Rules:
- The newest are kept: some of each device, so that none can push out those of the others, and some
  of all. Of each, the first bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import sqlalchemy as sa

from telemetry.server.tables import MAX_DEVICE, dead_letter

MOST_OF_DEVICE: Final = 5
MOST: Final = 1000
MAX_PAYLOAD_BYTES: Final = 4096
MAX_REASON: Final = 500


class DeadLetter(NamedTuple):
    """A batch that could not be read or stored."""

    at_s: float
    device: str
    reason: str
    size_bytes: int
    payload: bytes
    """Its first `MAX_PAYLOAD_BYTES`."""


def bury(engine: sa.Engine, device: str, reason: str, payload: bytes, at_s: float) -> None:
    """Keep a batch, and delete those that are too many.

    Args:
        engine: SQLite or PostgreSQL.
        device: The device that sent it.
        reason: What is wrong with it.
        payload: As it came.
        at_s: Wall time.
    """
    row = {
        "at_s": at_s,
        "device": device[:MAX_DEVICE],
        "reason": " ".join(reason.replace("\0", " ").split())[:MAX_REASON],
        "size_bytes": len(payload),
        "payload": payload[:MAX_PAYLOAD_BYTES],
    }
    with engine.begin() as connection:
        connection.execute(sa.insert(dead_letter), row)
        own = dead_letter.c.device == row["device"]
        connection.execute(_beyond(MOST_OF_DEVICE, own))
        connection.execute(_beyond(MOST, sa.true()))


def read(engine: sa.Engine, device: str = "") -> list[DeadLetter]:
    """Return what is kept, the newest first.

    Args:
        engine: SQLite or PostgreSQL.
        device: Only those of this one; empty for all.
    """
    column = dead_letter.c
    query = sa.select(
        column.at_s, column.device, column.reason, column.size_bytes, column.payload
    ).order_by(column.id.desc())
    if device:
        query = query.where(column.device == device)
    with engine.connect() as connection:
        return [DeadLetter._make(row) for row in connection.execute(query.limit(MOST))]


def _beyond(most: int, among: sa.ColumnElement[bool]) -> sa.Delete:
    """Return the statement that deletes all but the newest."""
    column = dead_letter.c
    oldest = sa.select(column.id).where(among).order_by(column.id.desc()).limit(1).offset(most - 1)
    return sa.delete(dead_letter).where(among, column.id < oldest.scalar_subquery())
