"""Hours and days are their minutes merged, in whatever order rows came and whoever was killed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import sqlalchemy as sa

from controller.store.database import Database
from telemetry.errors import QueryError
from telemetry.histogram import ExponentialHistogram
from telemetry.server import grouping, reading, rollups
from telemetry.server.levels import DAY, HOUR
from telemetry.server.query import Query, parse, run
from telemetry.server.rollups import RollUps
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from wire.telemetry import GaugePoint, HistogramPoint, Point, SumPoint, TelemetryBatch

START = 28_000_800
"""A minute with which a day begins."""

VARIANTS = ("fp32", "int8")


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
    return TelemetryStore(database.engine, clock, reading_engine=database.reading_engine)


class Sample:
    """What one device measured in one minute."""

    def __init__(self, chance: random.Random, minute: int) -> None:
        self.device = f"pi-{chance.randrange(4)}"
        self.minute = minute
        self.variant = chance.choice(VARIANTS)
        self.values = [chance.lognormvariate(3, 1) for _ in range(chance.randint(1, 5))]

    def points(self) -> tuple[Point, ...]:
        histogram = ExponentialHistogram()
        for value in self.values:
            histogram.add(value)
        named = {"variant": self.variant}
        return (
            HistogramPoint(
                metric="latency_ms", minute=self.minute, attributes=named, blob=histogram.to_bytes()
            ),
            SumPoint(
                metric="n_total", minute=self.minute, attributes=named, value=len(self.values)
            ),
            GaugePoint(
                metric="heat_c", minute=self.minute, attributes=named, count=len(self.values),
                total=sum(self.values), least=min(self.values), greatest=max(self.values),
            ),
        )  # fmt: skip


def ingest(store: TelemetryStore, samples: Sequence[Sample], sequence: int) -> None:
    batches = [
        TelemetryBatch(
            device=sample.device, boot_id="b", sequence=sequence + at, points=sample.points()
        )
        for at, sample in enumerate(samples)
    ]
    assert all(outcome.is_new for outcome in store.ingest_all(batches))


def expected(
    samples: Sequence[Sample], query: Query, first: int, end: int
) -> dict[tuple[str, ...], tuple[float, ...]]:
    """Return count, p50, p95 and max of each group, from the histograms of all values."""
    groups: dict[tuple[str, ...], ExponentialHistogram] = {}
    for sample in samples:
        if first <= sample.minute < end:
            key = tuple(getattr(sample, name) for name in query.group_by)
            for value in sample.values:
                groups.setdefault(key, ExponentialHistogram()).add(value)
    return {
        key: (made.count, made.quantile(0.5) or 0, made.quantile(0.95) or 0, made.greatest or 0)
        for key, made in groups.items()
    }


def test_large_histograms_are_read_and_made_in_parts(
    store: TelemetryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FETCHED_AT_ONCE", 2)
    monkeypatch.setattr(reading, "BYTES_AT_ONCE", 12_000)
    monkeypatch.setattr(rollups, "BUCKETS_AT_ONCE", 7000)
    large = ExponentialHistogram()
    for octave in range(-30, 60):
        for part in range(32):
            large.add(2 ** (octave + part / 32))
    points = [
        HistogramPoint(
            metric="m_ms", minute=START + at % 4, blob=large.to_bytes(),
            attributes={"variant": f"v{at // 4}"},
        )
        for at in range(24)
    ]  # fmt: skip
    assert store.ingest(TelemetryBatch(device="pi", boot_id="b", sequence=1, points=tuple(points)))
    numbers = [one.id for one in store.series("m_ms")]
    read = [len(part.device) for part in store.read(numbers, START, START + 4)]
    assert (sum(read), max(read)) == (24, 6)
    query = Query(
        metric="m_ms", since_s=START * 60.0, until_s=(START + HOUR) * 60.0,
        statistics=("count", "p50"), group_by=("variant",),
    )  # fmt: skip
    of_minutes = run(store, query).rows
    clock.advance(2 * 3600.0)
    assert store.roll_up(60.0) is False
    answer = run(store, query)
    assert [source.level for source in answer.sources] == ["hour"]
    assert answer.rows == of_minutes
    assert len(of_minutes) == 6
    monkeypatch.setattr(grouping, "MAX_BUCKETS", 7000)
    with pytest.raises(QueryError, match="more than 7000 buckets"):
        run(store, query)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(2))
def test_every_level_gives_the_answer_of_the_minutes(
    store: TelemetryStore, clock: FakeClock, seed: int
) -> None:
    chance = random.Random(seed)
    samples: list[Sample] = []
    levels: set[str] = set()
    for step in range(9):
        clock.advance(chance.choice([600, 3600, 20_000, 90_000]))
        now = int(clock.now_s() // 60)
        back = [chance.choice([5, 200, 3000]) for _ in range(chance.randrange(1, 25))]
        came = [Sample(chance, max(START - 4000, now - chance.randrange(1, b))) for b in back]
        ingest(store, came, sequence=step * 100)
        samples += came
        if chance.random() < 0.7:
            store.roll_up(math.inf)
        for group_by in ((), ("variant",), ("device",), ("device", "variant")):
            first = now - chance.choice([30, 300, 3 * DAY, 9 * DAY])
            end = chance.choice([now, first + 1 + chance.randrange(now - first)])
            query = Query(
                metric="latency_ms",
                statistics=("count", "p50", "p95", "max"),
                group_by=group_by,
                since_s=first * 60.0,
                until_s=end * 60.0,
            )
            answer = run(store, query)
            names = len(group_by)
            found = {tuple(map(str, row[:names])): row[names:] for row in answer.rows}
            truth = expected(samples, query, first, end)
            assert found.keys() == truth.keys()
            for key, row in found.items():
                assert row == pytest.approx(truth[key], rel=1e-12)
            levels |= {source.level for source in answer.sources}
            check_sums(store, query, samples, first, end)
    assert levels == {"minute", "hour", "day"}


def check_sums(
    store: TelemetryStore, query: Query, samples: Sequence[Sample], first: int, end: int
) -> None:
    """What needs no histogram is added up by the database, over the same levels."""
    count = sum(len(s.values) for s in samples if first <= s.minute < end)
    whole = replace(query, metric="n_total", statistics=("total",), group_by=())
    assert sum(row[0] for row in run(store, whole).rows) == count  # type: ignore[misc]  # numbers
    heat = run(store, replace(whole, metric="heat_c", statistics=("count", "mean", "max"))).rows
    values = [value for s in samples if first <= s.minute < end for value in s.values]
    for row in heat:
        assert row == pytest.approx((count, sum(values) / count, max(values)))


def test_a_rate_does_not_depend_on_the_level(store: TelemetryStore, clock: FakeClock) -> None:
    chance = random.Random(7)
    samples = [Sample(chance, START + at) for at in (17, 500, 3 * DAY - 40)]
    clock.advance(3 * 86_400.0)
    ingest(store, samples, 0)
    query = Query(
        metric="n_total", statistics=("rate",), since_s=0.0, until_s=START * 60.0 + 3 * 86_400.0
    )
    before = run(store, query)
    store.roll_up(math.inf)
    after = run(store, query)
    assert {source.level for source in before.sources} == {"minute"}
    assert "day" in {source.level for source in after.sources}
    assert after.rows == before.rows


def test_roll_ups_that_were_cut_off_go_on_with_the_next_call(
    store: TelemetryStore, clock: FakeClock, database: Database
) -> None:
    chance = random.Random(3)
    samples = [Sample(chance, START + 90 * number) for number in range(15)]
    clock.advance(2 * 86_400.0)
    ingest(store, samples, 0)
    calls = 1
    while store.roll_up(0.0):
        calls += 1
        query = parse("n_total", statistics="total", since="0", now_s=clock.now_s())
        assert run(store, query).rows == ((sum(len(s.values) for s in samples),),)
    assert calls > 10
    with database.engine.connect() as connection:
        hours = connection.scalar(sa.text("SELECT COUNT(*) FROM telemetry_fleet_hour"))
    assert hours == len({(s.minute // HOUR, s.variant) for s in samples}) * 3


def test_only_one_controller_of_a_fleet_makes_them(
    store: TelemetryStore, database: Database, clock: FakeClock
) -> None:
    if database.engine.dialect.name == "sqlite":
        pytest.skip("one controller uses an SQLite file")
    clock.advance(86_400.0)
    ingest(store, [Sample(random.Random(1), START)], 0)
    other = TelemetryStore(database.engine, clock)
    rollups: RollUps = store._roll_ups
    with rollups._alone() as alone:
        assert alone
        assert not other.roll_up(math.inf)
    assert {source.level for source in run(other, Query(metric="n_total")).sources} == {"minute"}
    other.roll_up(math.inf)
    assert "hour" in {source.level for source in run(other, Query(metric="n_total")).sources}
