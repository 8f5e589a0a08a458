"""The HTTP server: uvicorn on a thread, on a socket that we opened.

Rules:
- A port in use gives one clear error before anything else starts.
- The server accepts so few connections in one turn of its loop that it reads the request of each
  before as many more could take its place.
- Nothing crosses the network in the clear but where the operator asked for it; the log says so.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import socket
import ssl
import threading
from typing import cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from controller.api.places import Places
from controller.api.protocol import API, BoundedProtocol, ConnectionLimits, Served
from controller.errors import ListenError

BACKLOG = 1024
"""How many connections the kernel keeps until they are accepted."""

UNSENT_BYTES = 512 * 1024
"""What the kernel keeps of an answer before it is sent. By itself it keeps up to 4 MiB for each
client that reads slowly, and says that it takes more so seldom that the client looks dead."""

TURNS = 8
"""A new connection needs fewer turns of the loop than this until its request has been read."""

STOP_S = 2
"""How long requests may go on when the server stops."""

CANCEL_S = 3
"""When uvicorn cancels those that go on although their connections have ended."""

_log = logging.getLogger(__name__)


class HttpServer:
    """Serves an application.

    Args:
        host: Address to listen on.
        port: 0 lets the system choose.
        tls: Certificate and key; None for no TLS.
        limits: What clients may hold.
        of: What it is called.

    Raises:
        ListenError: The address is in use or not ours.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        limits: ConnectionLimits | None = None,
        of: Served = API,
    ) -> None:
        self._tls = tls
        self._limits = limits or ConnectionLimits()
        self._of = of
        self._socket = _listen(host, port, of)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self, app: ASGIApp) -> None:
        """Begin to serve."""
        protocol = functools.partial(
            BoundedProtocol,
            limits=self._limits,
            places=Places[BoundedProtocol](self._limits.total, self._limits.per_client),
            tls=self._tls,
            refusal=self._of.refusal(),
        )
        config = uvicorn.Config(
            _ending_in_a_line(app),
            http=cast("type[asyncio.Protocol]", protocol),  # uvicorn only calls it
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=CANCEL_S,
            backlog=max(1, self._limits.per_client // TURNS),
        )
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._socket]},
            name=self._of.table,
            daemon=True,  # a request that never ends must not keep the process alive
        )
        self._thread.start()
        scheme = "http" if self._tls is None else "https"
        _log.info("%s listens at %s://%s:%d", self._of.name, scheme, self.host, self.port)
        if self._tls is None and not _is_loopback(self._socket):
            _log.warning(
                "CLEAR TEXT: %s has no TLS, as %s.clear_text in controller.toml asks for; "
                "%s can be read on the network, unless a proxy with TLS is before it",
                self._of.name,
                self._of.table,
                self._of.risk,
            )

    def stop_soon(self) -> None:
        """Begin to stop; returns at once."""
        if self._server is not None:
            self._server.should_exit = True

    def stop(self) -> None:
        """Let running requests finish for a bounded time, then close."""
        self.stop_soon()
        if self._thread is not None:
            self._thread.join(CANCEL_S + 1)
        self._socket.close()


class _Server(uvicorn.Server):
    """Accepts `backlog` connections in one turn, while the kernel keeps more of them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # asyncio has told the kernel what it accepts in one turn

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests end for a bounded time; then end every connection.

        By itself uvicorn would wait as long for requests that nobody reads the answer of, log a
        trace for each, and leave the connections open.
        """
        ending = asyncio.get_running_loop().call_later(STOP_S, self._end_connections)
        await super().shutdown(sockets)
        ending.cancel()

    def _end_connections(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, BoundedProtocol):
                connection.end()


def _ending_in_a_line(app: ASGIApp) -> ASGIApp:
    """Return an application of which a request that a stop ends is told in one line, not a trace.

    Such a request waits for something that does not come, such as a broker that went first.
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            _log.warning("no answer to %s %s: stopping", scope["method"], scope["path"])

    return run


def _is_loopback(listening: socket.socket) -> bool:
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def _listen(host: str, port: int, of: Served) -> socket.socket:
    """Open the socket.

    Raises:
        ListenError: The address is in use or not ours.
    """
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as exc:
        if listening is not None:
            listening.close()
        raise ListenError(
            f"{of.name} cannot listen at {host}:{port}: {(exc.strerror or str(exc)).lower()}",
            remedy=f"choose another {of.table}.port in controller.toml, or stop what uses it",
        ) from exc
    return listening
