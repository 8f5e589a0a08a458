"""The tables of a spool's file. Every function works within its caller's transaction."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import msgspec

from wire.codec import from_msgpack, to_msgpack
from wire.errors import WireFormatError
from wire.messages import decode_message
from wire.telemetry import Event, GaugePoint, TelemetryBatch

FORMAT_VERSION = 1
_SCHEMA = """
CREATE TABLE file (name TEXT NOT NULL);
CREATE TABLE loss (dropped INTEGER NOT NULL);
CREATE TABLE boot (boot TEXT PRIMARY KEY, next_sequence INTEGER NOT NULL);
CREATE TABLE batch (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  boot TEXT NOT NULL, sequence INTEGER NOT NULL, dropped INTEGER NOT NULL,
  size INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (boot, sequence)
);
CREATE INDEX batch_size ON batch (size);
CREATE TABLE event (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at_s REAL NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL
)
"""
_PARTS = (
    "ALTER TABLE batch ADD COLUMN holds INTEGER NOT NULL DEFAULT 7",
    "CREATE INDEX batch_holds ON batch (holds)",
)
"""Beside the tables above since version 0.2; older agents read and write the file all the same."""

GAUGES, FIGURES, EVENTS = 1, 2, 4
"""What a batch may hold, the least important first: readings of the device; counters and
histograms, which tell of requests; events."""

FAULTS = (OSError, sqlite3.Error, TypeError, ValueError, OverflowError)
"""What the use of a file may raise. Python's own errors come from values of a damaged file: text
that is not UTF-8, a value of another type, a number that is too large."""

HEAD_BYTES = 100
_WRITE_VERSION_AT = 18  # https://www.sqlite.org/fileformat.html#file_format_version_numbers
_MAX_ID = 2**62
_HIGHEST_ID = """
SELECT max((SELECT coalesce(max(seq), 0) FROM sqlite_sequence),
           (SELECT coalesce(max(id), 0) FROM batch), (SELECT coalesce(max(id), 0) FROM event))
"""
_DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # a table or column is missing
    sqlite3.SQLITE_CONSTRAINT,  # the counters disagree with the batches
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
}
_UNWRITABLE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
}


class DamagedFileError(ValueError):
    """SQLite can read the file, but its content is not what we wrote."""


def check_head(head: bytes) -> None:
    """Check what SQLite itself would take for a file that nobody may write.

    Args:
        head: How the file begins; empty for a new one.

    Raises:
        DamagedFileError: No version of SQLite that we use wrote it.
    """
    if len(head) == HEAD_BYTES and head[_WRITE_VERSION_AT] not in {1, 2}:
        raise DamagedFileError("its header is not one that we write")


def prepare(db: sqlite3.Connection) -> str:
    """Make the tables in a new file; check an old one for damage.

    Args:
        db: Within a transaction.

    Returns:
        The file's name.

    Raises:
        DamagedFileError: Not our file, or damaged.
    """
    version = read_number(db, "PRAGMA user_version")
    if version == 0 and read_number(db, "SELECT count(*) FROM sqlite_master") == 0:
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO file VALUES (?)", (secrets.token_hex(4),))
        db.execute("INSERT INTO loss VALUES (0)")
        db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    elif version != FORMAT_VERSION:
        raise DamagedFileError(f"it has the format {version}, not {FORMAT_VERSION}")
    if all(row[1] != "holds" for row in db.execute("PRAGMA table_info(batch)").fetchall()):
        for statement in _PARTS:
            db.execute(statement)
    found = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != ("ok",):
        raise DamagedFileError(f"{found}")
    if read_number(db, _HIGHEST_ID) > _MAX_ID:
        raise DamagedFileError("no further rows can be numbered")
    name = db.execute("SELECT name FROM file").fetchone()
    if name is None:
        raise DamagedFileError("it has no name")
    return str(name[0])


def insert_batch(db: sqlite3.Connection, batch: TelemetryBatch) -> None:
    """Keep a batch until it is acknowledged, and its events beyond that."""
    body = to_msgpack(batch)
    db.execute(
        "INSERT INTO batch (boot, sequence, dropped, size, body, holds) VALUES (?, ?, ?, ?, ?, ?)",
        (batch.boot_id, batch.sequence, batch.dropped, len(body), body, _held(batch)),
    )
    db.executemany(
        "INSERT INTO event (at_s, kind, body) VALUES (?, ?, ?)",
        [(event.at_s, event.kind, to_msgpack(event)) for event in batch.events],
    )


def make_room(db: sqlite3.Connection, limit_bytes: int) -> None:
    """Drop the oldest of the least important until the size of all batches is within a limit."""
    excess = read_number(db, "SELECT coalesce(sum(size), 0) FROM batch") - limit_bytes
    for part in (GAUGES, FIGURES, EVENTS):
        while excess > 0 and (row := _oldest_with(db, part)) is not None:
            excess -= _drop_part(db, row, part)


def _held(batch: TelemetryBatch) -> int:
    """Return what a batch holds."""
    held = EVENTS if batch.events else 0
    for point in batch.points:
        held |= GAUGES if isinstance(point, GaugePoint) else FIGURES
    return held


def _oldest_with(db: sqlite3.Connection, part: int) -> int | None:
    """Return the oldest batch that holds a part; any other values are those of a damaged file."""
    oldest = "SELECT min(id) FROM batch WHERE holds = ?"
    held = [holds for holds in range(GAUGES | FIGURES | EVENTS, 0, -1) if holds & part]
    if part == EVENTS:
        oldest, held = "SELECT min(id) FROM batch WHERE holds >= ?", [-_MAX_ID]
    rows = [db.execute(oldest, (holds,)).fetchone()[0] for holds in held]
    return min((row for row in rows if row is not None), default=None)


def _drop_part(db: sqlite3.Connection, row: int, part: int) -> int:
    """Drop a part of a batch, or all of it if nothing else is left; return the bytes that gives."""
    found = "SELECT size, dropped, CAST(body AS BLOB) FROM batch WHERE id = ?"
    size, dropped, body = db.execute(found, (row,)).fetchone()
    left = None if part == EVENTS else _without(body, part)
    if left is None:
        _drop(db, row, dropped)
        return int(size)
    body = to_msgpack(left)
    update = "UPDATE batch SET body = ?, size = ?, holds = ? WHERE id = ?"
    db.execute(update, (body, len(body), _held(left), row))
    db.execute("UPDATE loss SET dropped = dropped + 1")
    return int(size) - len(body)


def _without(body: bytes, part: int) -> TelemetryBatch | None:
    """Return a batch without a part; None if nothing is left, or it cannot be read."""
    try:
        batch = decode_message(body, TelemetryBatch, packed=True)
    except WireFormatError:
        return None
    is_gauge = part == GAUGES
    points = tuple(p for p in batch.points if isinstance(p, GaugePoint) is not is_gauge)
    left = msgspec.structs.replace(batch, points=points)
    return left if left.points or left.events else None


def _drop(db: sqlite3.Connection, row: int, dropped: int) -> None:
    """Drop a batch; count it as lost, together with the earlier losses that it would report."""
    db.execute("DELETE FROM batch WHERE id = ?", (row,))
    db.execute("UPDATE loss SET dropped = dropped + 1 + ?", (dropped,))


def oldest_batches(db: sqlite3.Connection, limit: int) -> list[tuple[TelemetryBatch, bytes]]:
    """Return the oldest batches with their bytes; drop those that cannot be read."""
    # A flipped bit can turn a blob into a text of the same bytes.
    statement = "SELECT id, dropped, CAST(body AS BLOB) FROM batch ORDER BY id LIMIT ?"
    found = []
    for row, dropped, body in db.execute(statement, (limit,)).fetchall():
        try:
            found.append((decode_message(body, TelemetryBatch, packed=True), body))
        except WireFormatError:
            # SQLite does not detect a flipped bit; the device would send the batch for ever.
            _drop(db, row, dropped)
    return found


def move(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Append all that one spool holds to another; the caller closes the first.

    Args:
        source: The spool to read.
        target: The spool to write, within a transaction.
    """
    for table, columns in (
        ("boot", "boot, next_sequence"),
        ("batch", "boot, sequence, dropped, size, body, holds"),
        ("event", "at_s, kind, body"),
    ):
        marks = ", ".join("?" * len(columns.split(",")))
        order = "rowid" if table == "boot" else "id"
        rows = source.execute(f"SELECT {columns} FROM {table} ORDER BY {order}")  # noqa: S608 - fixed text
        target.executemany(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", rows)  # noqa: S608 - fixed text
    lost = read_number(source, "SELECT dropped FROM loss")
    target.execute("UPDATE loss SET dropped = dropped + ?", (lost,))


def newest_events(
    db: sqlite3.Connection, kinds: tuple[str, ...], since_s: float, limit: int
) -> list[Event]:
    """Return the newest events of some kinds, or of all, oldest first."""
    found: list[Event] = []
    statement = "SELECT kind, CAST(body AS BLOB) FROM event WHERE at_s >= ? ORDER BY id DESC"
    with closing(db.execute(statement, (since_s,))) as rows:
        for kind, body in rows:
            if len(found) >= limit:
                break
            if not kinds or kind in kinds:
                found.extend(_decoded(body))
    return found[::-1]


def _decoded(body: bytes) -> Iterator[Event]:
    try:
        yield from_msgpack(body, Event)
    except WireFormatError:
        return


def read_number(db: sqlite3.Connection, statement: str, *parameters: str) -> int:
    """Return the one number that a statement finds.

    Args:
        db: Within a transaction.
        statement: SQL.
        parameters: The values for its question marks.

    Returns:
        The number.

    Raises:
        DamagedFileError: There is none.
    """
    row = db.execute(statement, parameters).fetchone()
    if row is None or not isinstance(row[0], int):
        raise DamagedFileError("a counter is missing")
    return row[0]


def is_damage(exc: Exception) -> bool:
    """Tell whether an error means that the file is lost, not that the disk is full or slow."""
    if not isinstance(exc, sqlite3.Error):
        return not isinstance(exc, OSError)
    # Without a code it is of Python: a text that is not UTF-8, or a wrong use of the library.
    code = getattr(exc, "sqlite_errorcode", None)
    if code is None:
        return not isinstance(exc, sqlite3.ProgrammingError)
    return code & 0xFF in _DAMAGE


def is_unwritable(exc: Exception) -> bool:
    """Tell whether an error means that the disk is full, read-only or broken."""
    code = getattr(exc, "sqlite_errorcode", -1)
    return isinstance(exc, OSError) or (code >= 0 and code & 0xFF in _UNWRITABLE)
