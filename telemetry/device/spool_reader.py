"""Reads a spool's events from another process, even if the spool's owner does not run.

Rules:
- The reader changes nothing, and makes no file if there is none.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from telemetry.device.spool_file import FAULTS, is_damage, newest_events
from telemetry.errors import SpoolError
from wire.telemetry import Event

BUSY_S = 5.0


def stored_events(path: Path, kinds: tuple[str, ...], since_s: float, limit: int) -> list[Event]:
    """Return what happened on a device, delivered or not.

    Args:
        path: The spool's file.
        kinds: Only these; empty for all.
        since_s: Only from this wall time on.
        limit: Only the newest ones, at most this many.

    Returns:
        Events, oldest first.

    Raises:
        SpoolError: There is no such file, it may not be read, or it is damaged.
    """
    try:
        path.stat()
    except OSError as exc:
        fact = (exc.strerror or str(exc)).lower()
        raise SpoolError(f"the telemetry spool {path} cannot be read: {fact}") from exc
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as db:
            return newest_events(db, kinds, since_s, limit)
    except FAULTS as exc:
        remedy = "run the command as the user of the agent"
        if is_damage(exc):
            remedy = "start the agent: it moves the damaged file aside and begins a new one"
        raise SpoolError(
            f"the telemetry spool {path} cannot be read: {exc}", remedy=remedy
        ) from exc
