"""The database: connections, transactions and migrations.

Rules:
- No exception of SQLAlchemy or of a driver leaves this module: it becomes a `FleetError`.
- A power cut undoes no transaction that was committed.
- The file of an SQLite database is private (0600) from its first moment, whatever the umask.
- A transaction that may write takes SQLite's write lock at its start, so that it never fails
  half way because another writer was faster.
- Every statement works with SQLite and with PostgreSQL.
- The first transaction that a request commits also holds the request's row of the audit log: there
  is no change without its row, and no row of a change that was rolled back.
- Only `controller.store` knows SQLAlchemy. Services open a `Transaction` here and hand it to the
  functions of this package.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import CursorResult, Update, event
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from controller.database_url import sqlite_path
from controller.domain.audit_chain import COMMITTED
from controller.errors import DatabaseError, InvalidRequestError, SettingsError
from controller.store import acting, audit
from controller.store.conflicts import circle_of, conflict_of
from wire.files import PRIVATE

BATCH = 500
"""The greatest number of devices that one statement names."""

BUSY_TIMEOUT_MS = 60_000
"""How long a transaction waits for another one that writes to SQLite. To revoke a release that very
many devices run takes seconds, more on a busy machine, and a message that was taken must not fail
for it."""

MANY = 20 * BATCH
"""Of more devices than that, one statement that reads all of them is faster than batches."""

_MIGRATIONS = Path(__file__).parent / "migrations"
_READ_ONLY = "fleet_read_only"
_FAILED = "the database failed"
_LOST = (
    "database_url names no database, or a damaged one: stop the controller and restore a backup, "
    "`fleet controller restore`"
)
_REMEDIES = {
    "disk is full": "make room on the disk of the database; the controller goes on by itself",
    "no space left on device": "make room on the disk of the database; it goes on by itself",
    "readonly database": "let the controller's user write the database's file and its folder, and "
    "start the controller again",
    "unable to open database file": "let the controller's user write the folder of the database",
    "file is not a database": _LOST,
    "malformed": _LOST,
}
"""What helps, by a part of what SQLite or PostgreSQL says."""


class JsonText(str):
    """JSON that goes into a column of JSON as it is, as it was made before others had to wait."""

    __slots__ = ()


Transaction = Session
"""What a service hands to the functions of this package; only they call its methods."""


class Database:
    """Connections to the database.

    Args:
        url: An SQLAlchemy URL of SQLite (a file) or PostgreSQL.

    Raises:
        SettingsError: Not such a URL.
    """

    def __init__(self, url: str) -> None:
        self.engine = _engine(url)
        self.reading_engine = self.engine.execution_options(**{_READ_ONLY: True})
        """The same connections; what begins here only reads, and holds up no writer."""
        self._is_closed = False
        self._fault = ""
        event.listen(self.engine, "checkin", self._end_late)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction: commit at the end, roll back on any error.

        Yields:
            The transaction.

        Raises:
            conflict_of: A constraint of the database forbids it: a `ConflictError`.
            InvalidRequestError: A value cannot be in a database, such as a text with a NUL.
            DatabaseError: The database does not work, or ended it for another one.
        """
        try:
            with Transaction(self.engine, expire_on_commit=False) as session, session.begin():
                yield session
                noted = _note(session)
            self._fault = ""
            if noted is not None:
                audit.tell(noted)
        except IntegrityError as exc:
            raise conflict_of(exc) from exc
        except DataError as exc:
            raise InvalidRequestError("the database cannot store a value of this request") from exc
        except SQLAlchemyError as exc:
            self._fault = _remedy(exc)
            failed = DatabaseError(f"{_FAILED}: {_first_line(exc)}", remedy=self._fault)
            raise circle_of(exc) or failed from exc

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a transaction that only reads and sees one state of the database.

        Yields:
            The transaction.

        Raises:
            InvalidRequestError: A value cannot be in a database, such as a text with a NUL.
            DatabaseError: The database does not work.
        """
        try:
            with Transaction(self.reading_engine, expire_on_commit=False) as session:
                yield session
        except DataError as exc:
            raise InvalidRequestError("the database cannot store a value of this request") from exc
        except SQLAlchemyError as exc:
            raise DatabaseError(f"{_FAILED}: {_first_line(exc)}", remedy=_remedy(exc)) from exc

    def needs(self) -> list[str]:
        """Return what somebody must do so that it can be written; empty if the last write could."""
        return [self._fault] if self._fault else []

    def close(self) -> None:
        """Close all connections; one that is used in a thread is closed when that is done."""
        self._is_closed = True
        self.engine.dispose()

    def _end_late(self, _connection: object, record: ConnectionPoolEntry) -> None:
        """Close a connection that comes back late: nobody would find it in a pool that is gone."""
        if self._is_closed:
            record.invalidate()


def _note(session: Transaction) -> audit.Noted | None:
    """Add the row of the request that is answered now, if the audit log has none of it."""
    act = acting.current()
    if act is None or act.is_noted:
        return None
    return audit.append(session, act, COMMITTED)


def migrate(url: str, revision: str = "head") -> None:
    """Bring a database to a revision of the schema.

    Args:
        url: An SQLAlchemy URL.
        revision: `head`, a revision, `-N` for N revisions down, or `base` for an empty database.

    Raises:
        SettingsError: Not a usable URL.
        DatabaseError: The database does not answer, or knows a newer schema than this program.
    """
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            if revision == "head" and has_today_schema(connection):
                return  # without loading any migration, at nearly every start
            config = alembic_config(connection)
            go = command.downgrade if _is_down(connection, config, revision) else command.upgrade
            go(config, revision)
            connection.commit()
    except CommandError as exc:
        raise DatabaseError(
            f"the database cannot be migrated: {_first_line(exc)}",
            remedy="run the version of this program that made it, or a newer one",
        ) from exc
    except SQLAlchemyError as exc:
        raise DatabaseError(
            f"the database cannot be migrated: {_first_line(exc)}",
            remedy=_remedy(exc) or "check database_url and that the database accepts connections",
        ) from exc
    finally:
        engine.dispose()


def is_empty(url: str) -> bool:
    """Tell whether a database has no tables yet.

    Args:
        url: An SQLAlchemy URL.

    Raises:
        SettingsError: Not a usable URL.
        DatabaseError: The database does not answer.
    """
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            return not sqlalchemy.inspect(connection).get_table_names()
    except SQLAlchemyError as exc:
        raise DatabaseError(f"{_FAILED}: {_first_line(exc)}", remedy=_remedy(exc)) from exc
    finally:
        engine.dispose()


def _is_down(connection: sqlalchemy.Connection, config: Config, revision: str) -> bool:
    """Tell whether a revision is older than the database's own."""
    if revision == "base" or revision.startswith("-"):
        return True
    present = MigrationContext.configure(connection).get_current_revision()
    if present is None:
        return False
    older = ScriptDirectory.from_config(config).walk_revisions("base", present)
    return revision in {script.revision for script in older} - {present}


def has_today_schema(connection: sqlalchemy.Connection) -> bool:
    """Tell whether a database has the newest schema that this program knows."""
    return MigrationContext.configure(connection).get_current_revision() == _newest_revision()


@functools.cache
def _newest_revision() -> str | None:
    return ScriptDirectory(str(_MIGRATIONS)).get_current_head()


def alembic_config(connection: sqlalchemy.Connection) -> Config:
    """Return Alembic's configuration for a connection; no file is read."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def changed_rows(
    session: Transaction, statement: Update, values: Mapping[str, object] | None = None
) -> int:
    """Carry out an UPDATE and return how many rows it changed.

    Args:
        session: The transaction.
        statement: The UPDATE.
        values: Its parameters, where it was built once for all of them. What the session holds of
            the rows does not change then.
    """
    if values is not None:
        session.flush()
        return session.connection().execute(statement, values).rowcount
    # Only a SELECT gives another kind of result.
    return int(cast("CursorResult[object]", session.execute(statement)).rowcount)


def in_batches(devices: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split a list of devices into batches that one statement can name."""
    for start in range(0, len(devices), BATCH):
        yield devices[start : start + BATCH]


def _engine(url: str) -> sqlalchemy.Engine:
    make_engine = functools.partial(sqlalchemy.create_engine, json_serializer=_json)
    try:
        parsed = sqlalchemy.make_url(url)
        if parsed.get_backend_name() == "postgresql":
            engine = make_engine(
                parsed.set(drivername="postgresql+psycopg"),
                pool_size=10,
                max_overflow=30,
                pool_pre_ping=True,
            )
        elif sqlite_path(url) is not None:
            if parsed.query:
                raise SettingsError(
                    "database_url gives SQLite options", remedy="leave out what follows the ?"
                )
            engine = make_engine(parsed, pool_size=10, max_overflow=30)
            event.listen(engine, "do_connect", _make_private)
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        else:
            raise SettingsError(
                "database_url names neither an SQLite file nor PostgreSQL",
                remedy="use sqlite:////path/to/control.db or postgresql://user@host/name",
            )
    except (ArgumentError, NoSuchModuleError, ImportError) as exc:
        raise SettingsError(
            "database_url is not a usable database URL",
            remedy="use sqlite:////path/to/control.db or postgresql://user@host/name",
        ) from exc
    return engine


def _json(value: object) -> str:
    return str(value) if isinstance(value, JsonText) else json.dumps(value)


def _make_private(
    _dialect: object, _record: object, arguments: list[str], _options: object
) -> None:
    """Make the file of a new database before SQLite does: what it makes, others may read.

    SQLite gives its logs the mode of this file.
    """
    with contextlib.suppress(OSError):  # it exists, or SQLite will say what is wrong
        os.close(os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's own
    # The driver's own transactions begin too late for isolation: ours begin in `_begin_sqlite`.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # NORMAL would sync only now and then, and a power cut would undo what was answered before.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.close()


def _begin_sqlite(connection: sqlalchemy.Connection) -> None:
    only_reads = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")


def _remedy(exc: SQLAlchemyError) -> str:
    """Return what helps against a fault; empty if it is not known."""
    text = str(exc).lower()
    return next((remedy for part, remedy in _REMEDIES.items() if part in text), "")


def _first_line(exc: BaseException | None) -> str:
    text = str(exc).strip().splitlines()
    return text[0][:200] if text else "no detail"
