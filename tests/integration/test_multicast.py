"""Casts: a device's source in memory, and a fleet of processes with a real Mosquitto."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from agent.errors import StoppedError
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.listening import Listening
from agent.install.fetch.messages import MessageSource
from agent.install.fetch.multicast import MulticastSource
from agent.install.fetch.offers import Offers
from agent.install.fetch.part import Blob
from agent.install.fetch.sources import Errand, SourceName
from agent.link.connection import Link
from agent.link.identity import Account
from agent.link.outage import Outage
from benchmarks.transfers.measuring import run_once
from benchmarks.transfers.rig import Rig, running_rig
from telemetry.device.recorder import Recorder
from tests.simulators.chunk_server import ChunkServer
from tests.simulators.packages import DIRECTOR_KEY, TRUST
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.transport import MemoryHub
from wire.clock import SystemClock
from wire.codec import sha256_hex, to_json, to_msgpack
from wire.delivery import (
    SOURCES_PAYLOAD_TYPE,
    BlobSources,
    Cast,
    CastPiece,
    CastReport,
    Chunk,
    SourceRequest,
    Sources,
)
from wire.messages import decode_message
from wire.package.index import entry_for
from wire.topics import all_down, cast, cast_name, down, up
from wire.transport import Connection, Received
from wire.trust.envelope import seal

DEVICE = "dev-1"
NAME = "0a" * 16
CHUNK = 64 * 1024
PIECE = 16 * 1024
CONTENT = random.Random(5).randbytes(6 * CHUNK + 7)
SHA256 = sha256_hex(CONTENT)
COUNT = 7

Send = Callable[[int, bytes, int], None]
"""Position, data and offset of a piece."""


class Device:
    """A fetcher with casts and messages, and a controller that casts as the test says."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hub = MemoryHub()
        self.reports: list[CastReport] = []
        self.came: dict[str, int] = {}
        self.faults: list[str] = []
        self.topic: str | None = NAME
        self.act: Callable[[CastReport], None] = lambda _report: None
        self.chunks = ChunkServer(self.hub.on("none", lambda _r: None))
        self.chunks.add(CONTENT)
        self.hub.on(up(DEVICE, "chunk_request"), self.chunks.hear)
        self.controller = self.hub.on(up(DEVICE, "source_request"), self._asked)
        self.hub.on(up(DEVICE, "cast_report"), self._reported)
        self.transport = transport = self.hub.connect()
        transport.subscribe(all_down(DEVICE))

        def publish(topic: str, payload: bytes, _expiry_s: int | None) -> bool:
            return transport.publish(topic, payload)

        clock = SystemClock()
        self.messages = MessageSource(DEVICE, publish, clock)
        self.offers = Offers(DEVICE, publish, TRUST, clock)
        self.multicast = MulticastSource(
            DEVICE,
            self.offers,
            publish=publish,
            subscribe=transport.subscribe,
            unsubscribe=transport.unsubscribe,
            clock=clock,
            least_bytes=CHUNK,
        )
        self.fetcher = Fetcher(
            [self.multicast, self.messages],
            clock,
            on_fault=lambda name, fault: self.faults.append(f"{name}: {fault.message}"),
        )
        transport.start(self._hear, lambda _connection: None)

    def _hear(self, received: Received) -> None:
        if (name := cast_name(received.topic)) is not None:
            self.multicast.deliver(name, received.payload)
        elif received.topic.endswith("/sources"):
            self.offers.hear(received.payload)
        else:
            self.messages.deliver(decode_message(received.payload, Chunk, packed=True))

    def _asked(self, received: Received) -> None:
        request = decode_message(received.payload, SourceRequest)
        offer = msgspec.UNSET if self.topic is None else Cast(topic=self.topic, wait_s=0.3)
        ways = (BlobSources(sha256=SHA256, cast=offer),)
        answer = Sources(device=DEVICE, nonce=request.nonce, blobs=ways, valid_s=60.0)
        signed = seal(to_json(answer), payload_type=SOURCES_PAYLOAD_TYPE, keys=(DIRECTOR_KEY,))
        self.controller.publish(down(DEVICE, "sources"), signed)

    def _reported(self, received: Received) -> None:
        report = decode_message(received.payload, CastReport)
        self.reports.append(report)
        if len(self.reports) == 1:
            self.act(report)

    def send(self, position: int, data: bytes, offset: int, *, late_s: float = 0.0) -> None:
        """Cast a piece."""
        piece = CastPiece(
            position=position,
            offset=offset,
            data=data,
            at_s=SystemClock().monotonic_s() - late_s,
            report_s=0.2,
        )
        self.controller.publish(cast(NAME), to_msgpack(piece))

    def send_all(self, first: int = 0, *, without: int | None = None) -> None:
        """Cast one round, from one chunk on, perhaps without another."""
        position = 10_000
        for number in range(COUNT):
            chunk = (first + number) % COUNT
            for offset in range(chunk * CHUNK, min((chunk + 1) * CHUNK, len(CONTENT)), PIECE):
                data = CONTENT[offset : min(offset + PIECE, (chunk + 1) * CHUNK)]
                if chunk != without:
                    self.send(position, data, offset)
                position += len(data)
        self.send(position, b"", 0)

    def fetch(self, check: Callable[[], None] = lambda: None) -> None:
        entry = entry_for("x", CONTENT, chunk_bytes=CHUNK)

        def progress(size_bytes: int, source: SourceName) -> None:
            self.came[source] = self.came.get(source, 0) + size_bytes

        errand = Errand(progress=progress, check=check, blobs=(SHA256,), asks=True)
        parts = self.directory / "parts"
        parts.mkdir(exist_ok=True)
        blob = Blob.of_file(entry, CHUNK)
        self.fetcher.fetch(blob, parts / entry.sha256, (self.directory, "file"), errand)
        assert (self.directory / "file").read_bytes() == CONTENT


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_a_blob_comes_by_a_cast_from_wherever_it_begins(device: Device) -> None:
    device.act = lambda _report: device.send_all(first=3)
    device.fetch()
    assert device.came == {"multicast": len(CONTENT)}
    assert int(device.reports[0].lacking, 16) == (1 << COUNT) - 1
    assert device.reports[-1].lacking == ""
    assert device.chunks.sent == []
    assert not device.transport.wants(cast(NAME))


def test_messages_fill_the_holes(device: Device) -> None:
    device.act = lambda _report: device.send_all(without=2)
    device.fetch()
    assert device.came == {"multicast": len(CONTENT) - CHUNK, "mqtt": CHUNK}
    assert device.reports[-1].lost_bytes == CHUNK
    assert device.faults == []


def test_a_cast_that_does_not_begin_is_not_waited_for(device: Device) -> None:
    device.fetch()
    assert device.came == {"mqtt": len(CONTENT)}
    assert device.faults == []
    assert not device.transport.wants(cast(NAME))


@pytest.mark.parametrize("topic", ["", "../x", "+", "#", f"{NAME}/more", "0A" * 16])
def test_a_name_that_is_none_is_not_subscribed_to(device: Device, topic: str) -> None:
    device.topic = topic
    device.fetch()
    assert device.came == {"mqtt": len(CONTENT)}
    assert device.faults[0].startswith("multicast: ")


def test_without_a_cast_nothing_is_waited_for(device: Device) -> None:
    device.topic = None
    device.fetch()
    assert device.reports == []
    assert device.came == {"mqtt": len(CONTENT)}


def test_a_cast_with_wrong_content_costs_no_byte_and_no_install(device: Device) -> None:
    def lie(_report: CastReport) -> None:
        position = 0
        for chunk in range(COUNT - 1):
            device.send(position, bytes(CHUNK), chunk * CHUNK)
            position += CHUNK
        for offset in (-1, 2**60, len(CONTENT) - 1, 5):
            device.send(position, b"x" * PIECE, offset)
        device.controller.publish(cast(NAME), b"no piece")

    def tolerant(name: str, payload: bytes) -> None:
        try:
            deliver(name, payload)
        except Exception as exc:  # noqa: BLE001 - as the agent's main thread does
            device.faults.append(str(exc))

    deliver = device.multicast.deliver
    device.multicast.deliver = tolerant  # type: ignore[method-assign]
    device.act = lie
    device.fetch()
    assert device.came == {"mqtt": len(CONTENT)}
    assert any("chunks of a cast were wrong" in fault for fault in device.faults)


def test_a_device_that_is_too_slow_leaves_keeps_what_comes_and_rests(device: Device) -> None:
    def cast_too_fast(_report: CastReport) -> None:
        device.send(0, CONTENT[:CHUNK], 0)
        device.send(CHUNK, CONTENT[CHUNK : 2 * CHUNK], CHUNK, late_s=20.0)
        device.send(2 * CHUNK, CONTENT[2 * CHUNK : 3 * CHUNK], 2 * CHUNK, late_s=20.0)

    device.act = cast_too_fast
    device.fetch()
    assert device.came == {"multicast": 3 * CHUNK, "mqtt": len(CONTENT) - 3 * CHUNK}
    assert device.faults == ["multicast: this device is slower than most that listen"]
    (device.directory / "file").unlink()
    device.topic = "0b" * 16
    device.offers.forget(SHA256)
    count = len(device.reports)
    device.fetch()
    assert len(device.reports) == count


def test_an_agent_that_stops_leaves_the_cast(device: Device) -> None:
    def check() -> None:
        if device.reports:
            raise StoppedError("stop")

    with pytest.raises(StoppedError):
        device.fetch(check)
    assert device.reports[-1].lacking == ""
    assert not device.transport.wants(cast(NAME))


def test_what_comes_of_other_casts_costs_nothing(device: Device) -> None:
    device.multicast.deliver("0c" * 16, b"not even a piece")


def test_a_new_connection_is_subscribed_to_what_the_last_one_was() -> None:
    hub = MemoryHub()
    clock = SystemClock()
    link = Link(DEVICE, "boot", Outage("broker", Recorder(clock), clock))
    account = Account(client_id=DEVICE, username=DEVICE, password=None)
    link.open(lambda _login: hub.connect(), account)
    link.subscribe(cast(NAME))
    link.open(lambda _login: hub.connect(), account)
    assert [each.wants(cast(NAME)) for each in hub.transports] == [True]
    link.unsubscribe(cast(NAME))
    link.open(lambda _login: hub.connect(), account)
    assert [each.wants(cast(NAME)) for each in hub.transports] == [False]
    assert isinstance(link.next(0.0), Connection)
    link.close()


def test_pieces_that_come_twice_or_out_of_place_count_once() -> None:
    listening = Listening(2 * CHUNK, CHUNK, wait_s=1.0, phase=0.0, now_s=0.0)

    def take(position: int, size_bytes: int, offset: int) -> object:
        data = bytes(size_bytes)
        piece = CastPiece(position=position, offset=offset, data=data, at_s=0.0, report_s=0.2)
        return listening.take(piece, 0.1)

    assert take(100, PIECE, 0) is None
    assert take(100, PIECE, 0) is None
    assert take(100 + 3 * PIECE, PIECE, 3 * PIECE) is None
    assert listening.lost_bytes == 2 * PIECE
    assert take(100 + 4 * PIECE, CHUNK, CHUNK) == (1, bytes(CHUNK))
    assert listening.end(0.1) == ""
    assert listening.end(10.0) == "silence"


SIZE = 5_000_000
DEVICES = 16


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("casting")
    with running_rig(folder, {"blob": SIZE, "other": SIZE}, DEVICES) as made:
        yield made


@pytest.mark.broker
def test_a_fleet_gets_a_blob_for_the_bytes_of_a_few(rig: Rig) -> None:
    with rig.crowd(rig.devices) as crowd:
        run = run_once(rig, crowd, "blob", count=DEVICES, limit_s=PATIENCE_S, multicast=True)
    assert {result.fault for result in run.results} == {""}
    assert {result.useful_bytes for result in run.results} == {SIZE}
    # The first that asks waits for nobody; on a busy machine a few come too late for a cast.
    assert run.sent_bytes <= DEVICES / 2 * SIZE
    assert sum(result.cast_bytes for result in run.results) >= DEVICES / 2 * SIZE
    assert run.broker_peak_mb < 50


@pytest.mark.broker
def test_a_controller_that_is_killed_in_the_middle_of_a_cast_costs_nothing(rig: Rig) -> None:
    log = rig.stack.home.parent / "stack.log"
    begun = log.read_text().count(" is cast to ")
    with rig.crowd(rig.devices) as crowd:
        restarted = threading.Event()

        def kill() -> None:
            until(lambda: log.read_text().count(" is cast to ") > begun, "a cast")
            process = rig.stack.processes.pop()
            process.kill()
            process.wait(PATIENCE_S)
            rig.stack.run("controller", "run")
            restarted.set()

        killer = threading.Thread(target=kill)
        killer.start()
        _began_s, results = crowd.fetch("other", count=DEVICES, limit_s=PATIENCE_S, multicast=True)
        killer.join(PATIENCE_S)
        assert restarted.is_set()
    assert {result.fault for result in results} == {""}
    assert {result.useful_bytes for result in results} == {SIZE}
