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
import sqlalchemy as sa

from benchmarks.databases.postgres import postgres
from benchmarks.harness import Row, against, alone, main, not_measured
from controller.app.collecting import collect_seldom
from controller.store.database import Database, migrate
from telemetry.histogram import ExponentialHistogram, representative
from telemetry.server import sketches
from telemetry.server.query import Query, run
from telemetry.server.store import TelemetryStore
from wire.clock import SystemClock
from wire.telemetry import GaugePoint, HistogramPoint, Point, SumPoint, TelemetryBatch

try:
    import duckdb
except ImportError:
    duckdb = None

DEVICES: Final = int(os.environ.get("EDGEFLEET_BENCH_DEVICES", "7000"))
HOURS: Final = int(os.environ.get("EDGEFLEET_BENCH_HOURS", "24"))
VARIANTS: Final = ("fp32", "fp16", "int8")
LATENCY: Final = "inference_latency_ms"
START: Final = 29_000_160
"""A minute with which a day begins."""

AT_ONCE: Final = 200
"""Batches that the inbox hands over together."""

POOL: Final = 3000
VALUES: Final = 60
"""Requests of a device in a minute."""


class At(SystemClock):
    """A clock whose wall time stands where the data end."""

    def __init__(self, minute: int) -> None:
        self._minute = minute

    def now_s(self) -> float:
        """Return that time."""
        return self._minute * 60.0


def histograms(seed: int) -> list[bytes]:
    """Return minutes of latencies, of devices that differ."""
    chance = random.Random(seed)
    made = []
    for _ in range(POOL):
        histogram = ExponentialHistogram()
        centre, spread = chance.uniform(2, 4), chance.uniform(0.1, 0.5)
        for _ in range(VALUES):
            histogram.add(chance.lognormvariate(centre, spread))
        made.append(histogram.to_bytes())
    return made


def minute_batches(
    minute: int, devices: int, pool: Sequence[bytes], chance: random.Random, further: int
) -> list[TelemetryBatch]:
    """Return what all devices send of one minute: a histogram each, and further points."""
    batches = []
    for number in range(devices):
        named = {"release": "digits:1.0.0", "variant": VARIANTS[number % len(VARIANTS)]}
        points: list[Point] = [
            HistogramPoint(
                metric=LATENCY, minute=minute, attributes=named, blob=chance.choice(pool)
            )
        ]
        for at in range(further):
            if at % 2:
                points.append(SumPoint(metric=f"n{at}_total", minute=minute, attributes=named,
                                       value=60.0))  # fmt: skip
            else:
                points.append(GaugePoint(metric=f"g{at}", minute=minute, attributes={}, count=60,
                                         total=3000.0, least=40.0, greatest=60.0))  # fmt: skip
        batches.append(
            TelemetryBatch(
                device=f"device-{number:05d}", boot_id="boot", sequence=minute - START,
                points=tuple(points),
            )
        )  # fmt: skip
    return batches


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


class Duck:
    """DuckDB over the same rows: one list of buckets and one of counts in each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = duckdb.connect(str(path))
        self._connection.execute("SET threads = 2")
        for table in ("minutes", "fleet"):
            self._connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} "
                "(variant VARCHAR, minute INTEGER, device VARCHAR, n BIGINT, total DOUBLE, "
                "least DOUBLE, greatest DOUBLE, buckets SMALLINT[], counts INTEGER[])"
            )

    def add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write rows: variant, minute, device, count, total, least, greatest, sketch."""
        import pyarrow as pa

        unpacked = [_buckets(row[-1]) for row in rows]
        columns = list(zip(*(row[:-1] for row in rows), strict=True))
        names = ("variant", "minute", "device", "n", "total", "least", "greatest")
        arrays = {name: pa.array(column) for name, column in zip(names, columns, strict=True)}
        arrays["buckets"] = pa.array([one[0] for one in unpacked], pa.list_(pa.int16()))
        arrays["counts"] = pa.array([one[1] for one in unpacked], pa.list_(pa.int32()))
        block = pa.table(arrays)
        self._connection.register("block", block)
        self._connection.execute(f"INSERT INTO {table} SELECT * FROM block")  # noqa: S608
        self._connection.unregister("block")

    def p95(self, table: str, where: str) -> list[tuple[Any, ...]]:
        """Return the p95 by variant."""
        text = f"""
            WITH each AS (
              SELECT variant, unnest(buckets) AS bucket, unnest(counts) AS n
              FROM {table} WHERE {where}
            ), summed AS (
              SELECT variant, bucket, sum(n) AS n FROM each GROUP BY ALL
            ), running AS (
              SELECT variant, bucket, sum(n) OVER (PARTITION BY variant ORDER BY bucket) AS upto,
                sum(n) OVER (PARTITION BY variant) AS whole
              FROM summed
            )
            SELECT variant, min(bucket) FROM running WHERE upto >= ceil(0.95 * whole)
            GROUP BY variant ORDER BY variant
        """  # noqa: S608 - constants
        return list(self._connection.execute(text).fetchall())

    def mean(self, table: str, where: str) -> list[tuple[Any, ...]]:
        """Return the mean by variant."""
        text = (
            f"SELECT variant, sum(total) / sum(n) FROM {table} WHERE {where} GROUP BY 1 ORDER BY 1"  # noqa: S608
        )
        return list(self._connection.execute(text).fetchall())

    def close(self) -> None:
        """Write everything into the file."""
        self._connection.execute("CHECKPOINT")
        self._connection.close()


_UNPACKED: dict[bytes, tuple[list[int], list[int]]] = {}


def _buckets(sketch: bytes) -> tuple[list[int], list[int]]:
    found = _UNPACKED.get(sketch)
    if found is None:
        buckets = dict(sketches.decode(sketch).buckets())
        found = (list(buckets), list(buckets.values()))
        if len(_UNPACKED) < 2 * POOL:
            _UNPACKED[sketch] = found
    return found


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
    duck = Duck(folder / "day.duckdb") if duckdb is not None else None
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
