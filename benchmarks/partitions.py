"""Whether the table of devices should be partitioned by hash on PostgreSQL: a million rows.

Both tables have the columns and indexes of `device`; one is partitioned by the hash of its key into
`PARTS`. What is done is what messages do: note at random devices that they were heard, one
transaction each, on some connections at one time. Then dead rows are removed, and a list asks who
is offline.

- Rounds alternate between the two tables.
- The server has the settings that it has by default, but for the memory of its buffers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import sqlalchemy as sa

from benchmarks.databases.postgres import postgres
from benchmarks.harness import Row, against, main, not_measured
from controller.store.database import migrate
from wire.clock import SystemClock

CLOCK: Final = SystemClock()
PARTS: Final = 16
CONNECTIONS: Final = 4
ROUNDS: Final = 5
DEVICES, QUICK_DEVICES = 1_000_000, 20_000
UPDATES, QUICK_UPDATES = 2_000, 200
"""On each connection in a round."""

PLAIN, PARTED = "device_plain", "device_parted"
FILL = """
INSERT INTO {table} (id, state, public_key, profile_name, architecture, profile, agent_version,
    boot_id, online, reported_revision, last_error, enrolled_at_s, last_seen_at_s)
SELECT 'cam-' || lpad(n::text, 7, '0'), 'enrolled', repeat('a', 44), 'pi4', 'aarch64',
    '{{"name": "pi4", "memory_bytes": 4294967296}}', '0.1.0', repeat('b', 32), mod(n, 10) > 0,
    1, '', 1.79e9, 1.79e9 + n
FROM generate_series(1, {devices}) AS n
"""
HEARD = "UPDATE {table} SET last_seen_at_s = :now_s, reported_revision = reported_revision + 1 WHERE id = :id"  # noqa: E501
OFFLINE = "SELECT id FROM {table} WHERE NOT online AND last_seen_at_s < 1.8e9 ORDER BY last_seen_at_s LIMIT 100"  # noqa: E501


def measure(quick: bool) -> list[Row]:
    """Fill both tables and work on them by turns."""
    devices, updates = (QUICK_DEVICES, QUICK_UPDATES) if quick else (DEVICES, UPDATES)
    peer = f"partitioned into {PARTS}"
    with postgres() as url:
        if url is None:
            return [not_measured("devices heard", "PostgreSQL is not installed")]
        migrate(url)
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", pool_size=CONNECTIONS)
        try:
            _make(engine, devices)
            heard = _in_turn(lambda table, at: _heard_per_s(engine, table, devices, updates, at))
            cleaned = _in_turn(lambda table, _: _ran_s(engine, f"VACUUM {table}"), rounds=1)
            asked = _in_turn(
                lambda table, _: 1e3 * _ran_s(engine, OFFLINE.format(table=table)),
                rounds=3 * ROUNDS,
            )
        finally:
            engine.dispose()
    return [
        against(f"devices heard, of {devices:,}", *heard, unit="1/s", peer=peer),
        against("removing dead rows", *cleaned, unit="s", peer=peer),
        against("the 100 that are longest offline", *asked, unit="ms", peer=peer),
    ]


def _make(engine: sa.Engine, devices: int) -> None:
    with engine.connect() as connection:
        for statement in (
            f"CREATE TABLE {PLAIN} (LIKE device INCLUDING ALL)",
            f"CREATE TABLE {PARTED} (LIKE device INCLUDING ALL) PARTITION BY HASH (id)",
            *(
                f"CREATE TABLE {PARTED}_{part} PARTITION OF {PARTED} "
                f"FOR VALUES WITH (MODULUS {PARTS}, REMAINDER {part})"
                for part in range(PARTS)
            ),
            *(FILL.format(table=table, devices=devices) for table in (PLAIN, PARTED)),
            f"VACUUM ANALYZE {PLAIN}",
            f"VACUUM ANALYZE {PARTED}",
        ):
            connection.exec_driver_sql(statement)


def _in_turn(
    do: Callable[[str, int], float], *, rounds: int = ROUNDS
) -> tuple[list[float], list[float]]:
    """Measure both tables again and again, by turns."""
    both = [(do(PLAIN, at), do(PARTED, at)) for at in range(rounds)]
    return [pair[0] for pair in both], [pair[1] for pair in both]


def _heard_per_s(engine: sa.Engine, table: str, devices: int, updates: int, seed: int) -> float:
    statement = sa.text(HEARD.format(table=table))

    def work(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        with engine.connect() as connection:
            for _ in range(updates):
                device = f"cam-{chance.randint(1, devices):07}"
                connection.execute(statement, {"id": device, "now_s": 1.8e9 + chance.random()})

    start_s = CLOCK.monotonic_s()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(work, range(CONNECTIONS)))
    return CONNECTIONS * updates / (CLOCK.monotonic_s() - start_s)


def _ran_s(engine: sa.Engine, statement: str) -> float:
    with engine.connect() as connection:
        start_s = CLOCK.monotonic_s()
        connection.exec_driver_sql(statement)
        return CLOCK.monotonic_s() - start_s


if __name__ == "__main__":
    sys.exit(main("The table of devices on PostgreSQL, in one piece and partitioned", measure))
