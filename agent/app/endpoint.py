"""Makes the endpoint as the configuration asks for it, and what serves it over gRPC."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.app.config import AgentConfig
from agent.app.named_files import load_endpoint_token
from agent.log import Log
from agent.ports import RecorderPort
from agent.serve.advice import Advice
from agent.serve.deferred.queue import DeferredQueue
from agent.serve.http.connections import EndpointLimits
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.tls import server_tls
from agent.serve.model_server import ModelServer
from wire.clock import Clock
from wire.version import VERSION

if TYPE_CHECKING:
    from agent.grpc_endpoint.keeper import GrpcKeeper

PRIVATE_SOCKET: Final = "endpoint.sock"
"""Where the gRPC process asks the endpoint, in the state directory."""


def make_endpoint(
    config: AgentConfig,
    model_server: ModelServer,
    log: Log,
    *,
    deferred: DeferredQueue,
    advice: Callable[[], Advice],
) -> Endpoint:
    """Make the endpoint; it does not listen yet.

    Args:
        config: The configuration of this device.
        model_server: Answers the requests.
        log: Takes a line if there is no TLS because the configuration asks for that.
        deferred: Keeps deferrable requests.
        advice: Returns what applications should do now.

    Returns:
        The endpoint.

    Raises:
        FleetError: It cannot listen, or a file cannot be read or is not what it should be.
    """
    if config.endpoint.clear_text:
        log.write("clear-text", reason="the endpoint has no TLS, as endpoint.clear_text asks for")
    return Endpoint(
        model_server.router,
        host=config.endpoint.host,
        port=config.endpoint.port,
        unix_path=config.endpoint.unix_path,
        token=load_endpoint_token(config),
        limits=EndpointLimits(connections=config.endpoint.connections),
        version=VERSION,
        tls=_tls(config),
        deferred=deferred if config.deferred.requests > 0 else None,
        advice=advice,
    )


def make_grpc(
    config: AgentConfig, endpoint: Endpoint, log: Log, *, recorder: RecorderPort, clock: Clock
) -> GrpcKeeper | None:
    """Make what keeps the gRPC process running; nothing runs yet.

    Args:
        config: The configuration of this device.
        endpoint: Answers what comes over gRPC, too.
        log: Takes the address when gRPC is served.
        recorder: Takes an event if it is not.
        clock: For how long the process runs.

    Returns:
        The keeper; None if the configuration asks for no gRPC.

    Raises:
        FleetError: The token cannot be read.
    """
    settings, place = config.endpoint.grpc, config.state_dir / PRIVATE_SOCKET
    if not settings.is_on:
        return None
    from agent.grpc_endpoint.keeper import GrpcKeeper
    from agent.grpc_endpoint.setup import Setup

    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    unix_path = settings.unix_path
    setup = Setup(
        address=f"{host}:{settings.port}" if unix_path is None else f"unix:{unix_path}",
        endpoint_path=str(place),
        token=load_endpoint_token(config),
        cert_file=_text(config.endpoint.cert_file),
        key_file=_text(config.endpoint.key_file),
        client_ca_file=_text(config.endpoint.client_ca_file),
        max_message_bytes=settings.max_message_bytes,
        calls=settings.calls,
    )
    return GrpcKeeper(setup, lambda: endpoint.start_private(place), recorder, log, clock)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _tls(config: AgentConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the endpoint, or None if TLS is not configured.

    Raises:
        EndpointError: A file cannot be read, or is not what it should be.
    """
    endpoint = config.endpoint
    if endpoint.cert_file is None or endpoint.key_file is None:
        return None
    return server_tls(endpoint.cert_file, endpoint.key_file, endpoint.client_ca_file)
