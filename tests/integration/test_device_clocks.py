"""Clocks of devices that are wrong are corrected; what only waited is not taken for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.services.telemetry_batches import TelemetryBatches
from controller.store.database import Database
from telemetry.server import tables
from telemetry.server.event_log import EventQuery
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from tests.simulators.reporting_device import ReportingDevice
from tests.simulators.stored_fleet import add_device
from tests.simulators.transport import MemoryHub
from wire.telemetry import TelemetryBatch
from wire.topics import up
from wire.transport import Received

HOUR_S = 3600.0
YEARS_S = 10 * 365 * 86_400.0
NAME = "pi-1"


class Fleet:
    """A controller and one device, each with a clock of its own, and the broker between them."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        self.clock = FakeClock()
        self.store = TelemetryStore(database.engine, self.clock)
        with database.transaction() as transaction:
            add_device(transaction, NAME)
        self.hub = MemoryHub()
        self.counts: Counter[str] = Counter()
        publisher = self.hub.on("nothing", lambda _: None)
        self.taking = TelemetryBatches(
            database, self.store, publisher, self.clock, self.counts, lambda *_: None
        )
        self.waiting: list[Received] = []
        self.hub.on(up(NAME, "telemetry"), self.waiting.append)
        self.directory = directory

    def start(self, start: str, *, ahead_s: float, waits_s: float = 0.0) -> ReportingDevice:
        """Start the device's agent, after a time in which the device was off."""
        self.clock.advance(waits_s)
        clock = FakeClock(self.clock.now_s() + ahead_s)
        return ReportingDevice(self.hub, NAME, self.directory, start, clock)

    def advance(self, device: ReportingDevice, duration_s: float) -> None:
        self.clock.advance(duration_s)
        device.clock.advance(duration_s)

    def take(self) -> None:
        """Let the controller take what waits at the broker."""
        taken, self.waiting[:] = list(self.waiting), []
        if taken:
            self.taking.take([(NAME, each.payload) for each in taken])

    def minutes(self) -> dict[int, float]:
        """Return what is stored of the requests, by how many minutes ago it was."""
        table = tables.minute.c
        query = sa.select(table.minute, table.total).join(
            tables.series, tables.series.c.id == table.series_id
        ).where(tables.series.c.metric == "n_total")  # fmt: skip
        now = int(self.clock.now_s() // 60)
        with self.database.engine.connect() as connection:
            return {now - minute: total for minute, total in connection.execute(query)}

    def told(self) -> list[str]:
        return [found.event.reason for found in self.store.events(EventQuery(kinds=("clock",)))]


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    database = Database(database_url)
    yield Fleet(database, tmp_path)
    database.close()


@pytest.mark.parametrize("ahead_s", [3 * HOUR_S, -YEARS_S], ids=["ahead", "behind"])
def test_a_wrong_clock_is_corrected_and_told_once(fleet: Fleet, ahead_s: float) -> None:
    device = fleet.start("a", ahead_s=ahead_s)
    device.count(1)
    fleet.advance(device, 600.0)
    device.connect()
    device.pump.send()
    fleet.take()
    assert fleet.minutes() == {}, "nothing is stored at a wrong time"
    assert fleet.counts["ingest.asked_again"] == 1
    device.hear()
    fleet.take()
    device.count(2)
    device.pump.send()
    fleet.take()
    assert device.hear() == 0
    assert fleet.minutes() == {10: 1.0, 0: 2.0}
    (told,) = fleet.told()
    assert told.startswith(
        "the clock is 3h ahead" if ahead_s > 0 else "the clock is 10 years behind"
    )
    assert fleet.store.wrong_clocks() == pytest.approx({NAME: ahead_s}, abs=1.0)
    assert fleet.store.devices()[0].batches == 2

    device.clock.correct(-ahead_s)
    device.count(4)
    device.pump.send()
    fleet.take()
    device.hear()
    assert fleet.minutes() == {10: 1.0, 0: 6.0}
    assert fleet.store.wrong_clocks() == {}
    assert len(fleet.told()) == 2
    device.end()


@pytest.mark.parametrize("waits_s", [60.0, HOUR_S])
def test_what_waited_at_the_broker_is_not_taken_for_a_wrong_clock(
    fleet: Fleet, waits_s: float
) -> None:
    device = fleet.start("a", ahead_s=0.0)
    device.count(1)
    device.connect()
    device.pump.send()
    fleet.advance(device, waits_s)
    for _ in range(3):
        fleet.take()
        device.hear()
    minutes = int(waits_s // 60)
    assert fleet.minutes() == {minutes: 1.0}
    assert (fleet.told(), fleet.store.wrong_clocks(), device.hear()) == ([], {}, 0)
    device.end()


def test_what_was_recorded_before_the_clock_was_set_is_told_apart(fleet: Fleet) -> None:
    """Without a battery a clock begins in the past, and the network sets it some seconds later."""
    device = fleet.start("a", ahead_s=-YEARS_S)
    device.count(1)
    device.recorder.add("n_total", 2, {})
    fleet.advance(device, 1.0)
    device.clock.correct(YEARS_S)
    device.pump.tick()
    device.count(4)
    device.connect()
    for _ in range(2):
        device.pump.send()
        fleet.take()
        device.hear()
    assert device.hear() == 0
    assert sum(fleet.minutes().values()) == 7.0
    assert set(fleet.minutes()) <= {0, 1}
    device.end()


def test_over_a_restart_nothing_is_corrected_by_what_nobody_knows(fleet: Fleet) -> None:
    """The device was off for an hour, and is 3 h ahead; its first start never had the time."""
    before = fleet.start("a", ahead_s=60.0)
    before.count(1)
    before.end()
    after = fleet.start("b", ahead_s=3 * HOUR_S, waits_s=HOUR_S)
    after.connect()
    for _ in range(3):
        after.count(2)
        after.pump.send()
        fleet.take()
        after.hear()
    assert after.hear() == 0
    assert fleet.minutes() == {59: 1.0, 0: 6.0}
    assert len(fleet.told()) == 1
    after.end()


def test_a_correction_that_was_known_is_kept_over_a_restart(fleet: Fleet) -> None:
    before = fleet.start("a", ahead_s=3 * HOUR_S)
    before.connect()
    for _ in range(2):
        before.count(1)
        before.pump.send()
        fleet.take()
        before.hear()
    before.link.close()
    before.count(4)
    before.pump.close()
    after = fleet.start("b", ahead_s=0.0, waits_s=HOUR_S)
    after.connect()
    after.pump.send()
    fleet.take()
    assert after.hear() == 0
    assert fleet.minutes() == {60: 6.0}
    after.end()


def test_a_device_on_a_slow_road_is_taken_as_it_is(fleet: Fleet) -> None:
    device = fleet.start("a", ahead_s=HOUR_S)
    device.count(1)
    device.connect()
    device.pump.send()
    for _ in range(4):  # each copy is sent when it is its turn
        fleet.advance(device, 150.0)
        fleet.take()
        device.hear()
    assert device.hear() == 0
    assert fleet.minutes() == {-50: 1.0}
    device.end()


def test_an_older_agent_is_taken_as_it_is(fleet: Fleet) -> None:
    assert fleet.store.ingest(TelemetryBatch(device=NAME, boot_id="b", sequence=0))
    assert fleet.store.wrong_clocks() == {}
