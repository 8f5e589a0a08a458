"""The inference endpoint: the Open Inference Protocol on loopback or on a Unix socket.

Rules:
- It listens until it is stopped, whichever variant serves.
- Other machines can reach it only if clients must identify themselves: by a token, or by a
  certificate.
- Nothing here imports NumPy or a runtime.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent import socket_server
from agent.serve.advice import Advice
from agent.serve.deferred.queue import DeferredQueue
from agent.serve.errors import EndpointError
from agent.serve.http.connections import ConnectionLimit, EndpointLimits
from agent.serve.http.deferred_api import DeferredApi
from agent.serve.http.extensions import SharedMemoryPort
from agent.serve.http.inference_api import InferenceApi
from agent.serve.http.server import Api, HttpServer, Shared
from agent.serve.served import ModelsPort
from wire.clock import Clock, SystemClock

SOCKET_MODE: Final = 0o660
"""A Unix socket is for the agent's user and group."""

PRIVATE_MODE: Final = 0o600


class Endpoint:
    """Serves the Open Inference Protocol.

    Args:
        models: Answer requests for inference.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        unix_path: A Unix socket instead of host and port.
        token: Secret that clients must send; None if clients need none.
        tls: Encrypts, and asks for client certificates if it is set up so; None for plain HTTP.
        limits: Bounds.
        version: Of this software, told to clients.
        clock: For deadlines and durations.
        deferred: Keeps deferrable requests; None to accept none.
        advice: Returns what applications should do now.
        allow_load: Whether clients may load and unload models.
        shared_memory: Knows the shared memory of clients; None if they may use none.
        around: Puts further paths around the API.
        shared: Returns further headers of each answer, from those of its request.
    """

    def __init__(  # noqa: PLR0913 - one parameter per option
        self,
        models: ModelsPort,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        unix_path: Path | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        limits: EndpointLimits | None = None,
        version: str = "",
        clock: Clock | None = None,
        deferred: DeferredQueue | None = None,
        advice: Callable[[], Advice] = Advice,
        allow_load: bool = False,
        shared_memory: SharedMemoryPort | None = None,
        around: Callable[[Api], Api] = lambda api: api,
        shared: Shared = lambda _: {},
    ) -> None:
        self._where: Path | tuple[str, int] = unix_path or (host, port)
        self._tls = tls
        asks_for_certificates = tls is not None and tls.verify_mode is ssl.CERT_REQUIRED
        self._knows_clients = token is not None or asks_for_certificates
        clock = clock or SystemClock()
        self._connections = ConnectionLimit(limits or EndpointLimits(), clock)
        api: Api = InferenceApi(
            models,
            token=token,
            version=version,
            deferred=DeferredApi(deferred),
            advice=advice,
            allow_load=allow_load,
            shared_memory=shared_memory,
        )
        self._api = around(api)
        self._shared = shared
        self._server: HttpServer | None = None
        self._running: list[tuple[HttpServer, threading.Thread]] = []

    @property
    def address(self) -> str:
        """`host:port`, or `unix:` and the path; empty while not listening."""
        if self._server is None:
            return ""
        if isinstance(self._where, Path):
            return f"unix:{self._where}"
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def start(self) -> None:
        """Listen and answer.

        Raises:
            EndpointError: The address cannot be used, or is open to strangers.
        """
        self._server = self._serve(self._where, self._tls, SOCKET_MODE)

    def start_private(self, path: Path) -> None:
        """Answer on a further Unix socket, which is for the agent's own user; without TLS.

        Args:
            path: The socket; `stop` removes it.

        Raises:
            EndpointError: It cannot be used.
        """
        self._serve(path, None, PRIVATE_MODE)

    def stop(self, *, grace_s: float = 2.0) -> None:
        """Accept no more requests, answer those that have come, close. Calling it twice is safe.

        Args:
            grace_s: How long answering may take.
        """
        running, self._running, self._server = self._running, [], None
        if not running:
            return
        for server, thread in running:
            socket_server.end(server, thread)
            if server.address_family == socket.AF_UNIX:
                Path(str(server.server_address)).unlink(missing_ok=True)
        self._connections.close_all(grace_s)

    def _serve(
        self, where: Path | tuple[str, int], tls: ssl.SSLContext | None, mode: int
    ) -> HttpServer:
        """Listen on an address, and answer.

        Raises:
            EndpointError: It cannot be used, or is open to strangers.
        """
        try:
            server = self._listen(where, tls, mode)
        except OSError as exc:
            shown = where if isinstance(where, Path) else "{}:{}".format(*where)
            reason = (exc.strerror or str(exc)).lower()
            raise EndpointError(
                f"cannot listen on {shown}: {reason}",
                remedy="stop the process that uses it, or set another address under [endpoint]",
            ) from exc
        self._running.append((server, socket_server.serve(server, "endpoint")))
        return server

    def _listen(
        self, where: Path | tuple[str, int], tls: ssl.SSLContext | None, mode: int
    ) -> HttpServer:
        """Open a listening socket.

        Raises:
            EndpointError: The address is open to strangers.
            OSError: It cannot be used.
        """
        if not isinstance(where, Path):
            server = self._bound(where, tls)
        else:
            _remove_stale(where)
            server = self._bound(str(where), tls)
            where.chmod(mode)
        try:
            self._check(server)
            server.server_activate()
        except BaseException:
            server.server_close()
            raise
        return server

    def _bound(self, where: tuple[str, int] | str, tls: ssl.SSLContext | None) -> HttpServer:
        return HttpServer(where, self._api, self._connections, tls, self._shared)

    def _check(self, server: HttpServer) -> None:
        """Check that strangers are kept out, before any client can connect.

        Raises:
            EndpointError: The address is open to strangers.
        """
        if not self._knows_clients and not _is_private(server):
            raise EndpointError(
                f"any client that reaches {server.server_address[0]!s} could use the endpoint",
                remedy="listen on 127.0.0.1, or configure a token or client certificates",
            )


def _is_private(server: HttpServer) -> bool:
    """Tell whether only this machine can reach the address that the server has bound."""
    if server.address_family == socket.AF_UNIX:
        return True
    return ipaddress.ip_address(str(server.server_address[0])).is_loopback


def _remove_stale(path: Path) -> None:
    """Remove a socket that no process listens on any more, such as a killed agent leaves behind."""
    if not path.is_socket():
        return  # a file of another kind stays, and binding fails
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
