"""Clients of the controller's API that hold connections, and those that want an answer."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI, Request

from controller.api import server as server_module
from controller.api.callers import Callers
from controller.api.guard import Guard
from controller.api.protocol import ConnectionLimits
from controller.api.server import HttpServer
from controller.api.tls import server_tls
from controller.errors import SettingsError
from controller.schemas import Fault
from controller.services.access import Access
from controller.services.audit_log import AuditLog
from controller.store.all_tables import CONTROL_METADATA
from controller.store.database import Database
from tests.simulators.certificates import Authority
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.clock import SystemClock
from wire.codec import from_json

HOST = "127.0.0.1"
OTHER = "127.0.0.2"
"""Another address of this machine."""

CROWD = 600
TOKEN = "a token of sixteen or more"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}
HEADER = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
UNFINISHED = b"GET /now HTTP/1.1\r\n" + HEADER
UNREAD = b"GET /large HTTP/1.1\r\n" + HEADER + b"\r\n"
STRANGE = b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
"""The request that needs no token."""

LARGE_BYTES = 1024 * 1024
HASTY = ConnectionLimits(header_s=1.0, silence_s=1.0)


class Gate:
    """Lets a request go on when it is opened."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.opened = threading.Event()


def application(gate: Gate, database: Database) -> FastAPI:
    app = FastAPI()

    @app.get("/now")
    def now() -> str:
        return "now"

    @app.get("/large")
    def large() -> str:
        return "x" * LARGE_BYTES

    @app.get("/later")
    def later() -> str:
        gate.asked.release()
        gate.opened.wait(PATIENCE_S)
        return "later"

    @app.get("/standstill")
    async def standstill() -> str:
        return later()

    @app.get("/v1/health")
    def health() -> str:
        return later() + large()

    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    clock = SystemClock()
    app.add_middleware(
        Guard,
        callers=Callers(Access(database, clock, home_token=TOKEN), clock),
        audit=AuditLog(database),
        clock=clock,
        max_blob_bytes=LARGE_BYTES,
    )
    return app


@contextmanager
def access_database() -> Iterator[Database]:
    """A database with what the guard needs, and no more."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/fleet.db")
        tables = [CONTROL_METADATA.tables[name] for name in ("api_token", "audit")]
        CONTROL_METADATA.create_all(database.engine, tables=tables)
        try:
            yield database
        finally:
            database.close()


@contextmanager
def serving(
    limits: ConnectionLimits | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[int, Gate]]:
    server, gate = HttpServer(HOST, 0, tls=tls, limits=limits), Gate()
    with access_database() as database:
        server.start(application(gate, database))
        try:
            yield server.port, gate
        finally:
            gate.opened.set()
            server.stop()


def dial(port: int, source: str = HOST) -> socket.socket:
    return socket.create_connection((HOST, port), PATIENCE_S, source_address=(source, 0))


def ask(port: int, source: str = HOST, tls: ssl.SSLContext | None = None) -> bytes:
    connection = (
        http.client.HTTPConnection(HOST, port, PATIENCE_S, source_address=(source, 0))
        if tls is None
        else http.client.HTTPSConnection(
            HOST, port, timeout=PATIENCE_S, source_address=(source, 0), context=tls
        )
    )
    try:
        connection.request("GET", "/now", headers=SHOWN)
        return connection.getresponse().read()
    finally:
        connection.close()


def ended(connection: socket.socket) -> bool:
    """Wait until the server ends a connection; return whether it has answered nothing."""
    try:
        return connection.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


@pytest.mark.parametrize("source", [HOST, OTHER], ids=["same-address", "other-address"])
@pytest.mark.parametrize("first", [b"", UNFINISHED], ids=["silent", "unfinished-header"])
def test_a_client_that_holds_600_connections_keeps_nobody_out(first: bytes, source: str) -> None:
    with serving() as (port, _), ExitStack() as held:
        for _ in range(CROWD):
            connection = held.enter_context(dial(port))
            if first:
                connection.sendall(first)
        for _ in range(3):
            assert ask(port, source) == b'"now"'


def test_a_client_may_hold_only_so_many_connections() -> None:
    with serving(ConnectionLimits(per_client=3)) as (port, _), ExitStack() as held:
        own = [held.enter_context(dial(port)) for _ in range(3)]
        theirs = held.enter_context(dial(port, OTHER))
        theirs.sendall(UNFINISHED)
        own.append(held.enter_context(dial(port)))
        assert ended(own[0])
        theirs.sendall(b"\r\n")
        assert theirs.recv(100).startswith(b"HTTP/1.1 200"), "another client has lost nothing"


def test_a_request_that_is_being_answered_keeps_its_place() -> None:
    with serving(ConnectionLimits(per_client=2, header_s=1.0)) as (port, gate), ExitStack() as held:
        busy = http.client.HTTPConnection(HOST, port, PATIENCE_S)
        busy.request("GET", "/later", headers=SHOWN)
        assert gate.asked.acquire(timeout=PATIENCE_S)
        late = [held.enter_context(dial(port)) for _ in range(5)]
        assert ended(late[-1]), "its time for a header has passed, and that of the request has not"
        gate.opened.set()
        assert busy.getresponse().read() == b'"later"'
        busy.close()


@pytest.mark.parametrize("opened", [False, True], ids=["being-answered", "unread"])
@pytest.mark.parametrize("source", [HOST, OTHER], ids=["same-address", "other-address"])
def test_who_shows_no_token_keeps_nobody_out_whatever_it_asks(source: str, opened: bool) -> None:
    limits = ConnectionLimits(total=3, per_client=3, unread_s=PATIENCE_S)
    with serving(limits) as (port, gate), ExitStack() as held:
        if opened:
            gate.opened.set()
        for _ in range(3):
            connection = held.enter_context(dial(port))
            connection.sendall(HEALTH * 10)
            assert gate.asked.acquire(timeout=PATIENCE_S)
            if opened:
                assert connection.recv(1), "it is being answered"
        for _ in range(3):
            assert ask(port, source) == b'"now"'


def test_who_shows_no_token_gets_one_answer_of_a_connection() -> None:
    with serving() as (port, _), dial(port) as connection:
        connection.sendall(STRANGE * 50)
        answer = b""
        while part := received(connection):
            answer += part
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.count(b"HTTP/1.1") == 1


def test_who_comes_with_a_crowd_is_heard_before_the_crowd_takes_its_place() -> None:
    with serving() as (port, gate), ExitStack() as held:
        busy = held.enter_context(dial(port))
        busy.sendall(b"GET /standstill HTTP/1.1\r\n" + HEADER + b"\r\n")
        assert gate.asked.acquire(timeout=PATIENCE_S)
        own = held.enter_context(dial(port))
        own.sendall(UNFINISHED + b"\r\n")
        for _ in range(100):  # more than one client may have, fewer than any kernel keeps
            held.enter_context(dial(port)).sendall(STRANGE)
        gate.opened.set()
        assert own.recv(100).startswith(b"HTTP/1.1 200")


def test_a_client_for_which_there_is_no_place_is_told_to_come_again() -> None:
    with serving(ConnectionLimits(per_client=1)) as (port, gate):
        busy = http.client.HTTPConnection(HOST, port, PATIENCE_S)
        busy.request("GET", "/later", headers=SHOWN)
        assert gate.asked.acquire(timeout=PATIENCE_S)
        with dial(port) as refused:
            answer = http.client.HTTPResponse(refused)
            answer.begin()
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
            fault = from_json(answer.read(), Fault, limit_bytes=LARGE_BYTES)
            assert (fault.code, refused.recv(1)) == ("controller.busy", b"")
        gate.opened.set()
        assert busy.getresponse().read() == b'"later"'
        busy.close()
        assert ask(port) == b'"now"'


def trickle(connection: socket.socket, part: bytes, stop: threading.Event) -> None:
    while not stop.wait(0.02):
        try:
            connection.sendall(part)
        except OSError:
            return


@pytest.mark.parametrize(
    "first",
    [
        b"",
        UNFINISHED,
        UNFINISHED + b"\r\n" + UNFINISHED,
        b"POST /length HTTP/1.1\r\n" + HEADER + b"Content-Length: 10\r\n\r\nabc",
    ],
    ids=["silent", "unfinished-header", "second-request", "unfinished-body"],
)
def test_what_does_not_come_in_time_ends_the_connection(first: bytes) -> None:
    with serving(HASTY) as (port, _), dial(port) as connection:
        connection.sendall(first)
        answer = b""
        while part := received(connection):
            answer += part
        assert answer.count(b"HTTP/1.1") == first.count(b"\r\n\r\n" + UNFINISHED)


def is_answered(port: int, tls: ssl.SSLContext | None = None) -> bool:
    try:
        return ask(port, tls=tls) == b'"now"'
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("secured", [False, True], ids=["clear", "tls"])
def test_who_does_not_read_its_answers_loses_its_place(
    secured: bool, tls: ssl.SSLContext, authority: Authority
) -> None:
    limits = ConnectionLimits(
        total=1, per_client=1, header_s=PATIENCE_S, silence_s=PATIENCE_S, unread_s=1.0
    )
    with serving(limits, tls if secured else None) as (port, _), ExitStack() as held:
        connection = held.enter_context(dial(port))
        client = authority.client(None) if secured else None
        if client is not None:
            connection = held.enter_context(client.wrap_socket(connection, server_hostname=HOST))
        connection.sendall(UNREAD * 100)
        assert connection.recv(1), "it is being answered"
        until(lambda: is_answered(port, client), "the place of who does not read", step_s=0.2)


def test_who_reads_slowly_gets_its_answers() -> None:
    limits, number = ConnectionLimits(unread_s=5.0, header_s=PATIENCE_S), 20
    with serving(limits) as (port, _), dial(port) as connection:
        connection.sendall(UNREAD * number)
        pause, size_bytes = threading.Event(), 0
        while size_bytes < number * LARGE_BYTES:
            part = connection.recv(65536)
            assert part, "the server ended a connection that was read"
            size_bytes += len(part)
            pause.wait(0.02)


def test_a_header_that_comes_byte_by_byte_has_no_more_time() -> None:
    with serving(HASTY) as (port, _), dial(port) as connection:
        connection.sendall(UNFINISHED + b"X: ")
        stop = threading.Event()
        sending = threading.Thread(target=trickle, args=(connection, b"x", stop))
        sending.start()
        try:
            assert ended(connection)
        finally:
            stop.set()
            finished(sending)


def test_a_body_that_comes_slowly_is_read() -> None:
    with serving(ConnectionLimits(header_s=1.0)) as (port, _), dial(port) as connection:
        connection.sendall(b"POST /length HTTP/1.1\r\n" + HEADER + b"Content-Length: 100\r\n\r\n")
        stop = threading.Event()
        sending = threading.Thread(target=trickle, args=(connection, b"x", stop))
        sending.start()
        try:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        finally:
            stop.set()
            finished(sending)


def test_many_requests_over_one_connection_are_answered() -> None:
    with serving(ConnectionLimits(total=1, per_client=1)) as (port, _):
        connection = http.client.HTTPConnection(HOST, port, PATIENCE_S)
        for _ in range(20):
            connection.request("GET", "/now", headers=SHOWN)
            assert connection.getresponse().read() == b'"now"'
        connection.close()


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionError:
        return b""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def tls(authority: Authority) -> ssl.SSLContext:
    issued = authority.issue("api")
    return server_tls(str(issued.cert_file), str(issued.key_file))


def test_over_tls_too_a_crowd_keeps_nobody_out(tls: ssl.SSLContext, authority: Authority) -> None:
    with serving(tls=tls) as (port, _), ExitStack() as held:
        for _ in range(CROWD):
            held.enter_context(dial(port))
        for source in (HOST, OTHER):
            assert ask(port, source, authority.client(None)) == b'"now"'


@pytest.mark.parametrize("first", [b"", UNFINISHED + b"\r\n"], ids=["silent", "no-tls"])
def test_who_makes_no_handshake_gets_nothing(tls: ssl.SSLContext, first: bytes) -> None:
    with serving(HASTY, tls) as (port, _), dial(port) as connection:
        connection.sendall(first)
        answer = b""
        while part := received(connection):
            answer += part
        assert b"HTTP" not in answer


def test_a_header_over_tls_has_its_time_too(tls: ssl.SSLContext, authority: Authority) -> None:
    with (
        serving(HASTY, tls) as (port, _),
        dial(port) as raw,
        authority.client(None).wrap_socket(raw, server_hostname=HOST) as secured,
    ):
        secured.sendall(UNFINISHED)
        assert ended(secured)


def test_connections_in_every_state_do_not_keep_the_server_from_stopping(
    tls: ssl.SSLContext, authority: Authority
) -> None:
    with ExitStack() as held, serving(tls=tls) as (port, _):
        held.enter_context(dial(port))
        secured = authority.client(None).wrap_socket(dial(port), server_hostname=HOST)
        held.enter_context(secured)
        secured.sendall(UNFINISHED)
    names = [thread.name for thread in threading.enumerate()]
    assert "api" not in names


def test_a_request_that_waits_for_what_is_gone_ends_in_one_line_when_the_server_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "STOP_S", 0.1)
    monkeypatch.setattr(server_module, "CANCEL_S", 1)
    server, app, reached = HttpServer(HOST, 0), FastAPI(), threading.Event()

    @app.get("/wait")
    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    server.start(app)
    with dial(server.port) as connection:
        connection.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        assert reached.wait(PATIENCE_S)
        server.stop()
    assert "no answer to GET /wait: stopping" in caplog.messages
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", False), ("0.0.0.0", True)])  # noqa: S104 - to be told
def test_an_api_in_the_clear_on_other_addresses_is_told(
    host: str, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = HttpServer(host, 0)
    with caplog.at_level("WARNING"):
        server.start(FastAPI())
    server.stop()
    assert ("the API has no TLS" in caplog.text) is told


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nothing")
    for cert_file, reason in (("none.pem", "no such file"), ("cert.pem", "not the PEM data")):
        with pytest.raises(SettingsError, match=reason) as caught:
            server_tls(str(tmp_path / cert_file), str(tmp_path / "key.pem"))
        assert cert_file in str(caught.value)
