"""Reads and writes many rows in one statement, with SQLite and with PostgreSQL.

SQLAlchemy builds a statement for each call; for a row of telemetry that takes longer than the
database does. So these statements are texts, made once for each table.

Rules:
- SQLite gets the rows one by one in one call of the driver, PostgreSQL as one array for each column
  (`unnest`), or through COPY if none of them exists, which takes half as long: for each that is the
  fastest way that its driver has.
- Names of tables and columns are those of our own tables, never from outside.
- Keys are given once each: PostgreSQL refuses to write a row twice in a statement.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

KEYS_AT_ONCE: Final = 500
"""Keys in one statement of SQLite, which has a text of its own for each number of them."""

Rows = Sequence[tuple[Any, ...]]


def upsert(connection: sa.Connection, table: sa.Table, rows: Rows) -> None:
    """Write rows; those that exist get the new values.

    Args:
        connection: In a transaction.
        table: With a primary key; the rows have all its columns, in their order.
        rows: Any number of them.
    """
    if rows:
        _write(connection, _upsert_text(table, connection.dialect.name), rows)


def append(connection: sa.Connection, table: sa.Table, rows: Rows) -> None:
    """Write rows of which none exists.

    Args:
        connection: In a transaction.
        table: With a primary key; the rows have all its columns, in their order.
        rows: Any number of them.

    Raises:
        sqlalchemy.exc.IntegrityError: One exists.
    """
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        statement = _insert_text(table, "sqlite").removesuffix(" ON CONFLICT DO NOTHING")
        connection.exec_driver_sql(statement, list(rows))
    else:
        _copy(connection, table, rows)


def insert_missing(connection: sa.Connection, table: sa.Table, rows: Rows) -> None:
    """Write rows; those that exist stay as they are.

    Args:
        connection: In a transaction.
        table: With a primary key; the rows have all its columns, in their order.
        rows: Any number of them, in an order that all transactions keep.
    """
    if rows:
        _write(connection, _insert_text(table, connection.dialect.name), rows)


def matching(
    connection: sa.Connection, table: sa.Table, keys: Rows, *, lock: bool = False
) -> Iterator[tuple[Any, ...]]:
    """Read the rows that have some keys.

    Args:
        connection: In a transaction.
        table: The keys have the columns of its primary key, in their order.
        keys: Any number of them.
        lock: Whether other transactions that lock them wait until this one ends.

    Yields:
        Each row that exists, with all columns, in any order.
    """
    if not keys:
        return
    statement = _matching_text(table, connection.dialect.name, lock=lock)
    if connection.dialect.name == "sqlite":
        none = (None,) * len(keys[0])
        for start in range(0, len(keys), KEYS_AT_ONCE):
            some = list(keys[start : start + KEYS_AT_ONCE])
            some += [none] * (KEYS_AT_ONCE - len(some))
            values = tuple(chain.from_iterable(some))
            # All at once: a call for each row takes longer than the database.
            yield from connection.exec_driver_sql(statement, values).all()
    else:
        values = tuple(map(list, zip(*keys, strict=True)))
        yield from connection.exec_driver_sql(statement, values).all()


def _write(connection: sa.Connection, statement: str, rows: Rows) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(statement, list(rows))
    else:
        columns = [list(column) for column in zip(*rows, strict=True)]
        connection.exec_driver_sql(statement, tuple(columns))


def _copy(connection: sa.Connection, table: sa.Table, rows: Rows) -> None:
    # SQLAlchemy has no COPY; what the driver raises is told as SQLAlchemy tells it.
    names = ", ".join(column.name for column in table.columns)
    statement = f"COPY {table.name} ({names}) FROM STDIN (FORMAT BINARY)"
    driver: Any = connection.connection.driver_connection
    errors = connection.dialect.loaded_dbapi.Error
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(_types(table))
            for row in rows:
                copy.write_row(row)
    except errors as exc:
        raise sa.exc.DBAPIError.instance(statement, None, exc, errors) from exc


@functools.cache
def _types(table: sa.Table) -> list[str]:
    """Return the names that the driver has for the types of the columns."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    return [_base(column.type.compile(dialect)).lower() for column in table.columns]


@functools.cache
def _insert_text(table: sa.Table, dialect: str) -> str:
    names = ", ".join(column.name for column in table.columns)
    source = f"VALUES ({', '.join('?' * len(table.columns))})"
    if dialect != "sqlite":
        source = f"SELECT * FROM {_unnested(tuple(table.columns))}"  # noqa: S608
    return f"INSERT INTO {table.name} ({names}) {source} ON CONFLICT DO NOTHING"


@functools.cache
def _upsert_text(table: sa.Table, dialect: str) -> str:
    key = ", ".join(column.name for column in table.primary_key)
    changed = ", ".join(
        f"{column.name} = excluded.{column.name}"
        for column in table.columns
        if not column.primary_key
    )
    start = _insert_text(table, dialect).removesuffix(" DO NOTHING")
    return f"{start} ({key}) DO UPDATE SET {changed}"


@functools.cache
def _matching_text(table: sa.Table, dialect: str, *, lock: bool) -> str:
    key = tuple(table.primary_key)
    names = ", ".join(f"{table.name}.{column.name}" for column in table.columns)
    wanted = ", ".join(f"k{at}" for at in range(len(key)))
    same = " AND ".join(f"{table.name}.{column.name} = k{at}" for at, column in enumerate(key))
    if dialect != "sqlite":
        source = f"{_unnested(key)} AS wanted ({wanted})"
        # In one order, so that two transactions cannot each wait for the other.
        last = f" ORDER BY {wanted} FOR UPDATE OF {table.name}" if lock else ""
        return f"SELECT {names} FROM {source} JOIN {table.name} ON {same}{last}"  # noqa: S608
    one = f"({', '.join('?' * len(key))})"
    values = ", ".join([one] * KEYS_AT_ONCE)
    # CROSS keeps the order: each key is looked up, and the table is not read whole.
    return (
        f"WITH wanted ({wanted}) AS (VALUES {values}) "  # noqa: S608
        f"SELECT {names} FROM wanted CROSS JOIN {table.name} ON {same}"
    )


def _unnested(columns: Sequence[sa.Column[Any]]) -> str:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    arrays = [f"%b::{_base(column.type.compile(dialect))}[]" for column in columns]
    return f"unnest({', '.join(arrays)})"


def _base(name: str) -> str:
    """Return a type without its length: the column has it."""
    return name.partition("(")[0]
