"""The gRPC server: the one door to `grpcio`.

Rules:
- Who may not call is told so before the message is read.
- A message above its bound ends its call, before it is in memory.
- Each call that is refused has one status and one line; no fault of ours ends the process.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from agent.grpc_endpoint import documents
from agent.grpc_endpoint.messages import HEALTH
from agent.grpc_endpoint.service import SERVICE, Answer, Caller, Service
from agent.grpc_endpoint.setup import Setup
from agent.grpc_endpoint.statuses import RefusedCallError

HANDSHAKE_MS: Final = 10_000
IDLE_MS: Final = 600_000
"""How long a connection without calls stays open."""

PING_MS: Final = 60_000
"""How often a silent client is asked whether it is still there."""

METADATA_BYTES: Final = 16 * 1024
NO_TOKEN: Final = "a bearer token is needed"  # noqa: S105 - says that it is missing
UNIX: Final = "unix:"
_TABLE: Final = {f"/{SERVICE}/{call}": call for call in documents.CALLS}

Body = Callable[[bytes, Caller], Awaitable[Answer]]


class Handlers:
    """Finds what answers a method, as gRPC asks for it.

    Args:
        service: Answers calls.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        infer = f"/{SERVICE}/ModelInfer"
        self._bodies: dict[str, Body] = {
            method: functools.partial(service.document, call) for method, call in _TABLE.items()
        } | {infer: service.infer, f"/{HEALTH}.Health/Check": service.health}

    def service(self, details: Any) -> Any:  # noqa: ANN401 - gRPC's types are not known
        """Return the handler of a call; None if there is no such method.

        Args:
            details: Method and metadata of the call.
        """
        metadata = dict(details.invocation_metadata or ())
        if not self._service.may_call(details.method, metadata):
            return grpc.stream_stream_rpc_method_handler(_deny)
        body = self._bodies.get(details.method)
        if body is not None:
            return grpc.unary_unary_rpc_method_handler(functools.partial(_answer, body))
        if details.method == f"/{SERVICE}/ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if details.method == f"/{HEALTH}.Health/Watch":
            return grpc.unary_stream_rpc_method_handler(self._watch)
        return None

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
        async for content in requests:
            yield await self._service.infer_on_stream(content, _caller(context))

    async def _watch(self, content: bytes, context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
        refusal = None
        try:
            async for told in self._service.watch(content, _caller(context)):
                yield told
        except RefusedCallError as exc:
            refusal = exc
        if refusal is not None:
            await _refuse(context, refusal)


async def listen(setup: Setup, service: Service) -> tuple[Any, str]:
    """Start a server.

    Args:
        setup: Where and how.
        service: Answers calls.

    Returns:
        The server, and its address.

    Raises:
        OSError: The address cannot be used, or a file for TLS cannot be read.
        RuntimeError: gRPC cannot use them.
    """
    claim(setup.address)
    server = grpc.aio.server(
        maximum_concurrent_rpcs=setup.calls,
        options=(
            ("grpc.max_receive_message_length", setup.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", METADATA_BYTES),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.keepalive_time_ms", PING_MS),
            ("grpc.so_reuseport", 0),
        ),
    )
    server.add_generic_rpc_handlers((Handlers(service),))
    credentials = _credentials(setup)
    if credentials is None:
        port = server.add_insecure_port(setup.address)
    else:
        port = server.add_secure_port(setup.address, credentials)
    await server.start()
    if setup.address.startswith(UNIX):
        return server, setup.address
    return server, f"{setup.address.rpartition(':')[0]}:{port}"


def claim(address: str) -> None:
    """Check that an address can be used, and remove a socket that a killed process left behind.

    gRPC itself does not say why it cannot listen, and takes a Unix socket from who uses it.

    Args:
        address: `host:port`, or `unix:` and a path.

    Raises:
        OSError: It cannot be used.
    """
    if not address.startswith(UNIX):
        host, _, port = address.rpartition(":")
        is_ipv6 = host.startswith("[")
        with socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), int(port)))
            probe.listen()
        return
    path = Path(address.removeprefix(UNIX))
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            if path.is_socket():
                probe.connect(str(path))
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        except ConnectionRefusedError:
            path.unlink()
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(path))
    path.unlink()


def _credentials(setup: Setup) -> Any:  # noqa: ANN401 - gRPC's types are not known
    """Return what TLS needs; None without.

    Raises:
        OSError: A file cannot be read.
    """
    if setup.cert_file is None or setup.key_file is None:
        return None
    authority = None if setup.client_ca_file is None else Path(setup.client_ca_file).read_bytes()
    pair = (Path(setup.key_file).read_bytes(), Path(setup.cert_file).read_bytes())
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authority, require_client_auth=authority is not None
    )


async def _answer(body: Body, content: bytes, context: Any) -> bytes:  # noqa: ANN401
    try:
        answer = await body(content, _caller(context))
    except RefusedCallError as exc:
        refusal = exc
    except Exception as exc:  # noqa: BLE001 - a client must hear of a fault of ours
        refusal = RefusedCallError("INTERNAL", f"the gRPC process failed: {type(exc).__name__}")
    else:
        context.set_trailing_metadata(tuple(answer.trailing.items()))
        return answer.content
    await _refuse(context, refusal)
    return b""


async def _deny(_: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
    await _refuse(context, RefusedCallError("UNAUTHENTICATED", NO_TOKEN))
    yield b""


async def _refuse(context: Any, refusal: RefusedCallError) -> None:  # noqa: ANN401
    """End a call with a status; gRPC raises an error of its own for that."""
    status = getattr(grpc.StatusCode, refusal.code)
    await context.abort(status, refusal.message, tuple(refusal.metadata.items()))


def _caller(context: Any) -> Caller:  # noqa: ANN401
    return Caller(dict(context.invocation_metadata() or ()), context.time_remaining())
