"""The download listener: a real server, real files, and clients that behave and that do not."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from controller.api.download_places import MAX_OF_DEVICE
from controller.api.downloads import BLOCK_BYTES, BLOCK_S, Downloads
from controller.api.protocol import DOWNLOADS, ConnectionLimits
from controller.api.server import HttpServer
from controller.api.tls import server_tls
from controller.delivery.links import Links
from controller.services.blobs import BlobStore
from tests.simulators.certificates import Authority
from tests.simulators.clock import FakeClock
from tests.simulators.patience import PATIENCE_S, until

HOST = "127.0.0.1"
CONTENT = os.urandom(3 * BLOCK_BYTES + 17)
ENDLESS_BYTES = 2**40
ENDLESS = "e" * 64
"""The digest of no file: a sparse one lies there, which nobody reads to its end within a test."""

ENOUGH_BYTES = 2**27
"""More than lies in the buffers of a connection."""

ABSENT = "f" * 64
LINKS = Links(b"s" * 32)
HOUR_S = 3600


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Rig:
    port: int
    clock: FakeClock
    sha256: str
    tls: ssl.SSLContext | None = None
    opened: list[BinaryIO] = field(default_factory=list)

    def link(self, sha256: str | None = None, device: str = "cam-1") -> str:
        return LINKS.path_of(device, sha256 or self.sha256, int(self.clock.now_s()) + HOUR_S)

    def connect(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(HOST, self.port, PATIENCE_S)
        return http.client.HTTPSConnection(HOST, self.port, timeout=PATIENCE_S, context=self.tls)

    def ask(self, path: str | None = None, method: str = "GET", **headers: str) -> Answer:
        connection = self.connect()
        try:
            return ask(connection, path or self.link(), method, **headers)
        finally:
            connection.close()

    def dial(self, path: str) -> socket.socket:
        """Ask for something, and read nothing of the answer."""
        connection = socket.create_connection((HOST, self.port), PATIENCE_S)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return connection


def ask(connection: http.client.HTTPConnection, path: str, method: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    answer = connection.getresponse()
    fields = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(answer.status, fields, answer.read())


@contextmanager
def serving(
    directory: Path,
    *,
    limits: ConnectionLimits | None = None,
    tls: ssl.SSLContext | None = None,
    block_s: float = BLOCK_S,
    open_blob: Callable[[str], BinaryIO] | None = None,
) -> Iterator[Rig]:
    blobs = BlobStore(directory / "blobs")
    sparse = directory / "blobs" / ENDLESS[:2] / ENDLESS
    sparse.parent.mkdir(exist_ok=True)
    sparse.touch()
    os.truncate(sparse, ENDLESS_BYTES)
    server = HttpServer(HOST, 0, tls=tls, limits=limits, of=DOWNLOADS)
    rig = Rig(server.port, FakeClock(), blobs.put(CONTENT))

    def opening(sha256: str) -> BinaryIO:
        rig.opened.append((open_blob or blobs.open)(sha256))
        return rig.opened[-1]

    server.start(Downloads(opening, LINKS, rig.clock, limits=limits, block_s=block_s))
    try:
        yield rig
    finally:
        server.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server for tests that change nothing of it."""
    with serving(tmp_path_factory.mktemp("downloads")) as rig:
        yield rig


def test_a_link_gives_the_whole_blob(shared: Rig) -> None:
    got = shared.ask()
    assert (got.status, got.body) == (200, CONTENT)
    assert got.headers["accept-ranges"] == "bytes"
    assert got.headers["etag"] == f'"{shared.sha256}"'
    assert "content-range" not in got.headers


def test_head_tells_the_size_and_sends_nothing(shared: Rig) -> None:
    for headers in ({}, {"Range": "bytes=0-1"}, {"Range": "bytes=5-4"}):
        got = shared.ask(method="HEAD", **headers)
        assert (got.status, got.body) == (200, b"")
        assert int(got.headers["content-length"]) == len(CONTENT)


@pytest.mark.parametrize(
    ("wanted", "first", "end"),
    [
        ("bytes=0-0", 0, 1),
        (f"bytes=10-{BLOCK_BYTES + 9}", 10, BLOCK_BYTES + 10),
        (f"bytes={BLOCK_BYTES}-", BLOCK_BYTES, len(CONTENT)),
        ("bytes=-17", len(CONTENT) - 17, len(CONTENT)),
        (f"bytes=5-{10**18}", 5, len(CONTENT)),
    ],
)
def test_a_range_gives_a_part(shared: Rig, wanted: str, first: int, end: int) -> None:
    got = shared.ask(Range=wanted, If_Range=f'"{shared.sha256}"')
    assert (got.status, got.body) == (206, CONTENT[first:end])
    assert got.headers["content-range"] == f"bytes {first}-{end - 1}/{len(CONTENT)}"


def test_parts_come_one_after_the_other_over_one_connection(shared: Rig) -> None:
    connection, parts, step = shared.connect(), [], 100_000
    for first in range(0, len(CONTENT), step):
        wanted = f"bytes={first}-{first + step - 1}"
        got = ask(connection, shared.link(), "GET", Range=wanted)
        assert got.status == 206
        parts.append(got.body)
    connection.close()
    assert b"".join(parts) == CONTENT


def test_a_range_of_another_version_is_answered_with_the_whole(shared: Rig) -> None:
    got = shared.ask(Range="bytes=1-2", If_Range='"other"')
    assert (got.status, got.body) == (200, CONTENT)


@pytest.mark.parametrize(
    "wanted",
    [f"bytes={len(CONTENT)}-", "bytes=5-4", "bytes=0-1,3-4", "bytes=" + ",".join(["0-0"] * 3000)],
    ids=["beyond", "backwards", "two", "flood"],
)
def test_what_is_not_one_range_is_416_and_costs_nothing(shared: Rig, wanted: str) -> None:
    got = shared.ask(Range=wanted)
    assert got.status == 416
    assert got.headers["content-range"] == f"bytes */{len(CONTENT)}"
    assert len(got.body) < 200
    assert json.loads(got.body)["code"] == "controller.http"


def test_an_empty_blob(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        empty = rig.link(BlobStore(tmp_path / "blobs").put(b""))
        assert (rig.ask(empty).status, rig.ask(empty).body) == (200, b"")
        assert rig.ask(empty, Range="bytes=0-").status == 416


def refused(answer: Answer, reason: str) -> None:
    fault = json.loads(answer.body)
    assert (answer.status, fault["code"]) == (403, "controller.link")
    assert reason in fault["message"]
    assert "new link" in fault["remedy"]
    assert answer.headers["connection"] == "close"


def test_without_a_valid_link_nobody_gets_anything(shared: Rig) -> None:
    path, _, query = shared.link().partition("?")
    refused(shared.ask(path), "not a link")
    refused(shared.ask(f"{path}?{query}x"), "not a link")
    refused(shared.ask(f"{path}?{query.replace('cam-1', 'cam-2')}"), "not for this blob")
    for sha256 in (ENDLESS, ABSENT):  # with a link of another blob they look the same
        refused(shared.ask(f"/blobs/{sha256}?{query}"), "not for this blob")
        refused(shared.ask(f"/check/{sha256}?{query}"), "not for this blob")


def test_a_link_that_has_expired_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        link = rig.link()
        assert rig.ask(link).status == 200
        rig.clock.advance(HOUR_S)
        refused(rig.ask(link), "has expired")


def test_a_blob_that_is_gone_is_404(shared: Rig) -> None:
    got = shared.ask(shared.link(ABSENT))
    assert (got.status, json.loads(got.body)["code"]) == (404, "controller.unknown.blob")


def test_other_servers_learn_whether_a_link_is_valid(shared: Rig) -> None:
    got = shared.ask(shared.link().replace("/blobs/", "/check/"))
    assert (got.status, got.body) == (204, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/devices",
        "/v1/health",
        "/blobs/",
        "/blobs/{sha}/?{query}",
        "/blobs/../blobs/{sha}?{query}",
        "/blobs/{sha}/../../keys/director.key?{query}",
        "/blobs/%2e%2e/keys/director.key?{query}",
        "//blobs/{sha}?{query}",
        "/blobs//{sha}?{query}",
        "/BLOBS/{sha}?{query}",
        "/blobs/{sha}%00?{query}",
        "/blobs/{upper}?{query}",
        "http://elsewhere/blobs/{sha}?{query}",
        "/check/../blobs/{sha}?{query}",
    ],
)
def test_no_path_leads_anywhere_else(shared: Rig, path: str) -> None:
    query = shared.link().partition("?")[2]
    names = {"sha": shared.sha256, "upper": shared.sha256.upper(), "query": query}
    with shared.dial(path.format(**names)) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 404 ")


def test_nothing_is_written_and_no_body_is_read(shared: Rig) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        got = shared.ask(method=method)
        assert (got.status, got.headers["allow"]) == (405, "GET, HEAD")
    got = shared.ask(Content_Length="5")
    assert (got.status, json.loads(got.body)["code"]) == (422, "controller.invalid")


def test_a_huge_query_is_refused_and_others_are_served(shared: Rig) -> None:
    with shared.dial(f"/blobs/{shared.sha256}?{'x' * 50_000}") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 403 ")
    with socket.create_connection((HOST, shared.port), PATIENCE_S) as connection:
        connection.sendall(b"GET /blobs/x?" + b"x" * 100_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert shared.ask().status == 200


def read_to_the_end(connection: socket.socket) -> None:
    """Read until the server ends the connection; of the endless blob that is too early."""
    with suppress(ConnectionError):
        while connection.recv(2**20):
            pass


def test_who_reads_nothing_loses_its_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, block_s=1.0) as rig, rig.dial(rig.link(ENDLESS)) as greedy:
        until(lambda: rig.opened and rig.opened[0].closed, "the end of the transfer")
        assert rig.ask().body == CONTENT
        read_to_the_end(greedy)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_what_nobody_waits_for_any_more_is_not_read(tmp_path: Path) -> None:
    with serving(tmp_path) as rig:
        with rig.dial(rig.link(ENDLESS)) as hasty:
            assert hasty.recv(100).startswith(b"HTTP/1.1 200 ")
        until(lambda: rig.opened[0].closed, "the end of the transfer")
        assert rig.ask().status == 200


def test_one_client_holds_so_many_transfers_and_is_told_what_to_raise(tmp_path: Path) -> None:
    with ExitStack() as held:
        rig = held.enter_context(serving(tmp_path, limits=ConnectionLimits(per_client=2)))
        for _ in range(2):
            busy = held.enter_context(rig.dial(rig.link(ENDLESS)))
            assert busy.recv(100).startswith(b"HTTP/1.1 200 ")
        got = rig.ask()
        assert got.status == 503
        assert "downloads.connections_per_client" in json.loads(got.body)["remedy"]


def test_one_device_gets_so_many_blobs_at_once_and_others_get_theirs(tmp_path: Path) -> None:
    with ExitStack() as held:
        rig = held.enter_context(serving(tmp_path))
        links = [rig.link(ENDLESS), rig.link()]
        busy = [held.enter_context(rig.dial(links[0])) for _ in range(MAX_OF_DEVICE)]
        for each in busy:
            assert each.recv(100).startswith(b"HTTP/1.1 200 ")
        for link in links:
            got = rig.ask(link)
            assert (got.status, json.loads(got.body)["code"]) == (503, "controller.busy")
            assert int(got.headers["retry-after"]) > 0
        assert rig.ask(links[1].replace("/blobs/", "/check/")).status == 204
        assert rig.ask(rig.link(device="cam-2")).body == CONTENT
        busy[0].close()
        until(lambda: rig.ask(links[1]).body == CONTENT, "the place of the one that has gone")


def test_devices_that_take_all_they_can_keep_no_other_out(tmp_path: Path) -> None:
    limits = ConnectionLimits(total=4 * MAX_OF_DEVICE, per_client=4 * MAX_OF_DEVICE)
    with ExitStack() as held:
        rig = held.enter_context(serving(tmp_path, limits=limits))
        greedy = []
        for number in range(limits.total):
            greedy.append(held.enter_context(rig.dial(rig.link(ENDLESS, f"greedy-{number % 4}"))))
            assert greedy[-1].recv(100)
        for number in range(5):
            assert rig.ask(rig.link(device=f"cam-{number}")).body == CONTENT
        until(lambda: rig.opened[0].closed, "the end of the oldest transfer")
        read_to_the_end(greedy[0])


def test_a_transfer_ends_when_its_link_expires(tmp_path: Path) -> None:
    with serving(tmp_path) as rig, rig.dial(rig.link(ENDLESS)) as reader:
        assert reader.recv(100).startswith(b"HTTP/1.1 200 ")
        rig.clock.advance(HOUR_S)
        got_bytes = 0
        with suppress(ConnectionError):
            while got_bytes < ENOUGH_BYTES and (got := reader.recv(2**20)):
                got_bytes += len(got)
        assert got_bytes < ENOUGH_BYTES
        until(lambda: rig.opened[0].closed, "the end of the transfer")
        assert rig.ask().status == 200, "with a new link it goes on"


def test_a_transfer_does_not_keep_the_controller_from_stopping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(threading.enumerate())
    with ExitStack() as held:
        with serving(tmp_path) as rig:
            busy = held.enter_context(rig.dial(rig.link(ENDLESS)))
            assert busy.recv(100).startswith(b"HTTP/1.1 200 ")
        assert rig.opened[0].closed
        read_to_the_end(busy)
    assert "downloads" not in [thread.name for thread in {*threading.enumerate()} - before]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_blob_that_becomes_shorter_ends_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as rig, rig.dial(rig.link(ENDLESS)) as reader:
        assert reader.recv(100).startswith(b"HTTP/1.1 200 ")
        os.truncate(tmp_path / "blobs" / ENDLESS[:2] / ENDLESS, 1)
        read_to_the_end(reader)
        until(lambda: "cannot be read to its end" in caplog.text)


def test_what_the_kernel_cannot_give_at_once_is_read_on_a_thread(tmp_path: Path) -> None:
    def in_memory(_sha256: str) -> BinaryIO:
        file = os.fdopen(os.memfd_create("blob"), "w+b", buffering=0)
        file.write(CONTENT)
        return file

    with serving(tmp_path, open_blob=in_memory) as rig:
        assert rig.ask().body == CONTENT


def test_over_tls_it_is_the_same(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    files = authority.issue("downloads")
    tls = server_tls(str(files.cert_file), str(files.key_file), DOWNLOADS)
    with serving(tmp_path, tls=tls) as rig:
        rig.tls = authority.client(None)
        assert rig.ask().body == CONTENT
        assert rig.ask(Range="bytes=1-2").body == CONTENT[1:3]
        refused(rig.ask(f"/blobs/{rig.sha256}"), "not a link")
