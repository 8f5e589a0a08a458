"""Makes the endpoint as the configuration asks for it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from agent.app.config import AgentConfig
from agent.app.named_files import load_endpoint_token
from agent.log import Log
from agent.select.adaptation import Adaptation
from agent.serve.deferred.queue import DeferredQueue
from agent.serve.http.connections import EndpointLimits
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.server import Api
from agent.serve.http.tls import server_tls
from agent.serve.model_server import ModelServer
from wire.version import VERSION


def make_endpoint(
    config: AgentConfig,
    model_server: ModelServer,
    log: Log,
    *,
    deferred: DeferredQueue,
    adaptation: Adaptation,
) -> Endpoint:
    """Make the endpoint; it does not listen yet.

    Args:
        config: The configuration of this device.
        model_server: Answers the requests.
        log: Takes a line if there is no TLS because the configuration asks for that.
        deferred: Keeps deferrable requests.
        adaptation: Knows what applications should do now, and the readings of the device.

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
        advice=adaptation.advice,
        around=_around(config, model_server, adaptation, deferred),
    )


def _around(
    config: AgentConfig,
    model_server: ModelServer,
    adaptation: Adaptation,
    deferred: DeferredQueue,
) -> Callable[[Api], Api]:
    """Return what puts around the API what the configuration asks for."""

    def around(api: Api) -> Api:
        if config.endpoint.metrics:
            # Loaded only on a device that is scraped: each module is memory.
            from agent.app.metrics import make_metrics
            from agent.serve.http.metrics import MetricsApi

            metrics = make_metrics(
                (model_server.router,),
                health=lambda: adaptation.health,
                advice=adaptation.advice,
                deferred=lambda: deferred.waiting,
                device=config.device,
            )
            api = MetricsApi(api, metrics)
        return api

    return around


def _tls(config: AgentConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the endpoint, or None if TLS is not configured.

    Raises:
        EndpointError: A file cannot be read, or is not what it should be.
    """
    endpoint = config.endpoint
    if endpoint.cert_file is None or endpoint.key_file is None:
        return None
    return server_tls(endpoint.cert_file, endpoint.key_file, endpoint.client_ca_file)
