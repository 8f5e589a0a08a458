"""No device fills the controller's database, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from controller.store import releases
from telemetry.server.bounds import Bounds
from telemetry.server.budget import BURST_BYTES, REFILL_BYTES_PER_HOUR
from telemetry.server.event_log import EventQuery
from telemetry.server.pruning import Retention
from telemetry.server.store import TelemetryStore, metadata
from tests.simulators.clock import FakeClock
from tests.simulators.stored_fleet import add_release
from wire.messages import MAX_MESSAGE_BYTES
from wire.telemetry import Event, SumPoint, TelemetryBatch

DAY_S = 86_400.0
HOUR_S = 3600.0
PUBLISHED = "digits:1"
ENOUGH = 2 * BURST_BYTES // MAX_MESSAGE_BYTES
"""Messages whose content is more than a bucket holds."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


KEPT = ("minutes_s", "hours_s", "days_s", "events_s")


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: sa.Engine, clock: FakeClock) -> TelemetryStore:
    store = TelemetryStore(engine, clock, retention=Retention(**dict.fromkeys(KEPT, 30 * DAY_S)))
    store.create_all()
    return store


def flood(sequence: int, clock: FakeClock, boot: str = "b") -> TelemetryBatch:
    events = tuple(
        Event(at_s=clock.now_s(), kind="k", reason="", data={"x": "x" * 16_000}) for _ in range(15)
    )
    return TelemetryBatch(device="hostile", boot_id=boot, sequence=sequence, events=events)


def small(sequence: int, clock: FakeClock, device: str = "hostile") -> TelemetryBatch:
    point = SumPoint(metric="n_total", minute=int(clock.now_s() // 60), attributes={}, value=1)
    return TelemetryBatch(device=device, boot_id="s", sequence=sequence, points=(point,))


def count(engine: sa.Engine, table: str) -> int:
    with engine.connect() as connection:
        return (
            connection.scalar(sa.select(sa.func.count()).select_from(metadata.tables[table])) or 0
        )


def test_a_device_stores_no_more_than_its_budget(
    engine: sa.Engine, store: TelemetryStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.ingest(small(0, clock))
    assert all(store.ingest(flood(number, clock)) for number in range(ENOUGH))
    data = metadata.tables["telemetry_event"].c.data
    with engine.connect() as connection:
        stored_bytes = connection.scalar(sa.select(sa.func.sum(sa.func.length(data)))) or 0
    assert BURST_BYTES * 0.9 < stored_bytes < BURST_BYTES + MAX_MESSAGE_BYTES
    refused = store.devices()[0].refused
    assert refused == ENOUGH * 15 - count(engine, "telemetry_event")
    boots = count(engine, "telemetry_batch")
    assert all(store.ingest(flood(0, clock, boot=f"b{number}")) for number in range(5))
    assert count(engine, "telemetry_batch") == boots
    assert not store.ingest(small(0, clock))
    assert store.devices()[0].refused == refused + 5 * 15
    assert store.ingest(small(0, clock, device="honest"))
    assert [device.device for device in store.devices() if not device.refused] == ["honest"]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "device hostile" in told[0]


def test_a_device_is_heard_again_when_its_bucket_refills(
    store: TelemetryStore, clock: FakeClock
) -> None:
    for number in range(ENOUGH):
        store.ingest(flood(number, clock))
    held_back = small(0, clock)
    assert store.ingest(held_back)
    assert store.metrics() == []
    clock.advance(HOUR_S * MAX_MESSAGE_BYTES / REFILL_BYTES_PER_HOUR)
    assert store.ingest(held_back)
    assert [found[:2] for found in store.metrics()] == [("n_total", "sum")]


def test_what_is_older_than_all_that_is_kept_is_refused(
    store: TelemetryStore, clock: FakeClock
) -> None:
    now_s = clock.now_s()
    old = Event(at_s=now_s - 31 * DAY_S, kind="k", reason="")
    points = tuple(
        SumPoint(metric="n_total", minute=int(at_s // 60), attributes={}, value=1)
        for at_s in (0.0, now_s - 31 * DAY_S, now_s - 29 * DAY_S)
    )
    batch = TelemetryBatch(device="d", boot_id="b", sequence=0, points=points, events=(old,))
    assert store.ingest(batch)
    assert not store.ingest(batch)
    assert store.devices()[0].refused == 3
    assert store.events() == []
    assert store.prune() == 0


def labelled(sequence: int, device: str, clock: FakeClock, *values: str) -> TelemetryBatch:
    minute = int(clock.now_s() // 60)
    points = tuple(
        SumPoint(
            metric="inference_failures_total", minute=minute, value=1,
            attributes={"release": "digits:1", "code": value},
        )
        for value in values
    )  # fmt: skip
    return TelemetryBatch(device=device, boot_id="s", sequence=sequence, points=points)


def totals(engine: sa.Engine) -> dict[tuple[str, str], float]:
    """Return what is stored, by release and the other labels."""
    series, minute = metadata.tables["telemetry_series"].c, metadata.tables["telemetry_minute"].c
    total = sa.func.sum(minute.total)
    query = sa.select(series.release, series.attributes, total).where(
        series.id == minute.series_id
    ).group_by(series.release, series.attributes)  # fmt: skip
    with engine.connect() as connection:
        return {(release, others): value for release, others, value in connection.execute(query)}


def test_values_of_a_label_that_are_too_many_count_as_other_and_are_told_once_an_hour(
    engine: sa.Engine, clock: FakeClock
) -> None:
    store = TelemetryStore(engine, clock, bounds=Bounds(label_values=2))
    codes = [f"code-{number}" for number in range(5)]
    assert store.ingest(labelled(0, "pi-1", clock, *codes))
    assert store.ingest(labelled(1, "pi-1", clock, *codes, "another"))
    assert store.ingest(labelled(0, "pi-2", clock, "code-0", "code-9"))
    assert not store.ingest(labelled(0, "pi-2", clock, "code-0", "code-9"))
    assert totals(engine) == {
        ("digits:1", '{"code":"code-0"}'): 3.0,
        ("digits:1", '{"code":"code-1"}'): 2.0,
        ("digits:1", '{"code":"other"}'): 8.0,
    }
    assert [device.refused for device in store.devices()] == [0, 0]
    told = store.events(EventQuery(kinds=("series",)))
    assert [found.device for found in told] == ["pi-1", "pi-2"]
    assert told[0].event.reason.startswith("`code` of inference_failures_total has 2 values in")
    clock.advance(HOUR_S)
    assert store.ingest(labelled(2, "pi-1", clock, *codes))
    assert len(store.events(EventQuery(kinds=("series",)))) == 3


def of_releases(device: str, clock: FakeClock, *releases: str) -> TelemetryBatch:
    """One request of each release."""
    minute = int(clock.now_s() // 60)
    points = tuple(
        SumPoint(
            metric="inference_requests_total", minute=minute, value=1, attributes={"release": each}
        )
        for each in releases
    )
    return TelemetryBatch(device=device, boot_id="r", sequence=0, points=points)


def test_the_values_that_one_device_makes_up_are_other_for_itself_alone(
    engine: sa.Engine, clock: FakeClock
) -> None:
    with Session(engine) as session, session.begin():
        add_release(session)
    bounds = Bounds(label_values=8, device_label_values=3)
    store = TelemetryStore(engine, clock, bounds=bounds, published=releases.label_values)
    made_up = [f"a:{number}" for number in range(9)]
    together = [
        of_releases("evil", clock, *made_up, PUBLISHED),
        of_releases("pi-1", clock, "a:8"),
        of_releases("pi-2", clock, "tried:1", "tried:2"),
    ]
    assert all(outcome.is_new for outcome in store.ingest_all(together))
    names = ["a:0", "a:1", "a:2", "tried:1", "tried:2"]
    expected = dict.fromkeys(names, 1.0) | {"a:8": 2.0, PUBLISHED: 1.0, "other": 5.0}
    assert {release: value for (release, _), value in totals(engine).items()} == expected
    (told,) = store.events(EventQuery(kinds=("series",)))
    assert told.device == "evil"
    why = "this device brings more than 3 values of `release` of inference_requests_total: "
    assert told.event.reason == f"{why}further ones count as `other`"


def test_a_device_with_too_many_series_has_its_further_ones_counted_as_one(
    engine: sa.Engine, clock: FakeClock
) -> None:
    bounds = Bounds(device_series=300, device_label_values=1000)
    store = TelemetryStore(engine, clock, bounds=bounds)
    codes = [f"code-{number:03}" for number in range(1000)]
    assert store.ingest(labelled(0, "pi-1", clock, *codes))
    assert store.ingest(labelled(0, "pi-2", clock, *codes[:100], "code-000", "new"))
    found = totals(engine)
    assert len(found) == 302
    assert found["other", '{"code":"other"}'] == 700.0
    assert found["digits:1", '{"code":"new"}'] == 1.0
    assert sum(found.values()) == 1102.0
    (told,) = store.events(EventQuery(kinds=("series",)))
    assert told.device == "pi-1"
    assert told.event.data == {
        "metric": "inference_failures_total", "labels": ["code", "release"],
    }  # fmt: skip
