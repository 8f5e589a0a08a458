"""Databases that rows of telemetry are written into by their drivers alone."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

COLUMNS: Final = (
    "series_id int, minute int, device varchar(63), value_count bigint, total double precision, "
    "least double precision, greatest double precision, sketch {blob}, "
    "primary key (series_id, minute, device)"
)


class Sqlite:
    """SQLite: the store, and the driver alone."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fleet.db"
        self.url = f"sqlite:///{self.path}"
        self._bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self._bare.execute("PRAGMA journal_mode = WAL")
        self._bare.execute("PRAGMA synchronous = FULL")
        self._bare.execute(f"CREATE TABLE m ({COLUMNS.format(blob='blob')}) WITHOUT ROWID")

    def written_s(self, rows: Sequence[tuple[Any, ...]], at_once: int) -> float:
        """Write rows with the driver alone."""
        start_s = time.perf_counter()
        for begin in range(0, len(rows), at_once):
            self._bare.execute("BEGIN IMMEDIATE")
            some = rows[begin : begin + at_once]
            self._bare.executemany("INSERT INTO m VALUES (?, ?, ?, ?, ?, ?, ?, ?)", some)
            self._bare.execute("COMMIT")
        return time.perf_counter() - start_s


class Postgres:
    """PostgreSQL: the store, and COPY by the driver alone."""

    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = sa.create_engine(url)
        with self._engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE m ({COLUMNS.format(blob='bytea')})")

    def written_s(self, rows: Sequence[tuple[Any, ...]], at_once: int) -> float:
        """Write rows with the driver alone."""
        start_s = time.perf_counter()
        for begin in range(0, len(rows), at_once):
            with self._engine.begin() as connection:
                driver: Any = connection.connection.driver_connection
                with driver.cursor() as cursor, cursor.copy("COPY m FROM STDIN") as copy:
                    for row in rows[begin : begin + at_once]:
                        copy.write_row(row)
        return time.perf_counter() - start_s
