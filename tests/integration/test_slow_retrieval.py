"""Sources that send just enough to look alive: the device asks another, or goes on and says so."""

from __future__ import annotations

import contextlib
import itertools
import queue
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.errors import StoppedError
from agent.install.fetch.connection import Bounds
from agent.install.fetch.delta import NOTHING_SHA256, DeltaSource
from agent.install.fetch.fetcher import Fetcher, SlowSource
from agent.install.fetch.http import HttpSource
from agent.install.fetch.messages import MessageSource
from agent.install.fetch.multicast import MulticastSource
from agent.install.fetch.part import Blob
from agent.install.fetch.peer import PeerSource
from agent.install.fetch.slowness import Watch
from agent.install.fetch.sources import ChunkSource, Coming, Errand, SourceName
from tests.simulators.chunk_server import ChunkServer
from tests.simulators.deltas import of_files
from tests.simulators.patience import finished
from tests.simulators.raw_server import RawServer
from tests.simulators.transport import MemoryHub
from wire.clock import SystemClock
from wire.codec import sha256_hex, to_msgpack
from wire.delivery import BlobSources, Cast, CastPiece, Chunk
from wire.delivery import DeltaSource as Delta
from wire.messages import decode_message
from wire.package.index import entry_for
from wire.topics import all_down, cast, cast_name, up
from wire.transport import Received

DEVICE = "dev-1"
SIZE = 64 * 1024
CONTENT = random.Random(5).randbytes(SIZE // 2) * 8 + b"end"
SHA256 = sha256_hex(CONTENT)
BOUNDS = Bounds(window_s=1.0, least_bytes_per_s=1e6)
"""No source on loopback that sends as it can is so slow, and a drip is always slower."""

DRIP_BYTES, DRIP_S, DRIP_MESSAGE_S = 200, 0.01, 0.5
NAME = "b" * 32


class Ways:
    """What the controller told of the blob."""

    def __init__(self) -> None:
        self.known: dict[str, BlobSources] = {}

    def of(self, sha256: str, _errand: Errand) -> BlobSources | None:
        return self.known.get(sha256)

    def forget(self, _sha256: str) -> None:
        """There are no others."""


class Place:
    """A server that answers a range at once, or drips it."""

    def __init__(self) -> None:
        self.drips = False
        self.asked = 0
        self.sent_bytes = 0
        self.raw = RawServer(self._answer)

    def _answer(self, sock: socket.socket, request: bytes) -> bool:
        self.asked += 1
        found = re.search(rb"bytes=(\d+)-(\d+)", request)
        assert found is not None
        first, last = int(found[1]), int(found[2])
        head = (
            f"HTTP/1.1 206 Partial\r\nContent-Range: bytes {first}-{last}/{len(CONTENT)}\r\n"
            f"Content-Length: {last + 1 - first}\r\n\r\n"
        )
        sock.sendall(head.encode())
        step = DRIP_BYTES if self.drips else len(CONTENT)
        for at in range(first, last + 1, step):
            if self.drips:
                self.raw.ended.wait(DRIP_S)
            sock.sendall(CONTENT[at : min(at + step, last + 1)])
            self.sent_bytes += step
        return True

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.raw.port}"


class Device:
    """A fetcher with every kind of source; each may drip."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = SystemClock()
        self.ways = Ways()
        self.ways.known[SHA256] = BlobSources(sha256=SHA256)
        self.came: dict[str, int] = {}
        self.slow: list[SlowSource] = []
        self.faults: list[str] = []
        self.drip_s = 0.0
        """How long the controller waits before it sends a message."""

        self.late: queue.Queue[Chunk] = queue.Queue()

        self.hub = MemoryHub()
        self.server = ChunkServer(self.hub.on("none", lambda _r: None), self._tamper)
        self.server.add(CONTENT)
        self.hub.on(up(DEVICE, "chunk_request"), self.server.hear)
        self.transport = self.hub.connect()
        self.transport.subscribe(all_down(DEVICE))
        self.messages = MessageSource(DEVICE, self._publish, self.clock, watch=self._watch())
        self.multicast = MulticastSource(
            DEVICE,
            self.ways,
            publish=self._publish,
            subscribe=self.transport.subscribe,
            unsubscribe=self.transport.unsubscribe,
            clock=self.clock,
            watch=self._watch(),
            least_bytes=SIZE,
        )
        self.web = HttpSource(self.ways, self.clock, bounds=BOUNDS)
        self.peer = PeerSource(self.ways, self.clock, Coming(), wait_s=0.0, bounds=BOUNDS)
        self.transport.start(self._hear, lambda _c: None)

    @staticmethod
    def _watch() -> Watch:
        return Watch(BOUNDS.window_s, BOUNDS.least_bytes_per_s)

    def _publish(self, topic: str, payload: bytes, _expiry_s: int | None) -> bool:
        return self.transport.publish(topic, payload)

    def _tamper(self, chunk: Chunk) -> Chunk | None:
        if not self.drip_s:
            return chunk
        self.late.put(chunk)
        return None

    def send_late(self, ended: threading.Event) -> None:
        """Send the messages that drip; runs in a thread of its own."""
        while not ended.is_set():
            with contextlib.suppress(queue.Empty):
                chunk = self.late.get(timeout=0.05)
                ended.wait(self.drip_s)
                self.messages.deliver(chunk)

    def _hear(self, received: Received) -> None:
        if (name := cast_name(received.topic)) is not None:
            self.multicast.deliver(name, received.payload)
        else:
            self.messages.deliver(decode_message(received.payload, Chunk, packed=True))

    def link(self, *places: Place, peers: tuple[Place, ...] = ()) -> None:
        self.ways.known[SHA256] = BlobSources(
            sha256=SHA256,
            urls=tuple(f"http://{place.host}/blobs/{SHA256}?k=1" for place in places),
            peers=tuple(f"http://{place.host}/blobs/{SHA256}?peer=x" for place in peers),
        )

    def fetch(
        self, *sources: ChunkSource, check: Callable[[], None] = lambda: None
    ) -> dict[str, int]:
        """Fetch the blob; return how much each source brought."""

        def progress(size_bytes: int, source: SourceName) -> None:
            self.came[source] = self.came.get(source, 0) + size_bytes

        fetcher = Fetcher(
            sources,
            self.clock,
            on_fault=lambda name, fault: self.faults.append(f"{name}: {fault.message}"),
            on_slow=self.slow.append,
        )
        errand = Errand(progress=progress, check=check, blobs=(SHA256,), asks=True)
        blob = Blob.of_file(entry_for("x", CONTENT, chunk_bytes=SIZE), SIZE)
        try:
            fetcher.fetch(blob, self.directory / "part", (self.directory, "file"), errand)
        finally:
            fetcher.end()
        assert (self.directory / "file").read_bytes() == CONTENT
        return self.came


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made, ended = Device(tmp_path), threading.Event()
    thread = threading.Thread(target=made.send_late, args=(ended,))
    thread.start()
    yield made
    ended.set()
    finished(thread)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    with made.raw.running():
        yield made


@pytest.fixture
def mirror() -> Iterator[Place]:
    made = Place()
    with made.raw.running():
        yield made


def test_a_server_that_drips_is_left_for_messages(device: Device, place: Place) -> None:
    place.drips = True
    device.link(place)
    came = device.fetch(device.web, device.messages)
    assert came["mqtt"] >= len(CONTENT) - SIZE
    (found,) = device.slow
    assert (found.source, found.other, found.slow.who) == ("http", "mqtt", place.host)
    assert 0 < found.slow.bytes_per_s < found.slow.least_bytes_per_s == 1e6
    assert device.faults == []


def test_a_server_that_drips_is_left_for_another_server(
    device: Device, place: Place, mirror: Place
) -> None:
    place.drips = True
    device.link(place, mirror)
    assert set(device.fetch(device.web)) == {"http"}
    assert [(each.source, each.other) for each in device.slow] == [("http", mirror.host)]


def test_a_neighbour_that_drips_is_left_for_the_next_and_then_for_a_server(
    device: Device, place: Place, mirror: Place
) -> None:
    place.drips = True
    device.link(mirror, peers=(place,))
    came = device.fetch(device.peer, device.web)
    assert came["http"] >= len(CONTENT) - SIZE
    assert [(each.source, each.other) for each in device.slow] == [("peer", "http")]


def test_messages_that_drip_are_left_for_a_server(device: Device, place: Place) -> None:
    device.drip_s = DRIP_MESSAGE_S
    device.link(place)
    came = device.fetch(device.messages, device.web)
    assert came["http"] > 0
    assert [(each.source, each.other) for each in device.slow] == [("mqtt", "http")]


def test_a_cast_that_drips_is_left_for_messages(device: Device) -> None:
    device.ways.known[SHA256] = BlobSources(sha256=SHA256, cast=Cast(topic=NAME, wait_s=5.0))
    caster = device.hub.on("none", lambda _r: None)
    position = itertools.count(10_000, DRIP_BYTES)
    at = itertools.count(0, DRIP_BYTES)

    next_s = [0.0]

    def drip() -> None:
        if device.clock.monotonic_s() < next_s[0]:
            return
        next_s[0] = device.clock.monotonic_s() + DRIP_S
        offset = next(at)
        piece = CastPiece(
            position=next(position),
            offset=offset,
            data=CONTENT[offset : offset + DRIP_BYTES],
            at_s=device.clock.monotonic_s(),
            report_s=0.2,
        )
        caster.publish(cast(NAME), to_msgpack(piece))

    came = device.fetch(device.multicast, device.messages, check=drip)
    assert came == {"mqtt": len(CONTENT)}
    assert [(each.source, each.other) for each in device.slow] == [("multicast", "mqtt")]


@pytest.mark.few(1)
@pytest.mark.parametrize("source", ["http", "mqtt"])
def test_the_only_source_is_not_left_and_its_slowness_is_told(
    device: Device, place: Place, source: str
) -> None:
    place.drips, device.drip_s = True, DRIP_MESSAGE_S
    device.link(place)
    assert device.fetch(device.web if source == "http" else device.messages) == {
        source: len(CONTENT)
    }
    assert {(each.source, each.other) for each in device.slow} == {(source, "")}
    assert place.asked <= 1, "it goes on with the answer that it has"


def test_if_all_are_slow_the_fastest_brings_it(device: Device, place: Place) -> None:
    place.drips, device.drip_s = True, DRIP_MESSAGE_S
    device.link(place)
    came = device.fetch(device.messages, device.web)
    assert sum(came.values()) == len(CONTENT)
    assert ("mqtt", "http") in {(each.source, each.other) for each in device.slow}


def test_a_slow_fetch_still_ends_at_once_if_it_is_to_end(device: Device, place: Place) -> None:
    place.drips = True
    device.link(place)

    def check() -> None:
        if device.slow:
            raise StoppedError("the agent is being stopped")

    with pytest.raises(StoppedError):
        device.fetch(device.web, check=check)


def test_a_delta_that_drips_alone_is_awaited_because_the_file_would_take_longer(
    device: Device,
) -> None:
    made = of_files("x", b"", CONTENT)
    assert len(made) < len(CONTENT) / 2
    device.drip_s = 1.0
    device.server.add(made)
    told = Delta(
        base=NOTHING_SHA256,
        sha256=sha256_hex(made),
        size_bytes=len(made),
        chunk_bytes=SIZE,
        chunks=entry_for("x", made, chunk_bytes=SIZE).chunks,
    )
    device.ways.known[SHA256] = BlobSources(sha256=SHA256, delta=told)
    delta = DeltaSource(device.ways, [device.messages], device.clock)
    assert device.fetch(delta, device.messages) == {"delta": len(CONTENT)}
    assert {(each.source, each.other) for each in device.slow} == {("delta", "")}
