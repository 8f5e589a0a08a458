"""One post to a receiver, whatever that does: it is slow, endless, elsewhere or somebody else."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.alert_settings import WebhookConfig
from controller.services.webhook_posts import Answered, Outcome, Webhook
from examples.digits.box import free_port
from tests.simulators.certificates import Authority
from tests.simulators.raw_server import Answering, RawServer
from tests.simulators.receiver import SECRET, Receiver, running_receiver
from wire.clock import SystemClock

CLOCK = SystemClock()
LIMIT_S = 0.3
LATE_S = 30.0
"""Far more than the limit, on a busy machine, too."""

BODY = b'{"id": "1"}\r\n\r\n'
"""Ends as a head does, by which `RawServer` knows the end of a request."""


def config(directory: Path, port: int) -> WebhookConfig:
    return Receiver(port=port).config(directory)


def posted(settings: WebhookConfig, *, timeout_s: float = LIMIT_S) -> Outcome:
    began_s = CLOCK.monotonic_s()
    outcome = Webhook(settings, timeout_s=timeout_s).post("1", BODY, 1_750_000_000.7)
    assert CLOCK.monotonic_s() - began_s < LATE_S
    assert SECRET not in outcome.fault
    return outcome


def whole(sock: socket.socket, request: bytes) -> None:
    """Read what is still to come of a request: else its end would be a reset of the connection."""
    while BODY not in request:
        request += sock.recv(4096)


def saying(said: bytes) -> Answering:
    """Answer with these bytes, and end the connection."""

    def answer(sock: socket.socket, request: bytes) -> bool:
        whole(sock, request)
        sock.sendall(said)
        return False

    return answer


def drip(piece: bytes, *, first: bytes = b"") -> Answering:
    """Answer with the same piece again and again, until the client has gone."""

    def answer(sock: socket.socket, request: bytes) -> bool:
        whole(sock, request)
        sock.sendall(first)
        sock.settimeout(LIMIT_S / 20)
        while True:
            sock.sendall(piece)
            with suppress(TimeoutError):
                if not sock.recv(1):
                    return False

    return answer


def test_what_is_accepted_is_signed_and_has_its_identifier(tmp_path: Path) -> None:
    with running_receiver() as receiver:
        outcome = posted(receiver.config(tmp_path), timeout_s=LATE_S)
    assert outcome == Outcome(Answered.ACCEPTED)
    (post,) = receiver.posts
    assert (post.path, post.timestamp, post.body) == ("/hooks/pager?v=1", "1750000000", BODY)
    assert post.content == {"id": "1"}


@pytest.mark.parametrize(
    ("status", "answered"),
    [
        (200, Answered.ACCEPTED), (202, Answered.ACCEPTED),
        (400, Answered.REFUSED), (401, Answered.REFUSED), (413, Answered.REFUSED),
        (408, Answered.FAILED), (429, Answered.FAILED), (500, Answered.FAILED),
        (503, Answered.FAILED),
    ],
)  # fmt: skip
def test_a_status_is_an_answer(tmp_path: Path, status: int, answered: Answered) -> None:
    with running_receiver() as receiver:
        receiver.answers = [status]
        outcome = posted(receiver.config(tmp_path), timeout_s=LATE_S)
    assert outcome.answered is answered
    assert (str(status) in outcome.fault) is (answered is not Answered.ACCEPTED)


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with running_receiver() as other:
        place = f"http://127.0.0.1:{other.port}/".encode()
        moved = b"HTTP/1.1 307 Moved\r\nLocation: " + place + b"\r\nContent-Length: 0\r\n\r\n"
        with RawServer(saying(moved)).running() as server:
            outcome = posted(config(tmp_path, server.port), timeout_s=LATE_S)
    assert outcome.answered is Answered.REFUSED
    assert "it redirects (307), which is not followed" in outcome.fault
    assert other.posts == []


def test_an_endless_body_is_not_read(tmp_path: Path) -> None:
    endless = drip(b"x" * 65_536, first=b"HTTP/1.1 200 OK\r\n\r\n")
    with RawServer(endless).running() as server:
        outcome = posted(config(tmp_path, server.port), timeout_s=LATE_S)
    assert outcome == Outcome(Answered.ACCEPTED)


def test_an_answer_before_the_end_of_the_post_counts(tmp_path: Path) -> None:
    """As that of a proxy which takes no posts of that size, and does not read them."""

    def refuse(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        with sock:
            head = b""
            while b"\r\n\r\n" not in head:
                head += sock.recv(4096)
            sock.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        webhook = Webhook(config(tmp_path, listener.getsockname()[1]), timeout_s=LATE_S)
        outcome = webhook.post("1", b"x" * 8_000_000, 1_750_000_000.0)
        thread.join()
    assert outcome == Outcome(Answered.REFUSED, "it refuses with 413")


@pytest.mark.parametrize("status", [100, 102, 103, 199])
def test_an_answer_that_only_informs_comes_before_the_answer(tmp_path: Path, status: int) -> None:
    informs = b"HTTP/1.1 %d Wait\r\nLink: </x>\r\n\r\n" % status
    with RawServer(saying(informs * 2 + b"HTTP/1.1 204 Done\r\n\r\n")).running() as server:
        outcome = posted(config(tmp_path, server.port), timeout_s=LATE_S)
    assert outcome == Outcome(Answered.ACCEPTED)


@pytest.mark.parametrize(
    ("answer", "answered"),
    [
        (drip(b"H"), Answered.FAILED),  # a first line that never ends
        (drip(b"HTTP/1.1 102 Processing\r\n\r\n"), Answered.FAILED),
        (drip(b""), Answered.FAILED),
        (drip(b"X: y\r\n", first=b"HTTP/1.1 200 OK\r\n"), Answered.FAILED),
    ],
    ids=["line", "informs", "silent", "head"],
)
def test_a_slow_receiver_has_a_limit(tmp_path: Path, answer: Answering, answered: Answered) -> None:
    with RawServer(answer).running() as server:
        outcome = posted(config(tmp_path, server.port))
    assert outcome.answered is answered


def test_a_receiver_that_is_silent_is_told_so(tmp_path: Path) -> None:
    with RawServer(drip(b"")).running() as server:
        outcome = posted(config(tmp_path, server.port))
    assert outcome.fault == "it does not answer within 0.3 s"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00\xff" * 20,
        b"\x1b[2J SSH-2.0-x\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: y\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
def test_what_is_no_http_is_no_answer(tmp_path: Path, said: bytes) -> None:
    with RawServer(saying(said)).running() as server:
        outcome = posted(config(tmp_path, server.port))
    assert outcome.answered is Answered.FAILED
    assert outcome.fault.isprintable()


def test_a_receiver_that_is_away_is_no_answer(tmp_path: Path) -> None:
    outcome = posted(config(tmp_path, free_port()), timeout_s=LATE_S)
    assert (outcome.answered, outcome.fault) == (
        Answered.FAILED, "no answer: connection refused",
    )  # fmt: skip


@contextmanager
def tls_server(authority: Authority) -> Iterator[int]:
    """Accept posts over TLS, with a certificate of an authority."""
    certificate = authority.issue("pager")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    plain, _ = listener.accept()
                    with suppress(OSError), context.wrap_socket(plain, server_side=True) as sock:
                        whole(sock, b"")
                        sock.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_certificate_is_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    known, stranger = Authority(tmp_path, "known"), Authority(tmp_path, "stranger")
    with tls_server(known) as port:
        plain = config(tmp_path, port)
        settings = msgspec.structs.replace(
            plain, url=f"https://127.0.0.1:{port}/", clear_text=False, ca_file=str(known.ca_file)
        )
        assert posted(settings, timeout_s=LATE_S) == Outcome(Answered.ACCEPTED)
        other = msgspec.structs.replace(settings, ca_file=str(stranger.ca_file))
        outcome = posted(other, timeout_s=LATE_S)
        assert outcome.answered is Answered.FAILED
        assert outcome.fault.startswith("its certificate is refused")
    assert SECRET not in caplog.text


def test_the_way_to_a_receiver_has_the_same_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host of many addresses that drop what comes, and one whose name cannot be looked up."""
    asked, over = [], threading.Event()

    def look_up(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        if host == "unknown.example":
            over.wait(LATE_S)
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))] * 100

    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as waiting:
        for _ in range(3):
            full = waiting.enter_context(socket.socket())
            full.settimeout(0.0)
            full.connect_ex(listener.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        settings = config(tmp_path, listener.getsockname()[1])
        late = Outcome(Answered.FAILED, f"it does not answer within {LIMIT_S} s")
        for host in ("many.example", "unknown.example", "unknown.example"):
            url = settings.url.replace("127.0.0.1", host)
            assert posted(msgspec.structs.replace(settings, url=url)) == late
    over.set()
    assert asked == ["many.example", "unknown.example"]


def test_a_handshake_that_never_ends_is_cut(tmp_path: Path) -> None:
    """It sends a byte of a record now and then, so no limit of a socket is ever reached."""
    authority = Authority(tmp_path, "known")
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        with suppress(OSError):
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"\x16\x03\x03\x3f\xff")
                while not ended.wait(LIMIT_S / 5):
                    sock.sendall(b"\x02")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            plain = config(tmp_path, listener.getsockname()[1])
            settings = msgspec.structs.replace(
                plain, url=plain.url.replace("http:", "https:"), ca_file=str(authority.ca_file)
            )
            outcome = posted(settings)
        finally:
            ended.set()
            thread.join()
    assert outcome == Outcome(Answered.FAILED, f"it does not answer within {LIMIT_S:g} s")
