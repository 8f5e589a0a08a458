"""Batches that wait together are stored together; none keeps the others back."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
import sqlalchemy as sa

from controller.services.telemetry_batches import ITEMS_AT_ONCE, TelemetryBatches, report_every_s
from controller.store.database import Database
from telemetry.errors import TelemetryStoreError
from telemetry.server.dead_letters import MAX_PAYLOAD_BYTES, MOST_OF_DEVICE
from telemetry.server.query import parse, run
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from tests.simulators.stored_fleet import add_device
from wire.codec import from_json, to_msgpack
from wire.packed import packed
from wire.telemetry import HistogramPoint, SumPoint, TelemetryAck, TelemetryBatch
from wire.topics import down


class Devices:
    """The devices' end: what is acknowledged."""

    def __init__(self) -> None:
        self.acks: dict[str, list[TelemetryAck]] = {}

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        del expiry_s
        self.acks.setdefault(topic, []).append(from_json(payload, TelemetryAck))
        return True

    def of(self, device: str) -> list[int]:
        found = self.acks.get(down(device, "telemetry_ack"), [])
        return [sequence for ack in found for sequence in ack.sequences]


class Controller:
    """What takes telemetry, of a fleet with two devices."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        self.database, self.clock = database, clock
        self.devices = Devices()
        self.counts: Counter[str] = Counter()
        self.store = TelemetryStore(database.engine, clock, reading_engine=database.reading_engine)
        with database.transaction() as transaction:
            for name in ("pi-1", "pi-2"):
                add_device(transaction, name)
        self.taking = TelemetryBatches(
            database, self.store, self.devices, clock, self.counts, self._refuse
        )

    def _refuse(self, code: str, _where: str, _why: str) -> None:
        self.counts[code] += 1

    def total(self) -> object:
        query = parse("n_total", statistics="total", since="0", now_s=self.clock.now_s() + 60)
        return run(self.store, query).rows


@pytest.fixture
def controller(database_url: str) -> Iterator[Controller]:
    database = Database(database_url)
    yield Controller(database, FakeClock())
    database.close()


def batch(clock: FakeClock, sequence: int, device: str = "pi-1", value: float = 1) -> bytes:
    minute = int(clock.now_s() // 60)
    point = SumPoint(metric="n_total", minute=minute, attributes={}, value=value)
    return to_msgpack(
        TelemetryBatch(device=device, boot_id="b", sequence=sequence, points=(point,))
    )


def test_what_waits_together_is_acknowledged_when_all_is_stored(controller: Controller) -> None:
    clock = controller.clock
    received = [(name, batch(clock, n, name)) for n in range(3) for name in ("pi-1", "pi-2")]
    controller.taking.take([*received, received[0]])
    assert controller.total() == ((6,),)
    assert controller.devices.of("pi-2") == [0, 1, 2]
    assert sorted(controller.devices.of("pi-1")) == [0, 0, 1, 2]
    assert controller.counts == {"ingest.duplicate": 1}
    assert len(controller.devices.acks[down("pi-1", "telemetry_ack")]) == 1


def test_a_batch_that_cannot_be_read_becomes_a_dead_letter(controller: Controller) -> None:
    clock = controller.clock
    large = b"\xc1" * 9000
    controller.taking.take(
        [
            ("pi-1", b"\xc1nonsense"),
            ("pi-1", batch(clock, 0)),
            ("pi-2", batch(clock, 0, "pi-1")),
            ("pi-2", batch(clock, -1, "pi-2")),
            ("pi-2", large),
            ("stranger", batch(clock, 0, "stranger")),
        ]
    )
    assert controller.total() == ((1,),)
    assert controller.devices.of("pi-1") == [0]
    assert controller.devices.of("pi-2") == controller.devices.of("stranger") == []
    letters = controller.store.dead_letters()
    assert len(letters) == 4
    assert {letter.device for letter in letters} == {"pi-1", "pi-2"}
    reasons = " ".join(letter.reason for letter in letters)
    assert "for another device" in reasons
    assert "not a sequence number: -1" in reasons
    (kept,) = [letter for letter in letters if letter.size_bytes == len(large)]
    assert kept.payload == large[:MAX_PAYLOAD_BYTES]
    assert [letter.device for letter in controller.store.dead_letters("pi-1")] == ["pi-1"]


def test_small_messages_that_hold_much_are_stored_some_at_a_time(controller: Controller) -> None:
    minute = int(controller.clock.now_s() // 60)
    point = SumPoint(metric="n_total", minute=minute, attributes={}, value=1)
    received = []
    for sequence in range(12):
        sent = TelemetryBatch(
            device="pi-1", boot_id="b", sequence=sequence, points=(point,) * (ITEMS_AT_ONCE // 8)
        )
        received.append(("pi-1", packed(to_msgpack(sent))))
    assert sum(len(payload) for _, payload in received) < 64 * 1024
    controller.taking.take(received)
    assert controller.total() == ((12 * (ITEMS_AT_ONCE // 8),),)
    assert [len(ack.sequences) for ack in controller.devices.acks.popitem()[1]] == [8, 4]


def test_dead_letters_are_few(controller: Controller) -> None:
    controller.taking.take([("pi-1", b"\xc1%d" % number) for number in range(200)])
    letters = controller.store.dead_letters()
    assert len(letters) == MOST_OF_DEVICE
    assert controller.counts["wire.format"] == 200


def test_a_database_that_fails_acknowledges_nothing(controller: Controller) -> None:
    with controller.database.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE telemetry_fleet_minute RENAME TO away"))
    with pytest.raises(TelemetryStoreError):
        controller.taking.take([("pi-1", batch(controller.clock, 0))])
    assert controller.devices.acks == {}
    with controller.database.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE away RENAME TO telemetry_fleet_minute"))
    controller.taking.take([("pi-1", batch(controller.clock, 0))])
    assert (controller.total(), controller.devices.of("pi-1")) == (((1,),), [0])


def test_broken_batches_do_no_harm(controller: Controller) -> None:
    chance = random.Random(11)
    clock, sound = controller.clock, 0
    for number in range(60):
        received = []
        for _ in range(30):
            whole = bytearray(batch(clock, sound))
            for _ in range(chance.randrange(1, 6)):
                whole[chance.randrange(len(whole))] = chance.randrange(256)
            received.append(("pi-1", bytes(whole)))
        received.insert(chance.randrange(30), ("pi-2", batch(clock, number, "pi-2")))
        controller.taking.take(received)
    assert controller.devices.of("pi-2") == list(range(60))
    query = parse("n_total", statistics="total", where="device=pi-2", since="0",
                  now_s=clock.now_s() + 60)  # fmt: skip
    assert run(controller.store, query).rows == ((60,),)
    for metric in controller.store.metrics():
        run(controller.store, parse(metric.name, since="0", now_s=clock.now_s() + 60))


def test_values_at_the_edge_of_what_is_taken_stay_readable(controller: Controller) -> None:
    minute = int(controller.clock.now_s() // 60)
    points = [
        SumPoint(metric="n_total", minute=minute, attributes={}, value=value)
        for value in (1e30, float("inf"), float("nan"), -1.0, 0.0)
    ] + [HistogramPoint(metric="h_ms", minute=minute, attributes={}, blob=b"\x01\x05")]
    sent = TelemetryBatch(device="pi-1", boot_id="b", sequence=0, points=tuple(points))
    controller.taking.take([("pi-1", to_msgpack(sent))])
    assert controller.total() == ((1e30,),)
    (losses,) = [one for one in controller.store.devices() if one.device == "pi-1"]
    assert losses.refused == 4


@pytest.mark.parametrize(("devices", "every_s"), [(1, None), (1000, None), (7000, 70.0)])
def test_a_large_fleet_is_asked_to_report_more_seldom(devices: int, every_s: float | None) -> None:
    assert report_every_s(devices) == (msgspec.UNSET if every_s is None else every_s)
