"""Copies a whole database into an SQLite file, and back, while others use it.

Rules:
- A copy shows one moment: it is made by SQLite's online backup, or in one transaction of PostgreSQL
  that sees one snapshot.
- A copy is an SQLite file of the same schema, whatever the database is. So it can be put back into
  either kind.
- It is put only into a database without tables, and beside no log of another SQLite file. After a
  fault, what was put there is taken out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy
from sqlalchemy import Column, Table, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from controller.database_url import sqlite_path
from controller.errors import ConflictError, DatabaseError
from controller.store.all_tables import ALL_TABLES
from controller.store.database import Database, has_today_schema, migrate
from telemetry.server import partitions
from wire.errors import FleetError
from wire.files import PRIVATE, sync_directory

ROWS = 1000
"""Rows that are held in memory."""

VERSION_TABLE = "alembic_version"
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""How the names of the files end that SQLite keeps for one database."""


def copy_database(url: str, target: Path) -> None:
    """Copy a database into an SQLite file.

    Args:
        url: SQLAlchemy URL of the database; others may use it meanwhile.
        target: The file; it does not exist.

    Raises:
        SettingsError: Not a usable URL.
        DatabaseError: There is no database, it does not answer, or it is damaged.
    """
    source = sqlite_path(url)
    if source is not None:
        _copy_sqlite(source, target)
        return
    migrate(_url(target))
    with _faults("cannot be copied"), _engine(url) as old, _engine(_url(target)) as new:
        snapshot = old.execution_options(isolation_level="REPEATABLE READ")
        with snapshot.connect() as reader, new.begin() as writer:
            if not has_today_schema(reader):
                raise DatabaseError(
                    "the database has the schema of another version",
                    remedy="use the version of this program that the controller runs",
                )
            _copy_rows(reader, writer)


@contextlib.contextmanager
def put_back(copy: Path, url: str) -> Iterator[None]:
    """Put a copy into a database that has no tables, and bring it to today's schema.

    It is taken out again when the `with` block fails.

    Args:
        copy: As `copy_database` made it, perhaps with an earlier version; it may be changed.
        url: SQLAlchemy URL of the database.

    Yields:
        Nothing; the database is filled.

    Raises:
        SettingsError: Not a usable URL.
        ConflictError: The database has tables already.
        DatabaseError: It does not answer, or the copy is of a newer version.
    """
    target = sqlite_path(url)
    migrate(_url(copy))
    if target is None:
        _check_empty(url)
    else:
        _claim(target)
    try:
        if target is None:
            _fill(copy, url)
        else:
            _place(copy, target)
        yield
    except BaseException:
        if target is None:
            with contextlib.suppress(FleetError):
                migrate(url, "base")
        else:
            for path in _sqlite_files(target):
                path.unlink(missing_ok=True)
        raise


def _copy_sqlite(source: Path, target: Path) -> None:
    """Copy an SQLite file with SQLite's online backup.

    Raises:
        DatabaseError: There is none, or it is damaged.
    """
    if not source.is_file():
        raise DatabaseError(
            f"there is no database {source}", remedy="start the controller once, which makes it"
        )
    try:
        with (
            contextlib.closing(sqlite3.connect(source)) as old,
            contextlib.closing(sqlite3.connect(target)) as new,
        ):
            old.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")  # so that it is one file
            fault = new.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as exc:
        raise DatabaseError(f"the database {source} cannot be copied: {exc}") from exc
    if fault != "ok":
        raise DatabaseError(f"the database {source} is damaged: {fault}")


def _check_empty(url: str) -> None:
    """Insist on a database without tables.

    Raises:
        ConflictError: It has some.
        DatabaseError: It does not answer.
    """
    with _faults("cannot be filled"), _engine(url) as new:
        if set(sqlalchemy.inspect(new).get_table_names()) - {VERSION_TABLE}:
            raise ConflictError(
                "the database has tables already", remedy="name an empty one with --database"
            )


def _claim(target: Path) -> None:
    """Make an empty, private file where nothing is.

    Raises:
        ConflictError: There is a file already, or a log of one: SQLite would play it into the copy.
        OSError: It cannot be made.
    """
    for path in _sqlite_files(target):
        if os.path.lexists(path):
            raise ConflictError(
                f"{path} is there already", remedy="move it away, or name another with --database"
            )
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def _fill(copy: Path, url: str) -> None:
    """Put a copy into a database of another kind.

    Raises:
        DatabaseError: It does not answer, or refuses a row.
    """
    migrate(url)
    with (
        _faults("cannot be filled"),
        _engine(url) as new,
        _engine(_url(copy)) as old,
        old.connect() as reader,
        new.begin() as writer,
    ):
        _copy_rows(reader, writer)
        _go_on_counting(writer)


def _place(copy: Path, target: Path) -> None:
    """Make a copy the content of an SQLite file."""
    with copy.open("rb") as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(target.parent)


def _sqlite_files(database: Path) -> list[Path]:
    return [database.with_name(database.name + suffix) for suffix in SQLITE_SUFFIXES]


def _copy_rows(reader: sqlalchemy.Connection, writer: sqlalchemy.Connection) -> None:
    tables = ALL_TABLES
    for table in reversed(tables):  # a migration may have put rows there
        writer.execute(table.delete())
    for table in tables:
        own = _references_to_itself(table)
        _make_partitions(reader, writer, table)
        later: list[dict[str, object]] = []
        result = reader.execution_options(yield_per=ROWS).execute(select(table))
        for part in result.mappings().partitions():
            rows = [dict(row) for row in part]
            later += [row for row in rows if any(row[column.name] is not None for column in own)]
            without = dict.fromkeys((column.name for column in own), None)
            writer.execute(insert(table), [row | without for row in rows])
        for row in later:
            same = [column == row[column.name] for column in table.primary_key]
            values = {column.name: row[column.name] for column in own}
            writer.execute(update(table).where(*same).values(values))


def _make_partitions(
    reader: sqlalchemy.Connection, writer: sqlalchemy.Connection, table: Table
) -> None:
    if table.name in partitions.WIDTHS:
        span = select(sqlalchemy.func.min(table.c.minute), sqlalchemy.func.max(table.c.minute))
        first, last = reader.execute(span).one()
        if first is not None:
            partitions.make(writer, table, first, last)


def _references_to_itself(table: Table) -> list[Column[object]]:
    """Return the columns that name a row of the same table, which may come later."""
    return [key.parent for key in table.foreign_keys if key.column.table is table]


def _go_on_counting(connection: sqlalchemy.Connection) -> None:
    """Let PostgreSQL's sequences go on above the rows that were put in with their numbers."""
    for table in ALL_TABLES:
        column = table.autoincrement_column
        if column is None:
            continue
        greatest = connection.scalar(select(sqlalchemy.func.max(column)))
        sequence = sqlalchemy.func.pg_get_serial_sequence(table.name, column.name)
        if greatest is not None:
            connection.execute(select(sqlalchemy.func.setval(sequence, greatest)))


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


@contextlib.contextmanager
def _engine(url: str) -> Iterator[sqlalchemy.Engine]:
    database = Database(url)
    try:
        yield database.engine
    finally:
        database.close()


@contextlib.contextmanager
def _faults(what: str) -> Iterator[None]:
    """Turn errors of a database within a `with` block into ours.

    Raises:
        DatabaseError: A database does not answer, or refused a statement.
    """
    try:
        yield
    except SQLAlchemyError as exc:
        line = next(iter(str(exc).strip().splitlines()), "no detail")
        raise DatabaseError(f"the database {what}: {line[:200]}") from exc
