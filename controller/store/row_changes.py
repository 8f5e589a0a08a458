"""Rows that a message may change: read by one statement, and written together by what has changed.

SQLAlchemy's unit of work takes a millisecond of the processor for a message, more than all else
about it. Here a row is an object of its table's class that no session knows.

Rules:
- Only columns that have another value than was read are written.
- Nothing is written before `write`. Until then no statement sees a change.
- Tables are written in one order, so that transactions do not wait for each other in a circle.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DeviceModelRow
from controller.store.rollout_tables import DeploymentRow
from controller.store.tables import Base

R = TypeVar("R", bound=Base)

ORDER: Final[tuple[type[Base], ...]] = (DeviceRow, DeviceModelRow, DeploymentRow)
"""The tables that are written, in their order."""

_OLD: Final = "old_"
"""What the parameters of the conditions begin with: no column has such a name."""


class _Read(NamedTuple):
    row: Base
    before: Mapping[str, Any]


class RowChanges:
    """The rows of some devices, and what is to be written of them."""

    def __init__(self) -> None:
        self._read: list[_Read] = []
        self._statements: defaultdict[int, defaultdict[sa.Executable, list[dict[str, Any]]]]
        self._statements = defaultdict(lambda: defaultdict(list))
        """By the number of their table in `ORDER`."""

    def read(self, kind: type[R], values: Mapping[str, Any]) -> R:
        """Return a row as it was read; what is changed of it will be written."""
        row = kind()
        vars(row).update(values)
        self._read.append(_Read(row, values))
        return row

    def add(self, row: Base) -> None:
        """Let a row be inserted as it will be then."""
        self._read.append(_Read(row, {}))

    def remove(self, row: Base) -> None:
        """Let a row be deleted, and nothing else be done with it."""
        known = [each for each in self._read if each.row is row]
        self._read = [each for each in self._read if each.row is not row]
        if any(each.before for each in known):
            self.put(type(row), _delete(type(row)), key_of(row))

    def put(self, kind: type[Base], statement: sa.Executable, values: dict[str, Any]) -> None:
        """Let a statement, built once, be carried out for its parameters.

        Args:
            kind: The table that it changes.
            statement: The same object each time.
            values: The parameters.
        """
        self._statements[ORDER.index(kind)][statement].append(values)

    def write(self, session: Session) -> None:
        """Write what has changed since the last time.

        Args:
            session: The transaction.
        """
        for at, (row, before) in enumerate(self._read):
            now = vars(row)
            if not before:
                values = {name: now[name] for name in _columns(type(row))}
                self.put(type(row), _insert(type(row)), values)
                self._read[at] = _Read(row, values)
                continue
            changed = {name: now[name] for name in before if now[name] != before[name]}
            if changed:
                update = _update(type(row), tuple(changed))
                self.put(type(row), update, {**changed, **key_of(row)})
                self._read[at] = _Read(row, {**before, **changed})
        if not self._statements:
            return
        connection = session.connection()
        for _, of_table in sorted(self._statements.items()):
            for statement, parameters in of_table.items():
                connection.execute(statement, parameters)
        self._statements.clear()


def key_is(kind: type[Base]) -> sa.ColumnElement[bool]:
    """Return the condition that a row has the key that `old_` parameters name."""
    return sa.and_(*(column == sa.bindparam(_OLD + column.name) for column in _key(kind)))


def key_of(row: Base) -> dict[str, Any]:
    """Return the parameters of `key_is` for a row."""
    return {_OLD + column.name: getattr(row, column.name) for column in _key(type(row))}


@functools.cache
def _key(kind: type[Base]) -> Sequence[sa.Column[Any]]:
    return tuple(kind.metadata.tables[kind.__tablename__].primary_key)


@functools.cache
def _columns(kind: type[Base]) -> Sequence[str]:
    return tuple(column.name for column in kind.metadata.tables[kind.__tablename__].columns)


@functools.cache
def _update(kind: type[Base], names: Sequence[str]) -> sa.Update:
    table = kind.metadata.tables[kind.__tablename__]
    return sa.update(table).where(key_is(kind)).values({name: sa.bindparam(name) for name in names})


@functools.cache
def _insert(kind: type[Base]) -> sa.Insert:
    return sa.insert(kind.metadata.tables[kind.__tablename__])


@functools.cache
def _delete(kind: type[Base]) -> sa.Delete:
    return sa.delete(kind.metadata.tables[kind.__tablename__]).where(key_is(kind))
