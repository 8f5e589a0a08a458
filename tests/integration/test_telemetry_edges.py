"""Nothing is lost or counted twice where minutes end, series go, and partitions come and go."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from controller.store.database import Database
from telemetry.histogram import COUNT_MAX, HEADER, TOTAL_MAX, VALUE_MAX, ExponentialHistogram
from telemetry.server import sketches, tables
from telemetry.server.levels import MINUTES, Part
from telemetry.server.pruning import Retention
from telemetry.server.query import Query, run
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from tests.simulators.row_locks import wait_for_a_lock
from wire.telemetry import HistogramPoint, SumPoint, TelemetryBatch

START = 28_000_800
"""A minute with which a day begins."""

DAY_S = 86_400.0
KEPT = Retention(minutes_s=7 * DAY_S, hours_s=90 * DAY_S, days_s=730 * DAY_S, events_s=7 * DAY_S)
BOTH = pytest.mark.parametrize("group_by", [(), ("device",)], ids=["fleet", "devices"])
PATIENCE_S = 60.0


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def postgresql(database: Database) -> Database:
    if database.engine.dialect.name == "sqlite":
        pytest.skip("writers of SQLite take turns, and it has no partitions")
    return database


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START * 60.0)


@pytest.fixture
def store(database: Database, clock: FakeClock) -> TelemetryStore:
    return TelemetryStore(
        database.engine, clock, retention=KEPT, reading_engine=database.reading_engine
    )


def batch(sequence: int, *minutes: int, device: str = "pi-1") -> TelemetryBatch:
    points = tuple(
        SumPoint(metric="n_total", minute=minute, attributes={}, value=1) for minute in minutes
    )
    return TelemetryBatch(device=device, boot_id="b", sequence=sequence, points=points)


def total(store: TelemetryStore, **asked: Any) -> float:
    rows = run(store, Query(metric="n_total", statistics=("total",), **asked)).rows
    return sum(float(row[-1] or 0) for row in rows)


@BOTH
def test_what_comes_late_for_an_hour_at_the_edge_is_added_to_it(
    store: TelemetryStore, clock: FakeClock, group_by: tuple[str, ...]
) -> None:
    store.ingest(batch(0, START + 5, START + 50))
    clock.advance(2 * DAY_S)
    store.roll_up(math.inf)
    clock.advance(5 * DAY_S + 30 * 60)
    store.roll_up(math.inf)
    store.prune()
    store.ingest(batch(1, START + 40))
    assert total(store, group_by=group_by) == 3
    store.roll_up(math.inf)
    assert total(store, group_by=group_by) == 3


@BOTH
def test_minutes_stay_until_what_came_late_is_in_their_hour(
    store: TelemetryStore, clock: FakeClock, group_by: tuple[str, ...]
) -> None:
    store.ingest(batch(0, START + 5, START + 50))
    clock.advance(7 * DAY_S)
    store.roll_up(math.inf)
    store.ingest(batch(1, START + 40))
    clock.advance(30 * 3600)
    store.prune()
    store.roll_up(math.inf)
    assert total(store, group_by=group_by) == 3


@BOTH
def test_minutes_answer_until_their_hour_is_made(
    store: TelemetryStore, clock: FakeClock, group_by: tuple[str, ...]
) -> None:
    store.ingest(batch(0, START + 5, START + 50))
    clock.advance(10 * DAY_S)
    assert total(store, group_by=group_by) == 2


def test_a_batch_that_comes_again_when_its_minute_goes_is_not_counted_again(
    store: TelemetryStore, clock: FakeClock
) -> None:
    store.ingest(batch(0, START + 5))
    clock.advance(7 * DAY_S + 5 * 60 + 30)
    store.roll_up(math.inf)
    store.prune()
    assert not store.ingest(batch(0, START + 5))
    store.roll_up(math.inf)
    assert (total(store), total(store, group_by=("device",))) == (1, 1)


def hour_of_minutes(store: TelemetryStore) -> None:
    """Two devices measure once a minute in the first hour."""
    for device in ("pi-1", "pi-2"):
        store.ingest(batch(0, *range(START, START + 60), device=device))


def test_a_longer_retention_does_not_bring_minutes_back(
    store: TelemetryStore, database: Database, clock: FakeClock
) -> None:
    hour_of_minutes(store)
    clock.advance(9 * DAY_S)
    store.roll_up(math.inf)
    store.prune()
    longer = TelemetryStore(database.engine, clock, retention=replace(KEPT, minutes_s=30 * DAY_S))
    part = {"since_s": (START + 10) * 60.0, "until_s": (START + 60) * 60.0}
    assert (total(longer), total(longer, **part)) == (120, 120)
    longer.ingest(batch(1, START + 40))
    longer.roll_up(math.inf)
    assert (total(longer), total(longer, group_by=("device",))) == (120, 120)
    assert [each.refused for each in longer.devices()] == [1, 0]


def test_a_clock_that_is_ahead_at_a_prune_deletes_nothing(
    store: TelemetryStore, clock: FakeClock
) -> None:
    hour_of_minutes(store)
    clock.advance(3 * 3600)
    clock.correct(20 * DAY_S)
    store.roll_up(math.inf)
    assert store.prune() == 0
    clock.correct(-20 * DAY_S)
    assert store.prune() == 0
    part = {"since_s": (START + 10) * 60.0, "until_s": (START + 40) * 60.0}
    assert total(store, **part) == 60
    assert not store.ingest(batch(0, *range(START, START + 60)))


def test_a_clock_that_stays_ahead_destroys_no_hour_and_keeps_out_no_later_one(
    store: TelemetryStore, clock: FakeClock
) -> None:
    hour_of_minutes(store)
    clock.advance(3 * 3600)
    clock.correct(20 * DAY_S)
    store.prune()
    clock.advance(2 * 3600)
    store.roll_up(math.inf)
    store.prune()
    clock.correct(-20 * DAY_S)
    store.ingest(batch(0, *range(START, START + 60)))
    store.ingest(batch(1, START + 60, START + 5 * 60))
    store.roll_up(math.inf)
    assert (total(store), total(store, group_by=("device",))) == (122, 122)


def test_histograms_with_the_greatest_totals_can_be_read_when_they_are_merged(
    store: TelemetryStore, database: Database
) -> None:
    histogram = ExponentialHistogram()
    histogram.add(VALUE_MAX, COUNT_MAX)
    blob = bytearray(histogram.to_bytes())
    fields = list(HEADER.unpack_from(blob))
    fields[6] = TOTAL_MAX * 0.9
    blob[: HEADER.size] = HEADER.pack(*fields)
    for number in range(3):
        point = HistogramPoint(metric="h_ms", minute=START, attributes={}, blob=bytes(blob))
        sent = TelemetryBatch(device="pi-1", boot_id="b", sequence=number, points=(point,))
        assert store.ingest(sent)
    with database.reading_engine.connect() as connection:
        (stored,) = connection.scalars(sa.select(tables.minute.c.sketch))
    assert sketches.decode(stored).count == COUNT_MAX


def test_conditions_count_for_more_devices_than_a_statement_names(store: TelemetryStore) -> None:
    for number in range(5):
        store.ingest(batch(0, START, device=f"pi-{number}"))
    where = tuple(("device", f"pi-{number}") for number in range(1, 3000))
    devices = frozenset(f"pi-{number}" for number in range(5000))
    assert total(store, where=where, devices=devices) == 4


def test_a_series_stays_whose_first_rows_are_being_written(
    postgresql: Database, store: TelemetryStore, clock: FakeClock
) -> None:
    engine = postgresql.engine
    store.ingest(batch(0, START))
    store.roll_up(math.inf)
    clock.advance(200 * DAY_S)
    store.roll_up(math.inf)
    with engine.begin() as connection:
        for table in (*tables.DEVICES.values(), *tables.FLEETS.values()):
            connection.execute(sa.delete(table))
    stored, go = threading.Event(), threading.Event()

    def pause(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        is_last = "FOR UPDATE" in statement and "telemetry_level" in statement
        if threading.current_thread().name == "ingest" and is_last:
            stored.set()
            go.wait(PATIENCE_S)

    sa.event.listen(engine, "before_cursor_execute", pause)
    ingest = begun(lambda: store.ingest(batch(1, START + 200 * 1440)), "ingest")
    assert stored.wait(PATIENCE_S)
    prune = begun(store.prune, "prune")
    wait_for_a_lock(postgresql)
    go.set()
    ingest.join(PATIENCE_S)
    prune.join(PATIENCE_S)
    sa.event.remove(engine, "before_cursor_execute", pause)
    assert total(store) == 1


@pytest.mark.usefixtures("postgresql")
def test_a_partition_is_made_while_somebody_reads(store: TelemetryStore) -> None:
    store.ingest(batch(0, START))
    with store.snapshot() as snapshot:
        list(snapshot.rows(Part(MINUTES, 0, 2**31 - 1), [1]))
        ingest = begun(lambda: store.ingest(batch(1, START + 1440)), "ingest")
        ingest.join(PATIENCE_S)
        assert not ingest.is_alive()


def test_a_partition_that_is_to_go_does_not_hold_up_others_for_long(
    postgresql: Database, store: TelemetryStore, clock: FakeClock
) -> None:
    day = START + 8 * 1440
    store.ingest(batch(0, START, day - 5, day - 10))
    clock.advance(8 * DAY_S)
    store.ingest(batch(5, day - 5))
    store.ingest(batch(6, day))
    store.roll_up(math.inf)
    clock.advance(DAY_S)
    with store.snapshot() as snapshot:
        list(snapshot.rows(Part(MINUTES, 0, 2**31 - 1), [1]))
        prune = begun(store.prune, "prune")
        wait_for_a_lock(postgresql)
        ingest = begun(lambda: store.ingest(batch(1, day + 1)), "ingest")
        ingest.join(PATIENCE_S)
        assert not ingest.is_alive()
    prune.join(PATIENCE_S)


def begun(work: Callable[[], object], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    return thread
