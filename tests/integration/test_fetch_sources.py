"""Fetching from several sources: real HTTP servers, real processes that apply deltas."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from agent.errors import BlobMissingError, StoppedError
from agent.install.fetch.delta import NOTHING_SHA256, DeltaSource
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.http import HttpSource
from agent.install.fetch.local import LocalSource
from agent.install.fetch.messages import MessageSource
from agent.install.fetch.offers import Offers
from agent.install.fetch.part import Blob
from agent.install.fetch.sources import ChunkSource, Errand, NoHoldings, SourceError, SourceName
from tests.simulators.certificates import Authority
from tests.simulators.chunk_server import ChunkServer
from tests.simulators.deltas import of_files
from tests.simulators.packages import DIRECTOR_KEY, RELEASE_KEY, TRUST
from tests.simulators.range_server import Manner, RangeServer
from tests.simulators.transport import MemoryHub
from wire.clock import SystemClock
from wire.codec import sha256_hex, to_json
from wire.delivery import SOURCES_PAYLOAD_TYPE, BlobSources, Chunk, SourceRequest, Sources
from wire.delivery import DeltaSource as Delta
from wire.errors import SignatureError
from wire.messages import decode_message
from wire.package.index import entry_for
from wire.topics import all_down, down, up
from wire.transport import Received
from wire.trust.envelope import SigningKey, seal

DEVICE = "dev-1"
SIZE = 64 * 1024
RNG = random.Random(11)
OLD = RNG.randbytes(6 * SIZE + 5)
BIG = RNG.randbytes(12 * SIZE)
NEW = OLD[: 3 * SIZE] + RNG.randbytes(200) + OLD[3 * SIZE + 200 :]


class Held(NoHoldings):
    """One file that another package on this device has."""

    packages = ("0" * 64,)

    def __init__(self, path: Path) -> None:
        self._path = path
        self.away = False

    def file(self, sha256: str) -> Path | None:
        if self.away:
            return self._path.with_name("gone")
        return self._path if sha256 == sha256_hex(self._path.read_bytes()) else None


class Rig:
    """A fetcher with all its sources, and a controller that answers as the test says."""

    def __init__(self, directory: Path, http: RangeServer) -> None:
        self.directory = directory
        self.http = http
        self.hub = MemoryHub()
        self.ways: dict[str, BlobSources] = {}
        self.requests: list[SourceRequest] = []
        self.faults: list[str] = []
        self.came: dict[str, int] = {}
        self.key = DIRECTOR_KEY
        self.chunks = ChunkServer(self.hub.on("none", lambda _r: None))
        self.hub.on(up(DEVICE, "chunk_request"), self.chunks.hear)
        self.controller = self.hub.on(up(DEVICE, "source_request"), self._asked)
        transport = self.hub.connect()
        transport.subscribe(all_down(DEVICE))

        def publish(topic: str, payload: bytes, _expiry_s: int | None) -> bool:
            return transport.publish(topic, payload)

        clock = SystemClock()
        self.messages = MessageSource(DEVICE, publish, clock)
        self.denied: set[str] = set()
        self.offers = Offers(DEVICE, publish, TRUST, clock, self.denied.__contains__)
        self.web = HttpSource(self.offers, clock)
        carriers: list[ChunkSource] = [self.web, self.messages]
        self.fetcher = Fetcher(
            [LocalSource(), DeltaSource(self.offers, carriers, clock), *carriers],
            clock,
            on_fault=lambda name, fault: self.faults.append(f"{name}: {fault.message}"),
        )
        transport.start(self._hear, lambda _connection: None)

    def _hear(self, received: Received) -> None:
        if received.topic.endswith("/sources"):
            self.offers.hear(received.payload)
        else:
            self.messages.deliver(decode_message(received.payload, Chunk, packed=True))

    def _asked(self, received: Received) -> None:
        request = decode_message(received.payload, SourceRequest)
        self.requests.append(request)
        known = tuple(self.ways[each] for each in request.blobs if each in self.ways)
        answer = Sources(device=DEVICE, nonce=request.nonce, blobs=known, valid_s=60.0)
        self.controller.publish(down(DEVICE, "sources"), signed(answer, self.key))

    def link(self, content: bytes, *urls: str) -> None:
        """Let the controller give links to a blob; without them the HTTP server's own."""
        digest = sha256_hex(content)
        self.ways[digest] = BlobSources(sha256=digest, urls=urls or (self.http.url(digest),))

    def fetch(
        self,
        content: bytes,
        *,
        holdings: NoHoldings | None = None,
        asks: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> bytes:
        entry = entry_for("x", content, chunk_bytes=SIZE)

        def progress(size_bytes: int, source: SourceName) -> None:
            self.came[source] = self.came.get(source, 0) + size_bytes

        errand = Errand(
            progress=progress,
            check=check,
            holdings=holdings or NoHoldings(),
            blobs=(entry.sha256,),
            asks=asks,
        )
        parts = self.directory / "parts"
        parts.mkdir(exist_ok=True)
        blob = Blob.of_file(entry, SIZE)
        try:
            self.fetcher.fetch(blob, parts / entry.sha256, (self.directory, "a/b"), errand)
        finally:
            self.fetcher.end()
        return (self.directory / "a/b").read_bytes()


def signed(answer: Sources, key: SigningKey = DIRECTOR_KEY) -> bytes:
    return seal(to_json(answer), payload_type=SOURCES_PAYLOAD_TYPE, keys=(key,))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with RangeServer().running() as http:
        http.add(NEW)
        made = Rig(tmp_path, http)
        made.chunks.add(NEW)
        yield made


def test_a_blob_comes_by_http_where_the_controller_has_a_link(rig: Rig) -> None:
    rig.link(NEW)
    assert rig.fetch(NEW) == NEW
    assert rig.came == {"http": len(NEW)}
    assert [each for _, each in rig.http.asked] == [f"bytes=0-{len(NEW) - 1}"]


def test_a_blob_comes_over_tls_from_whom_the_settings_trust(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "other")
    certificate = ours.issue("127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate.cert_file, certificate.key_file)
    with RangeServer().running(tls) as http:
        http.add(NEW)
        rig = Rig(tmp_path, http)
        rig.chunks.add(NEW)
        rig.link(NEW)
        for trusted, way in ((other, "mqtt"), (ours, "http")):
            web = HttpSource(rig.offers, SystemClock(), ca_files=(trusted.ca_file,))
            rig.fetcher = Fetcher([web, rig.messages], SystemClock())
            rig.came.clear()
            assert rig.fetch(NEW) == NEW
            assert rig.came == {way: len(NEW)}
            (tmp_path / "a/b").unlink()


def test_a_controller_that_has_only_messages_is_not_asked(rig: Rig) -> None:
    rig.link(NEW)
    assert rig.fetch(NEW, asks=False) == NEW
    assert rig.came == {"mqtt": len(NEW)}
    assert rig.requests == []


def test_a_blob_that_the_controller_does_not_mention_is_not_asked_for_again(rig: Rig) -> None:
    for _ in range(2):
        assert rig.fetch(NEW) == NEW
        (rig.directory / "a/b").unlink()
    rig.link(OLD)
    rig.http.add(OLD)
    assert rig.fetch(OLD) == OLD, "another one is asked for at once"
    assert len(rig.requests) == 2
    assert rig.came == {"mqtt": 2 * len(NEW), "http": len(OLD)}


@pytest.mark.parametrize("manner", get_args(Manner)[2:-1])
def test_messages_bring_what_a_wrong_server_does_not(rig: Rig, manner: Manner) -> None:
    rig.link(NEW)
    rig.http.manner = manner
    assert rig.fetch(NEW) == NEW
    brought = rig.came.get("http", 0)
    assert rig.came.get("mqtt", 0) == len(NEW) - brought
    match manner:
        case "more":  # it gave what was asked for, and what is over is not read
            assert brought == len(NEW)
        case "ends early":
            assert 0 < brought < len(NEW)
        case _:
            assert brought == 0
            assert rig.faults[0].startswith("http: ")


def test_messages_bring_a_large_file_of_which_a_server_lies(rig: Rig) -> None:
    rig.http.add(BIG)
    rig.chunks.add(BIG)
    rig.link(BIG)
    rig.http.manner = "other bytes"
    assert rig.fetch(BIG) == BIG
    assert rig.came == {"mqtt": len(BIG)}


def test_messages_bring_an_envelope_of_which_a_server_lies(rig: Rig) -> None:
    rig.http.add(BIG)
    rig.chunks.add(BIG)
    rig.link(BIG)
    rig.http.manner = "other bytes"
    blob = Blob(sha256=sha256_hex(BIG), size_bytes=len(BIG))
    (rig.directory / "parts").mkdir()
    target = (rig.directory, "e")
    rig.fetcher.fetch(blob, rig.directory / "parts" / "e", target, Errand(asks=True))
    rig.fetcher.end()
    assert (rig.directory / "e").read_bytes() == BIG


RANGE = b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-%d/%d\r\n" % (len(NEW) - 1, len(NEW))


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        (b"HTTP/1.1 206 OK\r\nX: ", b"x"),
        (RANGE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 100),
        (RANGE + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 60_000 + b"\r\nX\r\n"),
    ],
    ids=["100 continue", "slow header", "trailers", "chunk extensions"],
)
def test_a_server_that_sends_headers_without_end_is_looked_at_and_counted(
    rig: Rig, first: bytes, again: bytes
) -> None:
    came_bytes = [0]
    rig.web = HttpSource(
        rig.offers, SystemClock(), came=lambda size: came_bytes.append(came_bytes[0] + size)
    )
    stopping = threading.Event()

    def check() -> None:
        if len(came_bytes) > 20:
            raise StoppedError("stop")

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(first)
                    while not stopping.is_set():
                        connection.sendall(again)

        thread = threading.Thread(target=serve)
        thread.start()
        rig.link(NEW, f"http://127.0.0.1:{server.getsockname()[1]}/x")
        rig.fetcher = Fetcher([rig.web, rig.messages], SystemClock())
        with contextlib.suppress(StoppedError):
            assert rig.fetch(NEW, check=check) == NEW
        stopping.set()
        rig.web.end()
        thread.join()
    assert len(came_bytes) > 1


def test_a_server_without_ranges_gives_a_whole_blob(rig: Rig) -> None:
    rig.link(NEW)
    rig.http.manner = "whole"
    assert rig.fetch(NEW) == NEW
    assert rig.came == {"http": len(NEW)}


def test_only_what_lacks_is_asked_for(rig: Rig) -> None:
    rig.link(NEW)
    parts = rig.directory / "parts"
    parts.mkdir()
    half = bytearray(NEW)
    half[SIZE] ^= 1
    half[4 * SIZE : 6 * SIZE] = bytes(2 * SIZE)
    (parts / sha256_hex(NEW)).write_bytes(half)
    assert rig.fetch(NEW) == NEW
    assert [each for _, each in rig.http.asked] == [
        f"bytes={SIZE}-{2 * SIZE - 1}",
        f"bytes={4 * SIZE}-{6 * SIZE - 1}",
    ]


def test_a_link_that_is_too_old_is_asked_for_anew(rig: Rig) -> None:
    digest = sha256_hex(NEW)
    rig.link(NEW, rig.http.url(digest, "key=old"))
    rig.http.refuses = {"key=old"}

    def renew() -> None:
        if len(rig.http.asked) == 1:
            rig.link(NEW, rig.http.url(digest, "key=new"))

    assert rig.fetch(NEW, check=renew) == NEW
    assert rig.came == {"http": len(NEW)}
    assert len(rig.requests) == 2


def test_a_link_that_expires_within_a_file_is_asked_for_anew(rig: Rig) -> None:
    rig.link(NEW)
    rig.http.manner = "ends early"

    def renew() -> None:
        if len(rig.requests) == 2:
            rig.http.manner = "right"

    assert rig.fetch(NEW, check=renew) == NEW
    assert rig.came == {"http": len(NEW)}
    assert len(rig.requests) == 2


def test_a_place_that_failed_rests_and_the_next_one_is_asked(rig: Rig, tmp_path: Path) -> None:
    digest = sha256_hex(NEW)
    dead = f"http://127.0.0.1:1/blobs/{digest}"
    rig.link(NEW, dead, rig.http.url(digest))
    assert rig.fetch(NEW) == NEW
    assert rig.came == {"http": len(NEW)}
    (tmp_path / "a/b").unlink()
    rig.link(NEW, dead)
    rig.offers.forget(digest)
    assert rig.fetch(NEW) == NEW
    assert rig.faults == ["http: 127.0.0.1:1 did not answer a short time ago"]


@pytest.mark.parametrize(
    "url",
    [
        "http://198.51.100.7/blob",
        "ftp://127.0.0.1/blob",
        "file:///etc/passwd",
        "http://user@127.0.0.1/blob",
        "http://[::1/blob",
        "http://127.0.0.1:99999/blob",
        "http://127.0.0.1:{port}/a b\r\nHost: c",
        "http://127.0.0.1:{port}/größe",
        "http://a..localhost:{port}/x",
        "",
    ],
)
def test_a_link_that_may_not_be_used_is_not_used(rig: Rig, url: str) -> None:
    rig.link(NEW, url.replace("{port}", str(rig.http.port)))
    assert rig.fetch(NEW) == NEW
    assert rig.came == {"mqtt": len(NEW)}
    assert len(rig.faults) == 1
    assert rig.http.asked == []


def test_a_device_that_may_not_ask_does_not_wait(rig: Rig) -> None:
    rig.denied.add(up(DEVICE, "source_request"))
    rig.controller.close()
    assert rig.fetch(NEW) == NEW
    assert rig.came == {"mqtt": len(NEW)}


def test_an_answer_counts_only_with_the_directors_signature(rig: Rig) -> None:
    rig.link(NEW)
    answer = Sources(device=DEVICE, nonce="n")
    with pytest.raises(SignatureError):
        rig.offers.hear(signed(answer, RELEASE_KEY))
    with pytest.raises(SignatureError):
        rig.offers.hear(signed(msgspec.structs.replace(answer, device="dev-2")))
    link = BlobSources(sha256=sha256_hex(NEW), urls=(rig.http.url(sha256_hex(NEW)),))
    recorded = msgspec.structs.replace(answer, blobs=(link,), valid_s=60.0)
    rig.offers.hear(signed(recorded))  # its nonce is not that of a request
    assert rig.fetch(NEW, asks=False) == NEW
    assert rig.came == {"mqtt": len(NEW)}


def test_an_agent_that_stops_does_not_wait_for_a_silent_server(rig: Rig) -> None:
    rig.link(NEW)
    rig.http.manner = "silent"
    stopping = threading.Event()

    def check() -> None:
        if stopping.is_set():
            raise StoppedError("stop")

    def stop() -> None:
        while not rig.http.asked:
            stopping.wait(0.01)
        stopping.set()
        rig.web.wake()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(StoppedError):
        rig.fetch(NEW, check=check)
    thread.join()
    assert not rig.http.release.is_set()


def delta_to_new(rig: Rig, old: bytes, *, damaged: bool = False) -> Delta:
    """Let the controller have a delta, and offer it."""
    content = of_files("model.bin", old, NEW)
    named = sha256_hex(content)
    if damaged:
        content = content[:-40] + bytes(40)
        named = sha256_hex(content)
    rig.chunks.add(content)
    delta = Delta(base=sha256_hex(old), sha256=named, size_bytes=len(content), chunk_bytes=SIZE)
    digest = sha256_hex(NEW)
    rig.ways[digest] = BlobSources(sha256=digest, delta=delta)
    return delta


def old_file(rig: Rig) -> Held:
    path = rig.directory / "old"
    path.write_bytes(OLD)
    return Held(path)


def test_a_delta_to_a_file_that_is_here_saves_its_bytes(rig: Rig) -> None:
    delta = delta_to_new(rig, OLD)
    assert rig.fetch(NEW, holdings=old_file(rig)) == NEW
    assert rig.came == {"delta": len(NEW)}
    assert {digest for digest, _ in rig.chunks.sent} == {delta.sha256}
    assert rig.requests[0].packages == ("0" * 64,)
    assert [path.name for path in (rig.directory / "parts").iterdir()] == []


def test_a_delta_comes_by_http_too(rig: Rig) -> None:
    delta = delta_to_new(rig, OLD)
    rig.http.add(rig.chunks.blobs[delta.sha256])
    digest = sha256_hex(NEW)
    with_url = msgspec.structs.replace(delta, urls=(rig.http.url(delta.sha256),))
    rig.ways[digest] = BlobSources(sha256=digest, delta=with_url)
    assert rig.fetch(NEW, holdings=old_file(rig)) == NEW
    assert rig.chunks.sent == []


def test_a_blob_that_packs_well_comes_packed(rig: Rig) -> None:
    content = bytes(range(256)) * 1024
    packed = of_files("model.bin", b"", content)
    rig.chunks.add(packed, content)
    delta = Delta(
        base=NOTHING_SHA256,
        sha256=sha256_hex(packed),
        size_bytes=len(packed),
        chunk_bytes=SIZE,
    )
    rig.ways[sha256_hex(content)] = BlobSources(sha256=sha256_hex(content), delta=delta)
    assert rig.fetch(content) == content
    assert rig.came == {"delta": len(content)}


def lie(delta: Delta, **changes: object) -> Delta:
    return msgspec.structs.replace(delta, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "1" * 64},
        {"sha256": "../../victim"},
        {"sha256": "2" * 64},
        {"size_bytes": 2**40},
        {"size_bytes": 0},
        {"chunk_bytes": 1},
        {"chunks": ("3" * 64,) * 9},
        {"chunks": ("3" * 64,)},
    ],
    ids=str,
)
def test_whatever_is_wrong_with_a_delta_the_file_comes(
    rig: Rig, changes: dict[str, object]
) -> None:
    delta = delta_to_new(rig, OLD)
    digest = sha256_hex(NEW)
    rig.ways[digest] = BlobSources(sha256=digest, delta=lie(delta, **changes))
    assert rig.fetch(NEW, holdings=old_file(rig)) == NEW
    assert rig.came == {"mqtt": len(NEW)}


def test_a_damaged_delta_is_tried_once(rig: Rig) -> None:
    delta = delta_to_new(rig, OLD, damaged=True)
    for _ in range(2):
        assert rig.fetch(NEW, holdings=old_file(rig)) == NEW
        (rig.directory / "a/b").unlink()
    assert rig.came == {"mqtt": 2 * len(NEW)}
    assert [digest for digest, _ in rig.chunks.sent].count(delta.sha256) == 1
    assert rig.faults[0].startswith("delta: the delta cannot be applied: ")


def test_a_delta_whose_process_was_ended_is_tried_again(rig: Rig) -> None:
    delta_to_new(rig, OLD)
    held = old_file(rig)
    held.away = True  # a fault of this machine, not of the delta
    assert rig.fetch(NEW, holdings=held) == NEW
    (rig.directory / "a/b").unlink()
    held.away = False
    assert rig.fetch(NEW, holdings=held) == NEW
    assert rig.came == {"mqtt": len(NEW), "delta": len(NEW)}


def test_a_delta_that_makes_another_file_is_refused(rig: Rig) -> None:
    content = of_files("model.bin", OLD, OLD)
    rig.chunks.add(content)
    digest = sha256_hex(NEW)
    delta = Delta(
        base=sha256_hex(OLD), sha256=sha256_hex(content), size_bytes=len(content), chunk_bytes=SIZE
    )
    rig.ways[digest] = BlobSources(sha256=digest, delta=delta)
    assert rig.fetch(NEW, holdings=old_file(rig)) == NEW
    assert rig.came == {"mqtt": len(NEW)}
    assert "does not give the signed file" in rig.faults[0]


def test_a_delta_that_is_being_made_is_waited_for(rig: Rig) -> None:
    digest = sha256_hex(NEW)
    rig.ways[digest] = BlobSources(sha256=digest, delta_in_s=0.01)

    def make() -> None:
        if len(rig.requests) == 1 and rig.ways[digest].delta is None:
            delta_to_new(rig, OLD)

    assert rig.fetch(NEW, holdings=old_file(rig), check=make) == NEW
    assert rig.came == {"delta": len(NEW)}
    assert len(rig.requests) == 2


def test_without_messages_a_failed_server_is_a_fault_to_try_again(rig: Rig) -> None:
    rig.link(NEW)
    rig.http.manner = "fails"
    rig.fetcher = Fetcher([rig.web], SystemClock())
    with pytest.raises(SourceError, match="answers with status 503") as caught:
        rig.fetch(NEW)
    assert caught.value.retryable


def test_a_blob_that_no_source_has_is_a_fault_of_the_release(rig: Rig) -> None:
    rig.chunks.blobs.clear()
    with pytest.raises(BlobMissingError):
        rig.fetch(NEW)
