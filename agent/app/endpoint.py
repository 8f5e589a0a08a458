"""Makes the endpoint as the configuration asks for it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from agent.app.config import AgentConfig
from agent.app.named_files import load_endpoint_token
from agent.log import Log
from agent.serve.advice import Advice
from agent.serve.deferred.queue import DeferredQueue
from agent.serve.http.connections import EndpointLimits
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.tls import server_tls
from agent.serve.served import ServedModels
from wire.version import VERSION


def make_endpoint(
    config: AgentConfig,
    models: ServedModels,
    log: Log,
    *,
    deferred: DeferredQueue,
    advice: Callable[[], Advice],
) -> Endpoint:
    """Make the endpoint; it does not listen yet.

    Args:
        config: The configuration of this device.
        models: Answer the requests.
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
        models,
        host=config.endpoint.host,
        port=config.endpoint.port,
        unix_path=config.endpoint.unix_path,
        token=load_endpoint_token(config),
        limits=EndpointLimits(connections=config.endpoint.connections),
        version=VERSION,
        tls=_tls(config),
        deferred=deferred if config.deferred.requests > 0 else None,
        advice=advice,
        allow_load=config.endpoint.allow_load,
    )


def _tls(config: AgentConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the endpoint, or None if TLS is not configured.

    Raises:
        EndpointError: A file cannot be read, or is not what it should be.
    """
    endpoint = config.endpoint
    if endpoint.cert_file is None or endpoint.key_file is None:
        return None
    return server_tls(endpoint.cert_file, endpoint.key_file, endpoint.client_ca_file)
