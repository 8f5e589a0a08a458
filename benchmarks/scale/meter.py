"""What a piece of work costs a database: time, statements, and how long others may not write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from controller.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a piece of work cost."""

    wall_ms: float
    processor_ms: float
    statements: int
    locked_ms: float
    """The longest transaction that could write."""

    locked_processor_ms: float
    """The longest one by the processor time of its thread, which neighbours change less. The work
    of SQLite is in it, that of PostgreSQL is not."""


class Meter:
    """Counts what goes to a database.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._statements = 0
        self._locked_s = self._locked_processor_s = 0.0
        self._since_s: dict[int, tuple[float, float]] = {}
        engine = database.engine
        sa.event.listen(engine, "before_cursor_execute", self._count)
        sa.event.listen(engine, "begin", self._begin)
        sa.event.listen(engine, "commit", self._end)
        sa.event.listen(engine, "rollback", self._end)

    def of(self, work: Callable[[], object]) -> Cost:
        """Do something and return what it cost."""
        self._statements, self._locked_s, self._locked_processor_s = 0, 0.0, 0.0
        began_s, processor_s = time.perf_counter(), time.process_time()
        work()
        return Cost(
            wall_ms=(time.perf_counter() - began_s) * 1e3,
            processor_ms=(time.process_time() - processor_s) * 1e3,
            statements=self._statements,
            locked_ms=self._locked_s * 1e3,
            locked_processor_ms=self._locked_processor_s * 1e3,
        )

    def _count(self, *_arguments: Any) -> None:  # noqa: ANN401 - SQLAlchemy's own
        self._statements += 1

    def _begin(self, connection: sa.Connection) -> None:
        if not connection.get_execution_options().get("fleet_read_only", False):
            self._since_s[id(connection)] = time.perf_counter(), time.thread_time()

    def _end(self, connection: sa.Connection) -> None:
        since = self._since_s.pop(id(connection), None)
        if since is not None:
            self._locked_s = max(self._locked_s, time.perf_counter() - since[0])
            processor_s = time.thread_time() - since[1]
            self._locked_processor_s = max(self._locked_processor_s, processor_s)
