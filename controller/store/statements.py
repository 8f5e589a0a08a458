"""What all modules here need of a statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from sqlalchemy import CursorResult, Update
from sqlalchemy.orm import Session

BATCH = 500
"""Devices that one statement names."""


def changed_rows(session: Session, statement: Update) -> int:
    """Carry out an UPDATE and return how many rows it changed."""
    # Only a SELECT gives another kind of result.
    return int(cast("CursorResult[object]", session.execute(statement)).rowcount)


def in_batches(devices: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut a list of devices so that no statement names too many."""
    for start in range(0, len(devices), BATCH):
        yield devices[start : start + BATCH]
