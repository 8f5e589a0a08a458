"""What the database's faults are for those who use telemetry: one kind of error, with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from telemetry.errors import TelemetryStoreError


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise faults of the database as our own.

    Raises:
        TelemetryStoreError: The database failed.
    """
    try:
        yield
    except SQLAlchemyError as exc:
        raise TelemetryStoreError(
            f"the telemetry database failed: {cause_of(exc)}",
            remedy="check that the database runs and that its migrations are applied",
        ) from exc


def cause_of(exc: SQLAlchemyError) -> str:
    """Return the words of the database's driver, on one line."""
    cause = getattr(exc, "orig", None) or exc
    return " ".join(str(cause).split())
