"""The telemetry of a fleet: how fast it is stored, how large it is, how fast questions are.

A day of 7,000 devices is 10 million device-minutes: each row is what one device measured of one
series in one minute. All of it goes through `TelemetryStore.ingest_all`, as the controller's inbox
hands it over, and hours and days are made of it.

- Storing: rows a second, beside the same rows written by the driver alone in transactions of the
  same size, which is what the disk and the database allow.
- Size: bytes a row, beside DuckDB's file of the same rows.
- Questions: beside DuckDB over all the minutes, and over the very rows that our answer reads.
  Both give true percentiles, of histograms with the same buckets.

`EDGEFLEET_BENCH_DEVICES` and `EDGEFLEET_BENCH_HOURS` change the size. DuckDB and PostgreSQL are
left out where they are not installed.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.databases.postgres import postgres
from benchmarks.harness import Row, against, alone, main, not_measured
from benchmarks.telemetry_rows.bare import Postgres, Sqlite
from benchmarks.telemetry_rows.duck import Duck, has_duckdb
from benchmarks.telemetry_rows.minutes import LATENCY, START, histograms, minute_batches
from controller.app.collecting import collect_seldom
from controller.store.database import Database, migrate
from telemetry.histogram import representative
from telemetry.server import sketches
from telemetry.server.query import Query, run
from telemetry.server.store import TelemetryStore
from wire.clock import SystemClock
from wire.telemetry import HistogramPoint, SumPoint, TelemetryBatch

DEVICES: Final = int(os.environ.get("EDGEFLEET_BENCH_DEVICES", "7000"))
HOURS: Final = int(os.environ.get("EDGEFLEET_BENCH_HOURS", "24"))
AT_ONCE: Final = 200
"""Batches that the inbox hands over together."""


class At(SystemClock):
    """A clock whose wall time stands where the data end."""

    def __init__(self, minute: int) -> None:
        self._minute = minute

    def now_s(self) -> float:
        """Return that time."""
        return self._minute * 60.0


def stored_s(store: TelemetryStore, batches: Sequence[TelemetryBatch]) -> float:
    """Store batches as they wait in the inbox; return how long it took."""
    start_s = time.perf_counter()
    for begin in range(0, len(batches), AT_ONCE):
        store.ingest_all(batches[begin : begin + AT_ONCE])
    return time.perf_counter() - start_s


def rows_of(batches: Sequence[TelemetryBatch]) -> list[tuple[Any, ...]]:
    """Return the rows that a store makes of batches, of series numbered by their names."""
    numbers: dict[tuple[str, ...], int] = {}
    rows = []
    for batch in batches:
        for point in batch.points:
            key = (point.metric, *point.attributes.values())
            series = numbers.setdefault(key, len(numbers) + 1)
            measured: tuple[Any, ...]
            if isinstance(point, HistogramPoint):
                measured = tuple(sketches.taken(point.blob))
            elif isinstance(point, SumPoint):
                measured = (1, point.value, point.value, point.value, None)
            else:
                measured = (point.count, point.total, point.least, point.greatest, None)
            rows.append((series, point.minute, batch.device, *measured))
    return rows


def ingest_rows(kind: Sqlite | Postgres, quick: bool) -> Iterator[Row]:
    """Store minutes of a fleet that sends eight points a minute, beside the driver alone."""
    migrate(kind.url)
    database = Database(kind.url)
    chance, pool = random.Random(2), histograms(3)
    devices, rounds = (1000, 2) if quick else (DEVICES, 5)
    store = TelemetryStore(database.engine, At(START + 60), reading_engine=database.reading_engine)
    ours: list[float] = []
    bare: list[float] = []
    again: list[float] = []
    for number in range(rounds):
        batches = minute_batches(START + number, devices, pool, chance, 7)
        rows = rows_of(batches)
        ours.append(len(rows) / stored_s(store, batches))
        bare.append(len(rows) / kind.written_s(rows, AT_ONCE * 8))
        halves = [
            TelemetryBatch(
                device=batch.device, boot_id="again", sequence=batch.sequence, points=batch.points
            )
            for batch in batches
        ]
        again.append(len(rows) / stored_s(store, halves))
    database.close()
    peer = "its driver alone"
    yield against(f"{kind.name}: rows stored a second", ours, bare, unit="rows/s", peer=peer)
    yield alone(f"{kind.name}: rows merged into rows a second", again, unit="rows/s")


def query_rows(folder: Path, quick: bool) -> Iterator[Row]:
    """Ask a day of a fleet, beside DuckDB."""
    devices, hours = (500, 6) if quick else (DEVICES, HOURS)
    minutes = hours * 60
    path = folder / "day.db"
    migrate(f"sqlite:///{path}")
    database = Database(f"sqlite:///{path}")
    now = START + minutes
    store = TelemetryStore(database.engine, At(now), reading_engine=database.reading_engine)
    chance, pool = random.Random(5), histograms(6)
    duck = Duck(folder / "day.duckdb") if has_duckdb() else None
    rates: list[float] = []
    for number in range(minutes):
        batches = minute_batches(START + number, devices, pool, chance, 0)
        rates.append(len(batches) / stored_s(store, batches))
        if duck is not None:
            duck.add("minutes", _duck_rows(batches))
    yield alone("rows of a day stored a second, SQLite", rates, unit="rows/s")
    later = TelemetryStore(database.engine, At(now + 20), reading_engine=database.reading_engine)
    start_s = time.perf_counter()
    later.roll_up(math.inf)
    yield alone(
        "hours made, of each new row", [(time.perf_counter() - start_s) / minutes / devices * 1e6],
        unit="us",
    )  # fmt: skip
    database.engine.dispose()
    with contextlib.closing(sqlite3.connect(path)) as bare:
        bare.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        fleet = bare.execute(
            "SELECT s.variant, m.minute, m.device, value_count, total, least, greatest, sketch "
            "FROM telemetry_fleet_minute m JOIN telemetry_series s ON s.id = m.series_id"
        ).fetchall()
    size = path.stat().st_size / devices / minutes
    if duck is None:
        yield alone("bytes a row, with hours and the fleet", [size], unit="B")
        yield not_measured("questions", "DuckDB is not installed", peer="DuckDB")
        return
    duck.add("fleet", fleet)
    duck.close()
    theirs = duck.path.stat().st_size / devices / minutes
    yield against(
        "bytes a row, with hours and the fleet", [size], [theirs], unit="B", peer="DuckDB"
    )
    yield from _questions(later, Duck(duck.path), now, hours, quick)


def _duck_rows(batches: Sequence[TelemetryBatch]) -> list[tuple[Any, ...]]:
    found = []
    for batch in batches:
        point = batch.points[0]
        if not isinstance(point, HistogramPoint):
            continue
        measured = sketches.taken(point.blob)
        found.append((point.attributes["variant"], point.minute, batch.device, *measured))
    return found


def _questions(
    store: TelemetryStore, duck: Duck, now: int, hours: int, quick: bool
) -> Iterator[Row]:
    rounds = 3 if quick else 9
    day = f"minute >= {START}"
    hour = f"minute >= {now - 60}"
    one = "device = 'device-00007'"
    for name, words, first, where, table, aim in (
        ("p95 by variant, 1 h", ("p95",), now - 60, hour, "minutes", None),
        ("p95 by variant, 1 h, the same rows", ("p95",), now - 60, hour, "fleet", 2.0),
        (f"p95 by variant, {hours} h", ("p95",), START, day, "minutes", None),
        (f"p95 by variant, {hours} h, the same rows", ("p95",), START, day, "fleet", 2.0),
        (f"mean by variant, {hours} h", ("mean",), START, day, "minutes", None),
        (f"p95 of one device, {hours} h", ("p95",), START, f"{day} AND {one}", "minutes", 2.0),
    ):
        ask = duck.mean if words == ("mean",) else duck.p95
        asked = Query(
            metric=LATENCY, statistics=words, group_by=("variant",), since_s=first * 60.0,
            until_s=now * 60.0, where=(("device", "device-00007"),) if one in where else (),
        )  # fmt: skip
        ours = functools.partial(_answer, store, asked)
        theirs = functools.partial(ask, table, where)
        yield _beside(name, ours, theirs, words, rounds, aim)


def _answer(store: TelemetryStore, query: Query) -> Sequence[tuple[Any, ...]]:
    return run(store, query).rows


def _beside(
    name: str,
    ours: Callable[[], Sequence[tuple[Any, ...]]],
    theirs: Callable[[], Sequence[tuple[Any, ...]]],
    words: tuple[str, ...],
    rounds: int,
    aim: float | None,
) -> Row:
    """Ask both, alternately, and check that they say the same.

    Raises:
        SystemExit: They do not.
    """
    for (variant, value), (other, found) in zip(ours(), theirs(), strict=True):
        expected = representative(found) if words == ("p95",) else found
        if variant != other or not math.isclose(value, expected, rel_tol=0.03):
            raise SystemExit(f"{name}: {variant} {value}, DuckDB {other} {expected}")
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for times, ask in zip(took, (ours, theirs), strict=True):
            start_s = time.perf_counter()
            ask()
            times.append((time.perf_counter() - start_s) * 1e3)
    return against(name, *took, unit="ms", peer="DuckDB", at_most=aim)


def measure(quick: bool) -> list[Row]:
    """Store and ask.

    Args:
        quick: A small fleet and a few hours.

    Returns:
        The rows.
    """
    np.seterr(all="raise")
    collect_seldom()  # as the controller does
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="edgefleet-telemetry-") as name:
        folder = Path(name)
        rows += ingest_rows(Sqlite(folder), quick)
        with postgres() as url:
            if url is None:
                rows.append(not_measured("PostgreSQL: rows stored a second", "it is not installed"))
            else:
                rows += ingest_rows(Postgres(url), quick)
        rows += query_rows(folder, quick)
    return rows


if __name__ == "__main__":
    sys.exit(main("Telemetry of a fleet", measure))
