"""What it means that the database forbids a change for what others do at the same time.

Rules:
- Orders look for what contradicts them, and say it with its name. A constraint tells of what
  another order did between that look and the change, so the answer is that, and to try again.
- Transactions lock in one order. Where two wait for each other all the same, PostgreSQL ends one,
  which has done nothing then; who asked for it is told so.
- The text of the database is for the log alone.
"""

from __future__ import annotations

import logging
from typing import Final

from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from controller.errors import ConflictError, DatabaseError

_IN_ONE_ROLLOUT: Final = (
    "uq_deployment_unfinished",  # as PostgreSQL says it
    "deployment.device, deployment.model",  # as SQLite does
)
_RACES: Final = ("unique constraint", "foreign key constraint")
"""What else another order can bring about; all the rest is a fault of the controller."""

_CIRCLE: Final = "40P01"
"""How PostgreSQL says that transactions waited for each other."""

_AGAIN: Final = "try again: the answer then says what is in the way"

_log = logging.getLogger(__name__)


def conflict_of(exc: IntegrityError) -> ConflictError:
    """Return what a user is told of a change that a constraint forbids.

    Args:
        exc: What the database said.
    """
    text = next(iter(str(exc.orig).splitlines()), "")
    _log.warning("a constraint of the database forbids a change: %s", text)
    if any(name in text for name in _IN_ONE_ROLLOUT):
        return ConflictError(
            "a device joined another unfinished rollout of the model just now", remedy=_AGAIN
        )
    if any(kind in text.lower() for kind in _RACES):
        return ConflictError("another order has just changed what this one is about", remedy=_AGAIN)
    return ConflictError(
        "the database does not take what this order changes",
        remedy="the log of the controller says why; report it",
    )


def circle_of(exc: SQLAlchemyError) -> DatabaseError | None:
    """Return what a user is told of a transaction that was ended for another; None for others.

    Args:
        exc: What the database said.
    """
    if getattr(getattr(exc, "orig", None), "sqlstate", None) != _CIRCLE:
        return None
    _log.warning("the database ended a transaction: it and another one waited for each other")
    return DatabaseError(
        "another change of the same devices or rollouts came in between, and nothing was changed",
        remedy="try again",
    )
