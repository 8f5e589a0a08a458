"""Ingests and roll-ups that fail at any statement, and ingests between those of a roll-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread, current_thread

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from controller.store.database import Database
from telemetry.errors import TelemetryStoreError
from telemetry.histogram import ExponentialHistogram
from telemetry.server.levels import HOUR
from telemetry.server.query import Query, run
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from wire.telemetry import Event, HistogramPoint, SumPoint, TelemetryBatch

START = 28_000_800
"""A minute with which a day begins."""

DAY_S = 86_400.0


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START * 60.0)


@pytest.fixture
def store(database: Database, clock: FakeClock) -> TelemetryStore:
    return store_of(database, clock)


def store_of(database: Database, clock: FakeClock) -> TelemetryStore:
    reading = database.reading_engine
    return TelemetryStore(database.engine, clock, reading_engine=reading)


def batch(sequence: int, *minutes: int, device: str = "pi-1") -> TelemetryBatch:
    histogram = ExponentialHistogram()
    histogram.add(3.0)
    blob = histogram.to_bytes()
    counters = [SumPoint(metric="n_total", minute=m, attributes={}, value=1) for m in minutes]
    latencies = [
        HistogramPoint(metric="latency_ms", minute=m, attributes={}, blob=blob) for m in minutes
    ]
    events = tuple(Event(at_s=m * 60.0, kind="switch", reason="") for m in minutes[:1])
    return TelemetryBatch(
        device=device, boot_id="b", sequence=sequence, points=(*counters, *latencies), events=events
    )


def minutes_of(sent: Iterable[TelemetryBatch]) -> int:
    return sum(len(each.points) // 2 for each in sent)


def answers(store: TelemetryStore) -> set[object]:
    """Return how much there is, asked in several ways: one number if the answers agree."""
    found: set[object] = set()
    for metric, word in (("n_total", "total"), ("latency_ms", "count,p50")):
        for group_by in ((), ("device",)):
            query = Query(metric=metric, statistics=tuple(word.split(",")), group_by=group_by)
            found.add(sum(row[len(group_by)] for row in run(store, query).rows))  # type: ignore[misc]  # numbers
    return found


@contextmanager
def before_statement(
    database: Database, number: int, do: Callable[[], None]
) -> Iterator[list[int]]:
    """Do something before the statement of that number; yield a list with how many there were."""
    seen, here = [0], current_thread()

    def count(*_: object) -> None:
        if current_thread() is not here:
            return
        seen[0] += 1
        if seen[0] == number:
            do()

    sa.event.listen(database.engine, "before_cursor_execute", count)
    try:
        yield seen
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", count)


def fail() -> None:
    raise OperationalError("the statement", {}, Exception("the server closed the connection"))


def statements_of(database: Database, work: Callable[[], object]) -> int:
    with before_statement(database, 0, fail) as seen:
        work()
    return seen[0]


def test_an_ingest_may_fail_at_every_statement(
    store: TelemetryStore, database: Database, clock: FakeClock
) -> None:
    clock.advance(DAY_S)
    store.roll_up(math.inf)
    sent = [batch(0, START, START + 70), batch(0, START, device="pi-2")]
    number = statements_of(database, lambda: store.ingest_all(sent))
    assert number > 5
    failed = 0
    for at in range(1, number + 1):
        sent = [
            batch(at, START + at, START + 1439, device="pi-1"),
            batch(at, START, device="pi-2"),
            batch(at, START + at, START + 1439, device="pi-1"),
        ]
        # As a controller that has just started: it knows no series.
        fresh = store_of(database, clock)
        with before_statement(database, at, fail), suppress(TelemetryStoreError):
            fresh.ingest_all(sent)
            continue  # it needs fewer statements than the first one, which made the series
        failed += 1
        assert [outcome.is_new for outcome in fresh.ingest_all(sent)] == [True, True, False]
        assert not any(outcome.is_new for outcome in store.ingest_all(sent))
    assert failed > 10
    assert answers(store) == {3 + 3 * number}
    store.roll_up(math.inf)
    assert answers(store) == {3 + 3 * number}
    assert len(store.events()) == 2 + 2 * number


@pytest.mark.few(1)
def test_a_roll_up_may_fail_at_any_statement(
    store: TelemetryStore, database: Database, clock: FakeClock
) -> None:
    sent: list[TelemetryBatch] = []
    at, failed = -1, True
    while failed:
        at += 3
        # Late ones for an hour and its day, and new ones for the hours that are over.
        now = int(clock.now_s() // 60)
        for device in ("pi-1", "pi-2"):
            late = (max(START, now - 1500), max(START, now - 40))
            sent.append(batch(len(sent), *late, device=device))
            store.ingest(sent[-1])
        clock.advance(DAY_S - 3600.0)
        failed = False
        with before_statement(database, at, fail):
            try:
                store.roll_up(math.inf)
            except TelemetryStoreError:
                failed = True
        assert answers(store) == {minutes_of(sent)}
        store.roll_up(math.inf)
    assert at > 40
    assert answers(store) == {minutes_of(sent)}


def test_what_comes_between_two_statements_of_a_roll_up_is_counted(
    store: TelemetryStore, database: Database, clock: FakeClock
) -> None:
    other = store_of(database, clock)
    sent: list[TelemetryBatch] = []
    coming: list[Thread] = []

    def come() -> None:
        now = int(clock.now_s() // 60)
        minutes = sorted({max(START, now - back) for back in (1500, 61, 20)})
        sent.append(batch(len(sent), *minutes))
        coming.append(Thread(target=other.ingest, args=(sent[-1],)))
        coming[-1].start()
        # Where it has to wait for the roll-up, the roll-up goes on.
        coming[-1].join(0.03)

    at, seen = 0, [0]
    while seen[0] >= at:
        at += 3
        clock.advance(HOUR * 60.0 * 5)
        with before_statement(database, at, come) as seen:
            store.roll_up(math.inf)
        for thread in coming:
            thread.join()
        if sent:
            assert answers(store) == {minutes_of(sent)}
    assert at > 15
    store.roll_up(math.inf)
    assert answers(store) == {minutes_of(sent)}
