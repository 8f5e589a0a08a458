"""No device fills the controller's database, on both databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from telemetry.server.budget import BURST_BYTES, REFILL_BYTES_PER_HOUR
from telemetry.server.pruning import Retention
from telemetry.server.store import TelemetryStore, metadata
from tests.simulators.clock import FakeClock
from wire.messages import MAX_MESSAGE_BYTES, Event, SumPoint, TelemetryBatch

DAY_S = 86_400.0
HOUR_S = 3600.0
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
