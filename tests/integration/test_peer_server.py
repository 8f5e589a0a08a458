"""What a device answers others of its site, over real sockets: right, wrong and hostile clients."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.errors import PeersError
from agent.peers.limits import BLOCK_BYTES, Limits
from agent.peers.server import PeerServer
from agent.peers.settings import Address
from tests.simulators.clock import FakeClock
from tests.simulators.packages import STRANGER_KEY, package, variant
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.peers import FAST, HOST, Neighbour, fault_of, get, read_all
from wire.codec import sha256_hex
from wire.trust.peer_links import peer_path

CONTENT = random.Random(3).randbytes(10_000)
LARGE = bytes(24 * 1024 * 1024)
"""More than the buffers of a connection take."""

MADE = package("1", [(variant("best"), CONTENT), (variant("other"), b"other")], chunk_bytes=2**20)
BIG = package("2", [(variant("best"), LARGE)], chunk_bytes=2**20)
BLOB, OTHER, LARGE_BLOB = sha256_hex(CONTENT), sha256_hex(b"other"), sha256_hex(LARGE)
SMALL_WINDOW = 4096


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Neighbour]:
    made = Neighbour(tmp_path / "state")
    made.put(MADE)
    with made.running():
        yield made


@contextlib.contextmanager
def serving(
    directory: Path, clock: FakeClock | None = None, **bounds: float
) -> Iterator[Neighbour]:
    """Run a device that has a large blob, with some bounds."""
    made = Neighbour(
        directory / "state", limits=msgspec.structs.replace(FAST, **bounds), clock=clock
    )
    made.put(BIG)
    made.put(MADE)
    with made.running():
        yield made


def answered(sock: socket.socket, request: bytes) -> tuple[str, bytes]:
    """Send a request on a connection that stays open; return the head and the body."""
    sock.sendall(request)
    content = b""
    while b"\r\n\r\n" not in content:
        content += sock.recv(64 * 1024)
    head, _, body = content.partition(b"\r\n\r\n")
    length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(64 * 1024)
    return head.decode(), body


def test_a_whole_blob_and_parts_of_it_come_on_one_connection(neighbour: Neighbour) -> None:
    link = neighbour.path(BLOB)
    with neighbour.connect() as sock:
        head, body = answered(sock, get(link))
        assert body == CONTENT
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert f'ETag: "{BLOB}"' in head
        head, body = answered(sock, get(link, "Range: bytes=100-199"))
        assert body == CONTENT[100:200]
        assert head.startswith("HTTP/1.1 206 Partial Content\r\n")
        assert f"Content-Range: bytes 100-199/{len(CONTENT)}" in head
        head, body = answered(sock, get(link, "Range: bytes=-7", f'If-Range: "{BLOB}"'))
        assert body == CONTENT[-7:]
        _, body = answered(sock, get(link, "Range: bytes=0-7", 'If-Range: "another"'))
        assert body == CONTENT
        head, body = answered(sock, get(f"http://{HOST}{link}", "Connection: close"))
        assert "Connection: close" in head
        assert sock.recv(1) == b""
    neighbour.has_sent(3 * len(CONTENT) + 107)


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def wrong_requests() -> dict[str, tuple[bytes, int, str]]:
    """Return requests, each with the status and a part of the fault that it gets."""
    digest = "{blob}"
    link = "/blobs/{blob}?{link}"
    return {
        "HEAD": (get(link, method="HEAD"), 405, ""),
        "POST": (get(link, "Content-Length: 0", method="POST"), 405, "not GET"),
        "POST with a body": (
            get(link, "Content-Length: 3", method="POST") + b"abc",
            413,
            "over 0 bytes",
        ),
        "GET with a body": (get(link, "Content-Length: 3") + b"abc", 413, "over 0 bytes"),
        "GET in chunks": (get(link, "Transfer-Encoding: chunked"), 413, "no body"),
        "DELETE": (get(link, method="DELETE"), 405, "not GET"),
        "CONNECT": (get("127.0.0.1:22", method="CONNECT"), 405, "not GET"),
        "two ranges": (get(link, "Range: bytes=0-1,5-6"), 416, "not one range"),
        "two fields of ranges": (
            get(link, "Range: bytes=0-1", "Range: bytes=5-6"),
            416,
            "not one range",
        ),
        "a range behind the end": (get(link, "Range: bytes=10000-"), 416, "10000 bytes"),
        "the root": (get("/"), 404, "nothing at this address"),
        "another path": (get("/blobs/../../etc/passwd"), 404, "nothing at this address"),
        "an encoded path": (get("/blobs/%2e%2e/{blob}?{link}"), 404, "nothing at this address"),
        "an encoded digest": (get(link.replace("/blobs", "/%62lobs")), 404, "nothing at this"),
        "a path before": (get(f"/x/..{link}"), 404, "nothing at this address"),
        "two slashes": (get(f"/{link}"), 404, "nothing at this address"),
        "a name": (get("/blobs/model.json?{link}"), 404, "nothing at this address"),
        "a digest in capitals": (get("/blobs/" + "A" * 64 + "?{link}"), 404, "nothing at this"),
        "an asterisk": (get("*"), 404, "nothing at this address"),
        "no link": (get(f"/blobs/{digest}"), 403, "no link to a blob of this device"),
        "an empty link": (get(f"/blobs/{digest}?"), 403, "no link to a blob of this device"),
        "more than a link": (get(link + "&x=1"), 403, "no link to a blob of this device"),
        "a link in other words": (get(link + "="), 403, "no link to a blob of this device"),
        "not HTTP": (b"SSH-2.0-x\r\n\r\n", 400, "request line is malformed"),
        "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "only HTTP/1.1"),
        "lines without CR": (get(link).replace(b"\r", b""), 400, "CR LF"),
        "no host": (get(link).replace(b"Host: x\r\n", b""), 400, "Host header is missing"),
        "two hosts": (get(link, "Host: y"), 400, "host occurs twice"),
        "a NUL": (get(link).replace(b"Host: x", b"Host: \0"), 400, "malformed"),
        "a long line": (get("/" + "a" * 9000), 414, "over 8192 bytes"),
        "a long header": (get(link, *["X: " + "a" * 1000] * 5), 431, "over 4096 bytes"),
        "many fields": (get(link, *["X:"] * 101), 431, "header fields"),
        "half a header": (get(link)[:-20], 400, "ended before"),
    }


@pytest.mark.parametrize("name", wrong_requests())
def test_a_wrong_request_gets_one_line_and_the_connection_ends(
    neighbour: Neighbour, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    request, status, message = wrong_requests()[name]
    query = neighbour.path(BLOB).partition("?")[2]
    request = request.replace(b"{blob}", BLOB.encode()).replace(b"{link}", query.encode())
    with neighbour.connect() as sock:
        sock.sendall(request)
        if name == "half a header":
            sock.shutdown(socket.SHUT_WR)
        answer = read_all(sock)
    found, fields, fault = fault_of(answer)
    assert (found, fields["Connection"]) == (status, "close")
    if name == "HEAD":
        assert (fault, fields["Allow"]) == ({}, "GET")
    else:
        assert message in fault["message"]
        assert "\n" not in fault["message"]
        assert set(fault) == {"code", "message", "remedy"}
        assert query not in answer.decode()
    if status == 416:
        assert fields["Content-Range"] == f"bytes */{len(CONTENT)}"
    assert neighbour.sent_bytes == 0
    assert capfd.readouterr() == ("", ""), "no log holds a link, nor anything else of it"


def test_only_the_directors_link_from_this_device_to_this_blob_counts(
    neighbour: Neighbour,
) -> None:
    now_s = int(neighbour.clock.now_s())

    def link(peer: str = "cam-1", sha256: str = BLOB) -> str:
        return peer_path(
            STRANGER_KEY, device="dev-1", peer=peer, sha256=sha256, until_s=now_s + 600
        )

    right = neighbour.path(BLOB)
    elsewhere = Neighbour(neighbour.slots.parts / "x", device="cam-2").path(BLOB)
    wrong = [
        link(),
        elsewhere,
        changed(elsewhere, "peer=cam-2", "peer=cam-1"),
        changed(right, "device=dev-1", "device=dev-2"),
        changed(right, "until=", "until=9"),
        changed(neighbour.path(OTHER), OTHER, BLOB),
    ]
    for each in wrong:
        status, _, fault = fault_of(neighbour.say(get(each)))
        assert (status, fault["code"]) == (403, "wire.signature")
        assert fault["remedy"] == "ask the controller for a new link"
    status, _, fault = fault_of(neighbour.say(get(neighbour.path(BLOB, for_s=-1))))
    assert (status, fault["message"]) == (403, "this link has expired")
    assert fault_of(neighbour.say(get(right, "Connection: close")))[0] == 200


def test_without_a_link_nobody_learns_which_blobs_are_here(neighbour: Neighbour) -> None:
    neighbour.coming.sha256 = "2" * 64
    answers = {
        neighbour.say(get(neighbour.path(sha256, key=STRANGER_KEY)))
        for sha256 in (BLOB, "1" * 64, "2" * 64)
    }
    assert len(answers) == 1


def test_what_is_not_here_what_is_coming_and_what_is_too_much(neighbour: Neighbour) -> None:
    def asked(sha256: str) -> tuple[int, str | None, str]:
        status, fields, fault = fault_of(neighbour.say(get(neighbour.path(sha256))))
        return status, fields.get("Retry-After"), fault["message"]

    assert asked("1" * 64) == (404, None, "this device does not have this blob")
    neighbour.coming.sha256 = "1" * 64
    assert asked("1" * 64) == (503, "1", "this blob is coming")
    neighbour.why_tired = "this device runs on its battery"
    assert asked(BLOB) == (503, None, "this device runs on its battery")


def test_a_fault_of_ours_ends_one_connection_and_is_told_by_its_name(
    neighbour: Neighbour, capfd: pytest.CaptureFixture[str]
) -> None:
    neighbour.why_tired = "broken"
    assert neighbour.say(get(neighbour.path(BLOB))) == b""
    assert neighbour.failures == ["LookupError"]
    neighbour.why_tired = ""
    assert neighbour.say(get(neighbour.path(BLOB), "Connection: close")).endswith(CONTENT)
    assert capfd.readouterr() == ("", "")


def test_a_header_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path, head_s=0.3) as neighbour, neighbour.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        sock.settimeout(0.05)

        def trickled() -> bytes:  # a byte now and then keeps nothing open
            with contextlib.suppress(TimeoutError):
                return sock.recv(1)
            with contextlib.suppress(OSError):
                sock.sendall(b"X")
            return b""

        first = until(trickled, "the answer")
        sock.settimeout(PATIENCE_S)
        status, _, fault = fault_of(first + read_all(sock))
        assert (status, fault["message"]) == (408, "the header did not arrive within 0.3 s")


def test_a_silent_connection_is_ended(tmp_path: Path) -> None:
    with serving(tmp_path, idle_s=0.1) as neighbour, neighbour.connect() as sock:
        assert read_all(sock) == b""


def test_who_does_not_read_loses_the_connection(tmp_path: Path) -> None:
    with (
        serving(tmp_path, at_once=1, block_s=0.2) as neighbour,
        neighbour.connect(SMALL_WINDOW) as sock,
    ):
        sock.sendall(get(neighbour.path(LARGE_BLOB)))
        until(lambda: neighbour.sent_bytes > 0)
        other = get(neighbour.path(BLOB, device="dev-2"), "Connection: close")
        until(lambda: fault_of(neighbour.say(other))[0] == 200, "a free place")
        assert len(read_all(sock)) < len(LARGE)


def test_so_many_devices_are_served_at_once_and_one_that_comes_back_gets_its_place(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, at_once=1) as neighbour, neighbour.connect(SMALL_WINDOW) as first:
        first.sendall(get(neighbour.path(LARGE_BLOB)))
        until(lambda: neighbour.sent_bytes > 0)
        status, fields, _ = fault_of(neighbour.say(get(neighbour.path(BLOB, device="dev-2"))))
        assert (status, fields["Retry-After"]) == (503, "1")
        with neighbour.connect() as again:
            again.sendall(get(neighbour.path(BLOB), "Connection: close"))
            assert read_all(again).endswith(CONTENT)
        assert len(read_all(first)) < len(LARGE)


def test_one_address_does_not_keep_others_out(tmp_path: Path) -> None:
    with (
        serving(tmp_path, connections_of_address=2) as neighbour,
        contextlib.ExitStack() as stack,
    ):
        idle = [stack.enter_context(neighbour.connect()) for _ in range(2)]
        for number, sock in enumerate(idle):  # each has been admitted when it is answered
            link = neighbour.path(BLOB, device=f"dev-{number}")
            assert answered(sock, get(link))[1] == CONTENT
        status, fields, fault = fault_of(neighbour.say(b""))
        assert (status, fields["Retry-After"]) == (503, "1"), "it is not taken for dead"
        assert fault["message"] == "too many connections"
        with socket.socket() as other:
            other.settimeout(PATIENCE_S)
            other.bind(("127.0.0.2", 0))
            other.connect((HOST, neighbour.port))
            assert answered(other, get(neighbour.path(BLOB)))[1] == CONTENT
        idle[0].close()
        request = get(neighbour.path(BLOB), "Connection: close")
        until(lambda: fault_of(neighbour.say(request))[0] == 200)


def test_a_crowd_behind_one_address_is_let_in(tmp_path: Path) -> None:
    made = Neighbour(tmp_path / "state", limits=Limits(at_once=2, bytes_per_s=2**30))
    made.coming.sha256 = BLOB
    with made.running(), contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(made.connect()) for _ in range(20)]
        for number, sock in enumerate(crowd):
            sock.sendall(get(made.path(BLOB, device=f"dev-{number}")))
        for sock in crowd:
            status, _, fault = fault_of(read_all(sock))
            assert (status, fault["message"]) == (503, "this blob is coming")


def test_a_device_that_connects_again_and_again_holds_up_nobody(tmp_path: Path) -> None:
    clock = FakeClock()  # a turn takes hours, and all those below wait at the same time
    with contextlib.ExitStack() as stack:
        neighbour = stack.enter_context(serving(tmp_path, clock, bytes_per_s=2, at_once=3))
        first = stack.enter_context(neighbour.connect())
        first.sendall(get(neighbour.path(LARGE_BLOB, device="dev-1")))
        until(lambda: neighbour.sent_bytes == BLOCK_BYTES)
        connections = [stack.enter_context(neighbour.connect()) for _ in range(5)]
        for sock in connections:
            sock.sendall(get(neighbour.path(BLOB, device="hostile")))
            assert sock.recv(1024).startswith(b"HTTP/1.1 200 OK")
        honest = stack.enter_context(neighbour.connect())
        honest.sendall(get(neighbour.path(BLOB, device="honest")))
        assert honest.recv(1024).startswith(b"HTTP/1.1 200 OK")
        for sock in connections[:-1]:
            assert read_all(sock) == b"", "it has given its turn back"


def test_each_request_counts_like_some_kib(tmp_path: Path) -> None:
    clock = FakeClock()  # no time passes
    with serving(tmp_path, clock, bytes_per_s=2) as neighbour, neighbour.connect() as sock:
        one = get(neighbour.path(BLOB), "Range: bytes=0-0")
        assert answered(sock, one)[1] == CONTENT[:1]
        sock.sendall(64 * one)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        assert neighbour.sent_bytes == 1, "the second byte would come in hours"


def test_a_package_that_is_removed_is_sent_no_further(tmp_path: Path) -> None:
    with serving(tmp_path) as neighbour, neighbour.connect(SMALL_WINDOW) as sock:
        sock.sendall(get(neighbour.path(LARGE_BLOB)))
        until(lambda: neighbour.sent_bytes > 0)
        shutil.rmtree(neighbour.slots.directory(BIG.digest))
        assert len(read_all(sock)) < len(LARGE)
        assert neighbour.failures == []


def test_who_shows_no_valid_link_waits_and_keeps_nobody_up(tmp_path: Path) -> None:
    with serving(tmp_path, refusal_s=PATIENCE_S) as neighbour, neighbour.connect() as stranger:
        stranger.sendall(get(neighbour.path(BLOB, key=STRANGER_KEY)))
        answer = neighbour.say(get(neighbour.path(BLOB), "Connection: close"))
        assert answer.endswith(CONTENT)
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.recv(1)


def test_a_link_that_expires_ends_its_connection(tmp_path: Path) -> None:
    clock = FakeClock()
    with serving(tmp_path, clock) as neighbour, neighbour.connect(SMALL_WINDOW) as sock:
        sock.sendall(get(neighbour.path(LARGE_BLOB, for_s=600)))
        until(lambda: neighbour.sent_bytes > 0)
        clock.correct(600)
        assert len(read_all(sock)) < len(LARGE)


def test_a_file_that_becomes_shorter_ends_its_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as neighbour, neighbour.connect(SMALL_WINDOW) as sock:
        sock.sendall(get(neighbour.path(LARGE_BLOB)))
        until(lambda: neighbour.sent_bytes > 0)
        place = neighbour.slots.directory(BIG.digest) / "variants/best/model.json"
        with place.open("r+b") as file:
            file.truncate(1000)
        assert len(read_all(sock)) < len(LARGE)
        answer = neighbour.say(get(neighbour.path(BLOB), "Connection: close"))
        assert answer.endswith(CONTENT)


def test_the_end_of_the_agent_ends_all_connections(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        neighbour = stack.enter_context(serving(tmp_path))
        busy = stack.enter_context(neighbour.connect(SMALL_WINDOW))
        idle = stack.enter_context(neighbour.connect())
        assert answered(idle, get(neighbour.path(BLOB)))[1] == CONTENT
        busy.sendall(get(neighbour.path(LARGE_BLOB, device="dev-2")))
        until(lambda: neighbour.sent_bytes > len(CONTENT))
        neighbour.server.stop()
        neighbour.server.stop()
        assert neighbour.server.address is None
        assert len(read_all(busy)) < len(LARGE)
        assert read_all(idle) == b""


def test_the_rate_is_for_all_together(tmp_path: Path) -> None:
    clock = FakeClock()  # no time passes: what the rate does not allow now never comes
    with (
        serving(tmp_path, clock, bytes_per_s=2) as neighbour,
        neighbour.connect() as first,
        neighbour.connect() as second,
    ):
        first.sendall(get(neighbour.path(LARGE_BLOB)))
        until(lambda: neighbour.sent_bytes > 0)
        second.sendall(get(neighbour.path(BLOB, device="dev-2")))
        assert second.recv(1024).startswith(b"HTTP/1.1 200 OK")
        assert neighbour.sent_bytes == BLOCK_BYTES


def test_all_addresses_of_the_device(tmp_path: Path) -> None:
    made = Neighbour(tmp_path / "state")
    made.put(MADE)
    for host in ("0.0.0.0", "::"):  # noqa: S104 - what is tested
        server = PeerServer(Address(host, 0), made.rights, FAST, made.clock)
        try:
            server.start()
        except PeersError:
            pytest.skip("this machine has no IPv6")
        address = server.address
        assert address is not None
        with socket.create_connection((HOST, address.port), PATIENCE_S) as sock:
            assert answered(sock, get(made.path(BLOB)))[1] == CONTENT
        server.stop()


def test_an_address_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    neighbour = Neighbour(tmp_path / "state")
    with neighbour.running():
        where = Address(HOST, neighbour.port)
        taken = PeerServer(where, neighbour.rights, FAST, neighbour.clock)
        with pytest.raises(PeersError, match="cannot listen for other devices on 127") as caught:
            taken.start()
        assert "peers.listen" in caught.value.remedy
        assert taken.address is None
