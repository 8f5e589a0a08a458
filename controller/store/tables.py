"""What the tables of the control state have in common.

Each subject has a module of its own beside this one, such as `controller.store.device_tables`;
`controller.store.all_tables` has them all.

Rules:
- The database forbids what the code forbids: every state column has a CHECK, every reference a
  foreign key, and a device has at most one unfinished deployment of each model.
- A table refers to one of another module by its column, not by its name as text, so that whoever
  writes into the one has loaded the other.
- Times are wall seconds since the epoch, because they outlive the process.
- The database keeps no secrets: only the digest of a token and the public key of a device.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, CheckConstraint, Double, MetaData
from sqlalchemy.orm import DeclarativeBase

NAME_CHARS = 63
DIGEST_CHARS = 64
MAX_DETAIL_CHARS = 500
MAX_CODE_CHARS = 64
ERROR_CHARS = MAX_DETAIL_CHARS + MAX_CODE_CHARS + 2


def one_of(column: str, states: type[StrEnum]) -> CheckConstraint:
    """Return a constraint: a column holds one of some states."""
    names = ", ".join(f"'{state}'" for state in states)
    return CheckConstraint(f"{column} IN ({names})", name=column)


class Base(DeclarativeBase):
    """All tables; constraints have names so that a migration can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {float: Double, dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012 - read by SQLAlchemy as a plain class attribute
