"""What a saved query of the telemetry may be called, and how much of them there may be.

Rules:
- Saved queries are shared by all operators and live in the database, so all is bounded.
"""

from __future__ import annotations

from typing import Final

from controller.errors import InvalidRequestError
from telemetry.limits import is_name

MAX_QUERIES: Final = 200
MAX_QUERY_BYTES: Final = 4096
"""Of one query, as JSON."""

MAX_SAVED_BY_CHARS: Final = 64
SHOWN: Final = 64


def check_metric(metric: str) -> None:
    """Refuse what no metric can be called.

    Raises:
        InvalidRequestError: It is no name of a metric.
    """
    if not is_name(metric):
        raise InvalidRequestError(
            f"not a name of a metric: {metric[:SHOWN]!r}",
            remedy="`fleet telemetry metrics` shows those that devices have reported",
        )


def check_size(size_bytes: int) -> None:
    """Refuse a query that is too long to be kept.

    Raises:
        InvalidRequestError: It is.
    """
    if size_bytes > MAX_QUERY_BYTES:
        raise InvalidRequestError(
            f"the query has {size_bytes} bytes as JSON, and at most {MAX_QUERY_BYTES} are kept",
            remedy="shorten its conditions or its selector",
        )


def checked_author(saved_by: str) -> str:
    """Return the name of whoever saves a query.

    Raises:
        InvalidRequestError: It is too long, or no line of text.
    """
    if len(saved_by) > MAX_SAVED_BY_CHARS or not (saved_by.isprintable() or not saved_by):
        raise InvalidRequestError(
            f"saved_by is longer than {MAX_SAVED_BY_CHARS} characters, or not printable",
            remedy="give a short name",
        )
    return saved_by
