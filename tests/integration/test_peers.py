"""Devices that fetch from each other: real storage, real sockets, real partial files."""

from __future__ import annotations

import contextlib
import random
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent.errors import StoppedError
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.http import HttpSource
from agent.install.fetch.part import Blob
from agent.install.fetch.peer import PeerSource, checked
from agent.install.fetch.sources import ChunkSource, Coming, Errand, SourceError, SourceName
from agent.peers.limits import BLOCK_BYTES, Limits
from tests.simulators.clock import FakeClock
from tests.simulators.packages import SignedPackage, package, variant
from tests.simulators.peers import FAST, Neighbour
from tests.simulators.range_server import RangeServer
from tests.simulators.raw_server import Answering, RawServer
from wire.codec import sha256_hex
from wire.delivery import BlobSources
from wire.package.index import FileEntry

SIZE = 64 * 1024
RNG = random.Random(5)
CONTENT, SECOND = RNG.randbytes(20 * SIZE + 17), RNG.randbytes(3 * SIZE)
MADE = package("1", [(variant("best"), CONTENT), (variant("other"), SECOND)], chunk_bytes=SIZE)
ENTRIES = {entry.sha256: entry for entry in MADE.index.files}
FIRST_BLOB, SECOND_BLOB = sha256_hex(CONTENT), sha256_hex(SECOND)
WAIT_S = 60.0
ONE_BLOCK = Limits(at_once=2, bytes_per_s=1)
"""Of a device that sends one block, and then nothing for days."""


class Ways:
    """What the controller tells."""

    def __init__(self) -> None:
        self.known: dict[str, BlobSources] = {}
        self.forgotten: list[str] = []

    def of(self, sha256: str, _errand: Errand) -> BlobSources | None:
        return self.known.get(sha256)

    def forget(self, sha256: str) -> None:
        self.forgotten.append(sha256)


class Site:
    """A device that fetches, its neighbours, and a server of the controller's."""

    def __init__(self, directory: Path, server: RangeServer, stack: contextlib.ExitStack) -> None:
        self.directory = directory
        self.server = server
        self.stack = stack
        self.neighbours: list[Neighbour] = []
        self.ways = Ways()
        self.clock = FakeClock()
        self.coming = Coming()
        self.seen: set[tuple[str, str]] = set()
        """What was coming, and who had brought the last chunk before."""

        self.faults: list[str] = []
        self.came: list[tuple[SourceName, int]] = []
        self.pauses = 0
        self.on_chunk: Callable[[], None] = lambda: None
        self.fetcher = self.make()

    def make(self, *, wait_s: float = WAIT_S, alone: bool = False) -> Fetcher:
        peer = PeerSource(self.ways, self.clock, self.coming, wait_s=wait_s, pause_s=self._pause_s)
        others: list[ChunkSource] = [] if alone else [HttpSource(self.ways, self.clock)]
        return Fetcher(
            [peer, *others],
            self.clock,
            on_fault=lambda name, fault: self.faults.append(f"{name}: {fault.message}"),
            coming=self.coming,
        )

    def _pause_s(self) -> float:
        self.pauses += 1
        return 1.0

    def neighbour(self, *, has: SignedPackage | None = MADE, limits: Limits = FAST) -> Neighbour:
        name = f"cam-{len(self.neighbours)}"
        made = Neighbour(self.directory / name, name, limits)
        if has is not None:
            made.put(has)
        self.stack.enter_context(made.running())
        self.neighbours.append(made)
        return made

    def tell(self) -> None:
        """Let the controller tell of all neighbours, and of its own server."""
        for sha256 in ENTRIES:
            self.ways.known[sha256] = BlobSources(
                sha256=sha256,
                urls=(self.server.url(sha256),),
                peers=tuple(each.url(sha256) for each in self.neighbours),
            )

    def fetch(self, sha256: str = FIRST_BLOB, check: Callable[[], None] = lambda: None) -> bytes:
        def progress(size_bytes: int, source: SourceName) -> None:
            self.came.append((source, size_bytes))
            self.seen.add((self.coming.sha256, source))
            self.on_chunk()

        entry: FileEntry = ENTRIES[sha256]
        errand = Errand(progress=progress, check=check, blobs=(sha256,), asks=True)
        parts = self.directory / "parts"
        parts.mkdir(exist_ok=True)
        target = (self.directory, f"have/{sha256}")
        self.fetcher.fetch(Blob.of_file(entry, SIZE), parts / sha256, target, errand)
        assert self.coming.sha256 == ""
        return (self.directory / f"have/{sha256}").read_bytes()

    def brought(self) -> dict[str, int]:
        return {
            source: sum(size for name, size in self.came if name == source)
            for source in dict.fromkeys(name for name, _ in self.came)
        }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with RangeServer().running() as server, contextlib.ExitStack() as stack:
        server.add(CONTENT, SECOND)
        made = Site(tmp_path, server, stack)
        yield made
        made.fetcher.end()


def test_a_package_comes_from_a_neighbour_alone(site: Site) -> None:
    neighbour = site.neighbour()
    site.tell()
    for sha256, entry in ENTRIES.items():
        assert sha256_hex(site.fetch(sha256)) == entry.sha256
    assert site.brought() == {"peer": sum(entry.size_bytes for entry in MADE.index.files)}
    neighbour.has_sent(site.brought()["peer"])
    assert (site.server.asked, site.faults, site.clock.slept_s) == ([], [], [])
    assert site.seen == {(sha256, "peer") for sha256 in ENTRIES}, "who waits for it hears so"


def test_only_what_lacks_is_asked_for(site: Site) -> None:
    neighbour = site.neighbour()
    site.tell()
    half = bytearray(CONTENT)
    half[SIZE] ^= 1
    half[4 * SIZE : 6 * SIZE] = bytes(2 * SIZE)
    (site.directory / "parts").mkdir()
    (site.directory / "parts" / FIRST_BLOB).write_bytes(half)
    assert site.fetch() == CONTENT
    neighbour.has_sent(3 * SIZE)


def test_a_neighbours_damaged_file_costs_a_chunk_and_the_rest_comes_from_elsewhere(
    site: Site,
) -> None:
    damaged = site.neighbour()
    place = damaged.slots.directory(MADE.digest) / "variants/best/model.json"
    rotten = bytearray(CONTENT)
    rotten[7 * SIZE + 3] ^= 1
    place.write_bytes(rotten)
    site.tell()
    assert site.fetch() == CONTENT
    assert site.brought() == {"peer": 7 * SIZE, "http": len(CONTENT) - 7 * SIZE}
    host = f"127.0.0.1:{damaged.port}"
    assert site.faults == [f"peer: {host} sent wrong bytes"]
    assert site.fetch(SECOND_BLOB) == SECOND, "and it rests"
    assert site.faults[1:] == [f"peer: {host} did not answer a short time ago"]
    site.clock.advance(10)
    (site.directory / f"have/{SECOND_BLOB}").unlink()
    assert site.fetch(SECOND_BLOB) == SECOND
    assert site.brought()["peer"] == 7 * SIZE + len(SECOND), site.faults


def test_what_is_coming_to_a_neighbour_is_waited_for(site: Site) -> None:
    neighbour = site.neighbour(has=None)
    neighbour.coming.sha256 = FIRST_BLOB
    site.tell()
    while_waiting = set()

    def check() -> None:
        if site.clock.slept_s:
            while_waiting.add(site.coming.sha256)
        if site.clock.monotonic_s() >= 20 and neighbour.coming.sha256:
            neighbour.put(MADE)
            neighbour.coming.sha256 = ""

    assert site.fetch(check=check) == CONTENT
    assert site.brought() == {"peer": len(CONTENT)}
    assert 20 <= site.clock.monotonic_s() < 30
    assert site.server.asked == []
    assert while_waiting >= {""}, "who waits makes nobody wait"


def test_the_wait_has_an_end_and_happens_once(site: Site) -> None:
    neighbour = site.neighbour(has=None)
    neighbour.coming.sha256 = FIRST_BLOB
    site.tell()
    assert site.fetch() == CONTENT
    assert site.clock.monotonic_s() == pytest.approx(WAIT_S)
    assert site.brought() == {"http": len(CONTENT)}
    host = f"127.0.0.1:{neighbour.port}"
    assert site.faults == [f"peer: {host} did not have it ready within 60 s"]
    neighbour.coming.sha256 = SECOND_BLOB
    assert site.fetch(SECOND_BLOB) == SECOND
    assert site.clock.monotonic_s() == pytest.approx(WAIT_S), "it could hold up every file"


def test_who_does_not_want_to_wait_does_not(site: Site) -> None:
    site.neighbour(has=None).coming.sha256 = FIRST_BLOB
    site.neighbour(has=None)
    site.tell()
    site.fetcher = site.make(wait_s=0)
    assert site.fetch() == CONTENT
    assert (site.clock.slept_s, site.faults) == ([], [])
    assert site.brought() == {"http": len(CONTENT)}


def test_a_stop_ends_the_wait(site: Site) -> None:
    site.neighbour(has=None).coming.sha256 = FIRST_BLOB
    site.tell()

    def check() -> None:
        if site.clock.monotonic_s() > 5:
            raise StoppedError("stop")

    with pytest.raises(StoppedError):
        site.fetch(check=check)
    assert site.coming.sha256 == ""


def test_a_busy_neighbour_is_asked_again_and_another_one_first(site: Site) -> None:
    busy, free = site.neighbour(), site.neighbour()
    with contextlib.ExitStack() as stack:
        for name in ("dev-8", "dev-9"):
            near = stack.enter_context(busy.connect())
            assert busy.server._server is not None
            assert busy.server._server.visitors.begin(name, near)
        site.tell()
        assert site.fetch() == CONTENT
        free.has_sent(len(CONTENT))
        assert site.clock.slept_s == []


def test_a_neighbour_that_dies_loses_no_chunk(site: Site) -> None:
    first, second = site.neighbour(limits=ONE_BLOCK), site.neighbour()
    site.tell()

    def die() -> None:
        if site.brought()["peer"] == BLOCK_BYTES:
            first.server.stop()

    site.on_chunk = die
    assert site.fetch() == CONTENT
    assert site.brought() == {"peer": len(CONTENT)}
    first.has_sent(BLOCK_BYTES)
    second.has_sent(len(CONTENT) - BLOCK_BYTES)  # no chunk came twice


def test_the_next_source_goes_on_where_the_last_neighbour_died(site: Site) -> None:
    only = site.neighbour(limits=ONE_BLOCK)
    site.tell()

    def die() -> None:
        if site.brought()["peer"] == BLOCK_BYTES:
            only.server.stop()

    site.on_chunk = die
    assert site.fetch() == CONTENT
    assert site.brought() == {"peer": BLOCK_BYTES, "http": len(CONTENT) - BLOCK_BYTES}
    assert site.server.asked[0][1] == f"bytes={BLOCK_BYTES}-{len(CONTENT) - 1}"
    assert site.fetch(SECOND_BLOB) == SECOND
    assert site.faults[1].endswith("did not answer a short time ago")


def test_of_devices_that_begin_together_one_fetches_and_the_others_see_it(site: Site) -> None:
    other = site.neighbour(has=None)
    site.tell()

    def check() -> None:
        if site.pauses and not other.coming.sha256:  # it came first
            other.coming.sha256 = FIRST_BLOB
        if site.clock.monotonic_s() > 10 and not other.slots.whole():
            other.put(MADE)

    assert site.fetch(check=check) == CONTENT
    assert site.brought() == {"peer": len(CONTENT)}
    assert site.pauses == 1


def test_a_neighbour_that_is_between_two_files_is_asked_again(site: Site) -> None:
    directory = site.neighbour().slots.directory(MADE.digest) / "variants"
    places = [directory / name / "model.json" for name in ("best", "other")]
    for place in places:
        place.rename(place.with_suffix(".part"))
    site.tell()

    def check() -> None:
        for place in places[: site.pauses]:
            if not place.exists():
                place.with_suffix(".part").rename(place)

    assert site.fetch(check=check) == CONTENT
    assert site.fetch(SECOND_BLOB, check=check) == SECOND
    assert site.pauses == 2
    assert site.brought() == {"peer": len(CONTENT) + len(SECOND)}


def test_who_is_first_fetches_and_pauses_once_for_an_install(site: Site) -> None:
    site.neighbour(has=None)
    site.tell()
    assert site.fetch() == CONTENT
    assert site.fetch(SECOND_BLOB) == SECOND
    assert site.pauses == 1
    assert site.clock.monotonic_s() == pytest.approx(1.0)
    assert site.brought() == {"http": len(CONTENT) + len(SECOND)}
    assert site.faults == [], "that nobody has it yet is no fault"
    assert site.seen == {(FIRST_BLOB, "http"), (SECOND_BLOB, "http")}, "others may wait for it"
    site.fetcher.end()
    (site.directory / f"have/{SECOND_BLOB}").unlink()
    assert site.fetch(SECOND_BLOB) == SECOND
    assert site.pauses == 2, "another install"


def test_a_tired_neighbour_is_not_waited_for(site: Site) -> None:
    neighbour = site.neighbour()
    neighbour.why_tired = "this device is too hot"
    site.tell()
    assert site.fetch() == CONTENT
    assert site.brought() == {"http": len(CONTENT)}
    assert site.clock.slept_s == []
    assert site.faults == [f"peer: 127.0.0.1:{neighbour.port} answers with status 503"]


def test_without_another_source_what_neighbours_do_not_bring_is_a_fault_to_try_again(
    site: Site,
) -> None:
    site.neighbour(has=None)
    site.tell()
    site.fetcher = site.make(alone=True)
    with pytest.raises(SourceError, match="no source has all") as caught:
        site.fetch()
    assert caught.value.retryable


def test_nobody_is_asked_without_a_link(site: Site) -> None:
    site.neighbour()
    site.ways.known[FIRST_BLOB] = BlobSources(
        sha256=FIRST_BLOB, urls=(site.server.url(FIRST_BLOB),)
    )
    assert site.fetch() == CONTENT
    assert site.brought() == {"http": len(CONTENT)}


def test_a_link_that_may_not_be_used_is_not_used_and_not_shown(site: Site) -> None:
    site.ways.known[FIRST_BLOB] = BlobSources(
        sha256=FIRST_BLOB,
        urls=(site.server.url(FIRST_BLOB),),
        peers=(f"http://cam-1.local:80/blobs/{FIRST_BLOB}?signature=x",),
    )
    assert site.fetch() == CONTENT
    assert site.brought() == {"http": len(CONTENT)}
    assert len(site.faults) == 1
    assert "signature" not in site.faults[0]


BLOB_PATH = f"/blobs/{FIRST_BLOB}?x"


@pytest.mark.parametrize(
    "url",
    [
        "",
        BLOB_PATH,
        f"http://cam-1:80{BLOB_PATH}",
        f"http://localhost:80{BLOB_PATH}",
        f"http://127.1:80{BLOB_PATH}",
        f"http://2130706433:80{BLOB_PATH}",
        f"http://127.0.0.1{BLOB_PATH}",
        f"http://127.0.0.1:{BLOB_PATH}",
        f"http://127.0.0.1:080{BLOB_PATH}",
        f"http://127.0.0.1:70000{BLOB_PATH}",
        f"http://user@127.0.0.1:80{BLOB_PATH}",
        f"http://127.0.0.1:80@evil.example:80{BLOB_PATH}",
        f"https://127.0.0.1:80{BLOB_PATH}",
        f"ftp://127.0.0.1:80{BLOB_PATH}",
        f"HTTP://127.0.0.1:80{BLOB_PATH}",
        f"http://[fe80::1%eth0]:80{BLOB_PATH}",
        f"http://[::1:80{BLOB_PATH}",
        f"http://127.0.0.1:80{BLOB_PATH}#x",
        f"http://127.0.0.1:80{BLOB_PATH} HTTP/1.1\r\nHost: x",
        f"http://127.0.0.1:80{BLOB_PATH}\t",
        f"http://127.0.0.1:80{BLOB_PATH}ö",
        f"http://127.0.0.1:80/blobs/{SECOND_BLOB}?x",
        f"http://127.0.0.1:80/v2/../blobs/{FIRST_BLOB}?x",
        f"http://127.0.0.1:80/blobs/{FIRST_BLOB}",
    ],
)
def test_what_is_no_link_to_an_address_is_refused(url: str) -> None:
    with pytest.raises(SourceError):
        checked(url, FIRST_BLOB)


@pytest.mark.parametrize("host", ["192.168.1.20", "[2001:db8::1]"])
def test_a_link_to_an_address_is_taken_as_it_is(host: str) -> None:
    url = f"http://{host}:8471{BLOB_PATH}"
    assert checked(url, FIRST_BLOB) == urlsplit(url)


def near(site: Site, *urls: str, sha256: str = FIRST_BLOB) -> None:
    """Let the controller tell of some peers, and of its own server."""
    site.ways.known[sha256] = BlobSources(
        sha256=sha256, urls=(site.server.url(sha256),), peers=urls
    )


def raw(site: Site, answer: Answering) -> RawServer:
    return site.stack.enter_context(RawServer(answer).running())


def test_who_tells_anothers_address_harms_itself_alone(site: Site) -> None:
    honest = site.neighbour()
    link = honest.url(FIRST_BLOB)
    near(site, link.replace("peer=cam-0", "peer=cam-9"), link)
    assert site.fetch() == CONTENT
    assert site.brought() == {"peer": len(CONTENT)}
    near(site, honest.url(SECOND_BLOB).replace("peer=cam-0", "peer=cam-9"), sha256=SECOND_BLOB)
    assert site.fetch(SECOND_BLOB) == SECOND
    assert site.ways.forgotten == [SECOND_BLOB], "a new link is asked for"
    assert "refuses the link" in site.faults[0]
    (site.directory / f"have/{SECOND_BLOB}").unlink()
    assert site.fetch(SECOND_BLOB) == SECOND
    assert "did not answer a short time ago" in site.faults[1]
    assert site.ways.forgotten == [SECOND_BLOB], "not for each file"


def test_a_link_that_expires_within_a_file_is_asked_for_anew(site: Site) -> None:
    ended: list[int] = []

    def answer(sock: socket.socket, request: bytes) -> bool:
        found = re.search(rb"bytes=(\d+)-", request)
        assert found is not None
        start = int(found[1])
        sock.sendall(
            b"HTTP/1.1 206 P\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n\r\n"
            % (len(CONTENT) - start, start, len(CONTENT) - 1, len(CONTENT))
        )
        sock.sendall(CONTENT[start:] if ended else CONTENT[: 3 * SIZE + 5])
        ended.append(start)
        return False

    near(site, raw(site, answer).url(f"/blobs/{FIRST_BLOB}?x"))
    assert site.fetch() == CONTENT
    assert site.brought() == {"peer": len(CONTENT)}
    assert ended == [0, 3 * SIZE], "it goes on where it was"
    assert site.ways.forgotten == [FIRST_BLOB]


def test_the_wait_is_measured_by_the_clock(site: Site) -> None:
    def answer(sock: socket.socket, _request: bytes) -> bool:
        site.clock.advance(1.5)
        sock.sendall(b"HTTP/1.1 503 S\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n")
        return False

    near(site, *(raw(site, answer).url(f"/blobs/{FIRST_BLOB}?x") for _ in range(4)))
    assert site.fetch() == CONTENT
    assert site.clock.monotonic_s() <= WAIT_S + 4 * 1.5
    assert site.brought() == {"http": len(CONTENT)}


@pytest.mark.parametrize("status", ["404 N", "503 S\r\nRetry-After: 1", "403 F"])
def test_who_takes_long_to_give_nothing_rests(site: Site, status: str) -> None:
    def answer(sock: socket.socket, _request: bytes) -> bool:
        site.clock.advance(2.5)
        sock.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        return False

    server = raw(site, answer)
    near(site, server.url(f"/blobs/{FIRST_BLOB}?x"))
    near(site, server.url(f"/blobs/{SECOND_BLOB}?x"), sha256=SECOND_BLOB)
    site.fetcher = site.make(wait_s=0)
    assert site.fetch() == CONTENT
    assert site.fetch(SECOND_BLOB) == SECOND
    assert len(server.requests) == 1
    assert "did not answer a short time ago" in site.faults[-1]


def test_who_ends_a_new_connection_at_once_is_asked_once_more(site: Site) -> None:
    server = raw(site, lambda sock, _request: sock.close())
    near(site, server.url(f"/blobs/{FIRST_BLOB}?x"))
    assert site.fetch() == CONTENT
    assert server.connections == 2
    assert site.clock.monotonic_s() == pytest.approx(3.0)
    assert site.faults == [f"peer: 127.0.0.1:{server.port} ended the connection at once"]
    near(site, server.url(f"/blobs/{SECOND_BLOB}?x"), sha256=SECOND_BLOB)
    assert site.fetch(SECOND_BLOB) == SECOND
    assert server.connections == 2, "it rests"
