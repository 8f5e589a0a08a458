"""How large the audit log gets, how fast it grows and is checked, and what it adds to a request.

The rows are those of a day of work: rollouts, policies, uploads, one refusal in ten. Bytes are
those of the whole SQLite file, the index included. A row of its own is a transaction that the disk
has taken; a row in the transaction of a change adds only itself to that.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.harness import Row, against, alone, main
from controller.domain.audit_chain import AuditRow, ChainCheck
from controller.services.audit_log import AuditLog
from controller.store import audit
from controller.store.acting import Act, acting
from controller.store.database import Database, migrate
from wire.clock import SystemClock

CLOCK: Final = SystemClock()
MICROSECONDS: Final = 1e6
PAGE: Final = 100
KINDS: Final = (
    ("kim", "operator", "POST /v1/rollouts", "r3f9a01c2d4"),
    ("kim", "operator", "POST /v1/rollouts/{rollout}/pause", "r3f9a01c2d4"),
    ("max", "approver", "POST /v1/rollouts/{rollout}/approve", "r3f9a01c2d4"),
    ("ci", "operator", "PUT /v1/blobs/{sha256}", "9f2c" * 16),
    ("ci", "operator", "POST /v1/releases", "detector:2026.11.27"),
    ("home", "admin", "PUT /v1/policies/{policy}", "calm-at-night"),
    ("kim", "operator", "PATCH /v1/devices/{device}", "cam-berlin-0042"),
)


def act(number: int) -> Act:
    """Return a request as there are many."""
    actor, role, action, subject = KINDS[number % len(KINDS)]
    return Act(at_ms=1_795_000_000_000 + number, actor=actor, role=role, action=action,
               subject=subject)  # fmt: skip


def measure(quick: bool) -> list[Row]:
    """Fill a log and check it."""
    count, timed = (2_000, 50) if quick else (20_000, 300)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.db"
        migrate(f"sqlite:///{file}")
        database = Database(f"sqlite:///{file}")
        try:
            before_bytes = _size_bytes(database)
            _fill(database, count)
            row_bytes = (_size_bytes(database) - before_bytes) / count
            log = AuditLog(database)
            own_us = _each_us(timed, lambda n: log.write(act(n), 201))
            plain_us, with_us = _in_turn(
                timed, lambda _n: _change(database), lambda n: _noted_change(database, n)
            )
            checked_us = _check(log) / (count + 2 * timed)
        finally:
            database.close()
    return [
        alone("a row in SQLite", [row_bytes], unit="bytes"),
        alone("a row that is a transaction of its own", own_us, unit="us"),
        against("a transaction with its row", with_us, plain_us, unit="us", peer="without it"),
        alone("checking a row of a long log", [checked_us], unit="us"),
    ]


def _fill(database: Database, count: int) -> None:
    for start in range(0, count, PAGE):
        with database.transaction() as transaction:
            for number in range(start, start + PAGE):
                audit.append(transaction, act(number), "committed" if number % 10 else "403")


def _size_bytes(database: Database) -> int:
    with database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        page_bytes = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
    return int(pages) * int(page_bytes)


def _change(database: Database) -> None:
    with database.transaction() as transaction:
        transaction.connection().exec_driver_sql(
            "INSERT INTO policy_set (id, generation) VALUES (1, 1) "
            "ON CONFLICT (id) DO UPDATE SET generation = policy_set.generation + 1"
        )


def _noted_change(database: Database, number: int) -> None:
    with acting(act(number)):
        _change(database)


def _each_us(times: int, do: Callable[[int], None]) -> list[float]:
    return [_once_us(do, number) for number in range(times)]


def _in_turn(
    times: int, one: Callable[[int], None], other: Callable[[int], None]
) -> tuple[list[float], list[float]]:
    """Do both again and again, by turns: what else uses the disk slows both."""
    both = [(_once_us(one, number), _once_us(other, number)) for number in range(times)]
    return [pair[0] for pair in both], [pair[1] for pair in both]


def _once_us(do: Callable[[int], None], number: int) -> float:
    start_s = CLOCK.monotonic_s()
    do(number)
    return (CLOCK.monotonic_s() - start_s) * MICROSECONDS


def _check(log: AuditLog) -> float:
    """Read and check the whole log; return the microseconds that took.

    Raises:
        RuntimeError: It is not whole.
    """
    start_s, check = CLOCK.monotonic_s(), ChainCheck()
    while page := log.after(check.count, limit=PAGE):
        for entry in page:
            fields = {name: value for name, value in vars(entry).items() if name != "hash"}
            fault = check.fault(AuditRow(**fields), entry.hash)
            if fault is not None:
                raise RuntimeError(fault)
    return (CLOCK.monotonic_s() - start_s) * MICROSECONDS


if __name__ == "__main__":
    sys.exit(main("The audit log of the API", measure))
