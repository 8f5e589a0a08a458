"""Parts of long lists, as statements (`controller.domain.paging`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Integer, Select, and_, func, or_
from sqlalchemy.orm import InstrumentedAttribute

from controller.domain.paging import NEVER_S, PageRequest

Statement = TypeVar("Statement", bound=Select[*tuple[Any, ...]])
Column = InstrumentedAttribute[Any] | ColumnElement[Any]


def paged(
    statement: Statement, page: PageRequest, columns: Mapping[str, Column], name: Column
) -> Statement:
    """Return the statement of a part of a list, and of one thing more: it tells whether it ends.

    Args:
        statement: What selects the whole list.
        page: Which part.
        columns: What each key of the list is in the database.
        name: What tells one row from all others.
    """
    value = columns[page.key]
    if page.after is not None:
        after = page.after
        number = isinstance(value.type, Integer) and not isinstance(after.value, str)
        at = int(after.value) if number else after.value  # of one type: so an index is used
        further = name < after.name if page.reverse else name > after.name
        beyond = value < at if page.descends else value > at
        statement = statement.where(or_(beyond, and_(value == at, further)))
    return statement.order_by(
        value.desc() if page.descends else value, name.desc() if page.reverse else name
    ).limit(page.limit + 1)


def known(column: Column) -> ColumnElement[Any]:
    """Return a column of times in which an unknown one stands before all others."""
    return func.coalesce(column, NEVER_S)
