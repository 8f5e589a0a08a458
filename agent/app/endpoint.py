"""Makes the endpoint as the configuration asks for it, and what serves it over gRPC."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from agent.app.config import AgentConfig
from agent.app.named_files import load_endpoint_token
from agent.log import Log
from agent.select.adaptations import Adaptations
from agent.serve.deferred.queue import DeferredQueue
from agent.serve.http.connections import EndpointLimits
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.extensions import SharedMemoryPort
from agent.serve.http.server import Api, Shared
from agent.serve.http.tls import server_tls
from agent.serve.served import ServedModels
from telemetry.device.recorder import Recorder
from wire.clock import Clock
from wire.version import VERSION

if TYPE_CHECKING:
    from agent.serve.feedback.intake import Feedback

Around: TypeAlias = Callable[[Api], Api]


def make_endpoint(
    config: AgentConfig,
    models: ServedModels,
    log: Log,
    *,
    deferred: DeferredQueue,
    adaptations: Adaptations,
    feedback: Feedback | None = None,
) -> Endpoint:
    """Make the endpoint; it does not listen yet.

    Args:
        config: The configuration of this device.
        models: Answer the requests.
        log: Takes a line if there is no TLS because the configuration asks for that.
        deferred: Keeps deferrable requests.
        adaptations: Know what applications should do now, and the readings of the device.
        feedback: Counts what applications say of answers; None to take nothing.

    Returns:
        The endpoint.

    Raises:
        FleetError: It cannot listen, or a file cannot be read or is not what it should be.
    """
    if config.endpoint.clear_text:
        log.write("clear-text", reason="the endpoint has no TLS, as endpoint.clear_text asks for")
    with_metrics = _with_metrics(config, models, adaptations, deferred)
    with_origins, shared = _with_origins(config)
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
        advice=adaptations.advice,
        allow_load=config.endpoint.allow_load,
        shared_memory=_shared_memory(config),
        around=lambda api: with_origins(with_metrics(_with_feedback(api, feedback))),
        shared=shared,
    )


# What only some devices offer is loaded only there: each module is memory.


def make_feedback(
    config: AgentConfig,
    models: ServedModels,
    adaptations: Adaptations,
    *,
    recorder: Recorder,
    clock: Clock,
) -> Feedback | None:
    """Make what takes feedback, if the configuration asks for it; nothing was read yet.

    Args:
        config: The configuration of this device.
        models: Their answers are what feedback is about.
        adaptations: Know how hot the device is.
        recorder: Takes what counts.
        clock: For the age of answers.
    """
    if not config.feedback.enabled:
        return None
    from agent.serve.feedback.intake import Feedback
    from agent.serve.feedback.kept import KeptAnswers

    kept = KeptAnswers(config.state_dir, recorder, clock)
    feedback = Feedback(config.feedback, kept, lambda: adaptations.health, recorder, clock)
    models.listen(feedback.remember)
    return feedback


def _with_metrics(
    config: AgentConfig,
    models: ServedModels,
    adaptations: Adaptations,
    deferred: DeferredQueue,
) -> Around:
    """Return what adds the metrics to an API, if the configuration asks for them."""
    if not config.endpoint.metrics:
        return lambda api: api
    from agent.app.metrics import make_metrics
    from agent.serve.http.metrics import MetricsApi

    metrics = make_metrics(
        models,
        health=lambda: adaptations.health,
        advice=adaptations.advice,
        deferred=lambda: deferred.waiting,
        device=config.device,
    )
    return lambda api: MetricsApi(api, metrics)


def _with_feedback(api: Api, feedback: Feedback | None) -> Api:
    """Add the path of feedback to an API, if there is what takes it."""
    if feedback is None:
        return api
    from agent.serve.http.feedback_api import FeedbackApi

    return FeedbackApi(api, feedback)


def _with_origins(config: AgentConfig) -> tuple[Around, Shared]:
    """Return what lets pages of other origins ask, if the configuration names some."""
    if not config.endpoint.allow_origins:
        return lambda api: api, lambda _: {}
    from agent.serve.http.cors import CrossOriginApi, Origins

    origins = Origins(config.endpoint.allow_origins)
    return lambda api: CrossOriginApi(api, origins), origins.headers


def _shared_memory(config: AgentConfig) -> SharedMemoryPort | None:
    """Return what knows the shared memory of clients, if they may use some."""
    if config.endpoint.shared_memory_bytes == 0:
        return None
    from agent.serve.http.shared_memory import Regions, SharedMemoryApi

    return SharedMemoryApi(Regions(config.endpoint.shared_memory_bytes))


def _tls(config: AgentConfig) -> ssl.SSLContext | None:
    """Return the TLS context of the endpoint, or None if TLS is not configured.

    Raises:
        EndpointError: A file cannot be read, or is not what it should be.
    """
    endpoint = config.endpoint
    if endpoint.cert_file is None or endpoint.key_file is None:
        return None
    return server_tls(endpoint.cert_file, endpoint.key_file, endpoint.client_ca_file)
