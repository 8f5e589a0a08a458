"""Transfers over a road that loses, repeats, reorders and forges chunks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import BlobMissingError, FetchError, StorageError, SupersededError
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.flow import INITIAL_PATIENCE_S
from agent.install.fetch.local import LocalSource
from agent.install.fetch.messages import MessageSource
from agent.install.fetch.part import Blob
from agent.install.fetch.sources import Errand, NoHoldings, SourceName
from tests.simulators.chunk_server import ChunkServer, Tamper
from tests.simulators.clock import FakeClock
from tests.simulators.transport import MemoryHub
from wire.codec import sha256_hex
from wire.delivery import Chunk
from wire.errors import IntegrityError, TransportError
from wire.messages import decode_message
from wire.package.index import entry_for
from wire.topics import all_down, up

DEVICE = "dev-1"
SIZE = 1024
TICK_S = 0.01
"""All that is under way comes before the patience of a second has passed."""

CONTENT = random.Random(7).randbytes(50 * SIZE + 17)


class Held(NoHoldings):
    """Chunks that another package has."""

    def __init__(self, local: Callable[[str], bytes | None]) -> None:
        self._local = local

    def chunk(self, digest: str) -> bytes | None:
        return self._local(digest)


class Road:
    """A fetcher, a server of chunks, and what lies between them.

    Time passes by a tick whenever the fetcher looks for a chunk: no load on the machine makes one
    late that was not lost.
    """

    def __init__(self, directory: Path, tamper: Tamper = lambda c: c) -> None:
        self.hub = MemoryHub()
        self.clock = FakeClock()
        self.server = ChunkServer(self.hub.on("none", lambda _r: None), tamper)
        self.hub.on(up(DEVICE, "chunk_request"), self.server.hear)
        self.transport = self.hub.connect()
        self.transport.subscribe(all_down(DEVICE))
        self.messages = MessageSource(
            DEVICE,
            lambda topic, data, _expiry: self.transport.publish(topic, data),
            self.clock,
            poll_s=0.0001,
        )
        self.fetcher = Fetcher((LocalSource(), self.messages), self.clock)
        self.transport.start(
            lambda r: self.messages.deliver(decode_message(r.payload, Chunk, packed=True)),
            lambda _c: None,
        )
        self.directory = directory
        self.part = directory / "part"
        self.came = 0

    def fetch(
        self,
        blob: Blob,
        *,
        check: Callable[[], None] = lambda: None,
        local: Callable[[str], bytes | None] = lambda _d: None,
        path: str = "a/b.bin",
    ) -> bytes:
        def progress(size: int, source: SourceName) -> None:
            if source == "mqtt":
                self.came += size

        def tick() -> None:
            self.clock.advance(TICK_S)
            check()

        errand = Errand(progress=progress, check=tick, holdings=Held(local))
        self.fetcher.fetch(blob, self.part, (self.directory, path), errand)
        return (self.directory / path).read_bytes()


def blob_of(content: bytes, *, listed: bool = True) -> Blob:
    entry = entry_for("x", content, chunk_bytes=SIZE)
    blob = Blob.of_file(entry, SIZE)
    return blob if listed else Blob(sha256=blob.sha256, size_bytes=len(content), chunk_bytes=SIZE)


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE, SIZE + 1, len(CONTENT)])
@pytest.mark.parametrize("listed", [True, False])
def test_content_of_any_size_comes_whole(tmp_path: Path, size: int, *, listed: bool) -> None:
    road = Road(tmp_path)
    content = CONTENT[:size]
    road.server.add(content)
    assert road.fetch(blob_of(content, listed=listed)) == content
    assert road.came == size
    assert not road.part.exists()


def test_lost_chunks_are_asked_for_again(tmp_path: Path) -> None:
    rng = random.Random(3)
    road = Road(tmp_path, lambda chunk: chunk if rng.random() < 0.6 else None)
    road.server.add(CONTENT)
    assert road.fetch(blob_of(CONTENT)) == CONTENT


def test_repeated_and_unasked_chunks_do_no_harm(tmp_path: Path) -> None:
    road = Road(tmp_path)
    road.server.add(CONTENT)

    def twice(chunk: Chunk) -> Chunk:
        road.messages.deliver(Chunk(sha256=chunk.sha256, index=10**6, data=b"x"))
        road.messages.deliver(Chunk(sha256=chunk.sha256, index=-1, data=b"x"))
        road.messages.deliver(Chunk(sha256="0" * 64, index=0, data=b"x"))
        road.messages.deliver(chunk)
        return chunk

    road.server.tamper = twice
    assert road.fetch(blob_of(CONTENT)) == CONTENT


def test_a_forged_chunk_is_refused_and_asked_for_again(tmp_path: Path) -> None:
    left = [3]

    def forge(chunk: Chunk) -> Chunk:
        if chunk.index == 5 and left[0]:
            left[0] -= 1
            return Chunk(sha256=chunk.sha256, index=5, data=b"\0" * SIZE)
        return chunk

    road = Road(tmp_path, forge)
    road.server.add(CONTENT)
    assert road.fetch(blob_of(CONTENT)) == CONTENT


def test_only_forged_chunks_end_the_transfer_and_give_no_file(tmp_path: Path) -> None:
    road = Road(tmp_path, lambda c: Chunk(sha256=c.sha256, index=c.index, data=b"\0" * len(c.data)))
    road.server.add(CONTENT)
    with pytest.raises(IntegrityError, match=r"chunks of .* arrived with wrong content"):
        road.fetch(blob_of(CONTENT))
    assert not (tmp_path / "a/b.bin").exists()


def test_a_forged_blob_without_a_list_of_chunks_gives_no_file(tmp_path: Path) -> None:
    road = Road(tmp_path, lambda c: Chunk(sha256=c.sha256, index=c.index, data=b"\0" * len(c.data)))
    road.server.add(CONTENT)
    with pytest.raises(FetchError, match="has another digest"):
        road.fetch(blob_of(CONTENT, listed=False))
    assert not (tmp_path / "a/b.bin").exists()
    assert not road.part.exists()


def test_through_silence_it_asks_again_and_less_and_less_often(tmp_path: Path) -> None:
    road = Road(tmp_path)
    road.server.add(CONTENT)
    asked_s: list[float] = []

    def deaf(_chunk: Chunk) -> None:
        if asked_s[-1:] != [road.clock.monotonic_s()]:
            asked_s.append(road.clock.monotonic_s())

    def stop() -> None:
        if len(asked_s) == 5:
            road.server.tamper = lambda chunk: chunk

    road.server.tamper = deaf
    assert road.fetch(blob_of(CONTENT), check=stop) == CONTENT
    waits_s = [after - before for before, after in itertools.pairwise(asked_s)]
    assert waits_s == pytest.approx([3, 6, 12, 24], abs=2 * TICK_S)
    # Each time one smallest piece, and not all that was under way.
    assert len(road.server.sent) == blob_of(CONTENT).count


def test_without_a_connection_it_waits_a_minute_and_says_so(tmp_path: Path) -> None:
    road = Road(tmp_path)
    road.transport.set_up(up=False)
    with pytest.raises(TransportError, match="no connection"):
        road.fetch(blob_of(CONTENT))
    assert road.clock.monotonic_s() > 60


def test_a_connection_that_breaks_costs_what_was_under_way(tmp_path: Path) -> None:
    road = Road(tmp_path)
    road.server.add(CONTENT)
    lost: list[int] = []

    def cut(chunk: Chunk) -> Chunk | None:
        if chunk.index >= 20 and len(lost) < 5:
            lost.append(chunk.index)
            road.messages.reconnected()
            return None
        return chunk

    road.server.tamper = cut
    assert road.fetch(blob_of(CONTENT)) == CONTENT
    # It did not wait for its patience to run out.
    assert road.clock.monotonic_s() < INITIAL_PATIENCE_S


def test_a_blob_that_nobody_has_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(BlobMissingError) as caught:
        Road(tmp_path).fetch(blob_of(CONTENT))
    assert not caught.value.retryable


def test_a_transfer_goes_on_where_it_stopped(tmp_path: Path) -> None:
    road = Road(tmp_path)
    road.server.add(CONTENT)
    checks = [0]

    def stop() -> None:
        checks[0] += 1
        if road.came > 30 * SIZE:
            raise SupersededError("enough")

    with pytest.raises(SupersededError):
        road.fetch(blob_of(CONTENT), check=stop)
    kept = road.came // SIZE
    assert kept > 30
    again = Road(tmp_path)
    again.server.add(CONTENT)
    assert again.fetch(blob_of(CONTENT)) == CONTENT
    assert len(again.server.sent) == blob_of(CONTENT).count - kept
    assert again.came + road.came == len(CONTENT)


def test_what_rotted_in_the_partial_file_is_fetched_again(tmp_path: Path) -> None:
    road = Road(tmp_path)
    road.server.add(CONTENT)
    half = bytearray(CONTENT[: 25 * SIZE])
    half[10 * SIZE] ^= 1
    road.part.write_bytes(bytes(half) + b"garbage")
    assert road.fetch(blob_of(CONTENT)) == CONTENT
    assert len(road.server.sent) == 51 - 25 + 1


def test_chunks_of_another_package_need_not_come(tmp_path: Path) -> None:
    road = Road(tmp_path)
    road.server.add(CONTENT)
    known = {sha256_hex(CONTENT[i * SIZE : (i + 1) * SIZE]): i for i in range(40)}

    def local(digest: str) -> bytes | None:
        index = known.get(digest)
        if index is None:
            return None
        # One of them has rotted: it must come over the road.
        return b"?" * SIZE if index == 7 else CONTENT[index * SIZE : (index + 1) * SIZE]

    assert road.fetch(blob_of(CONTENT), local=local) == CONTENT
    assert sorted({index for _, index in road.server.sent}) == [7, *range(40, 51)]


def test_a_path_through_a_link_is_refused(tmp_path: Path) -> None:
    road = Road(tmp_path)
    road.server.add(CONTENT)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match="points outside its package"):
        road.fetch(blob_of(CONTENT))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_partial_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    road = Road(tmp_path)
    (tmp_path / "victim").write_bytes(b"precious")
    road.part.symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError):
        road.fetch(blob_of(CONTENT))
    assert (tmp_path / "victim").read_bytes() == b"precious"
