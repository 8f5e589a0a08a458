"""What is wrong with a configuration whose values have the right types."""

from __future__ import annotations

import math

from agent.app.config import AgentConfig, EndpointConfig
from agent.app.origins import origins_fault
from agent.errors import ConfigError
from wire.hosts import is_loopback

MAX_PORT = 65535
MAX_CONNECTIONS = 4096


def check_config(config: AgentConfig, name: str) -> None:
    """Refuse values that are impossible, or that do not go together.

    Args:
        config: The configuration.
        name: Of its file.

    Raises:
        ConfigError: The first fault.
    """
    broker, endpoint, memory_bytes = config.broker, config.endpoint, config.serving.memory_bytes
    faults = [
        (not 1 <= broker.port <= MAX_PORT, "broker.port is not within 1 to 65535"),
        (
            broker.certificate_port is not None and not 1 <= broker.certificate_port <= MAX_PORT,
            "broker.certificate_port is not within 1 to 65535",
        ),
        (not 0 <= endpoint.port <= MAX_PORT, "endpoint.port is not within 0 to 65535"),
        (
            not 1 <= endpoint.connections <= MAX_CONNECTIONS,
            f"endpoint.connections is not within 1 to {MAX_CONNECTIONS}",
        ),
        (
            broker.cert_file is not None and broker.key_file is None,
            "broker.cert_file needs broker.key_file",
        ),
        (
            broker.key_file is not None and broker.ca_file is None,
            "broker.key_file needs broker.ca_file",
        ),
        (
            (endpoint.cert_file is None) != (endpoint.key_file is None),
            "endpoint.cert_file and endpoint.key_file must be set together",
        ),
        (
            endpoint.client_ca_file is not None and endpoint.cert_file is None,
            "endpoint.client_ca_file needs endpoint.cert_file",
        ),
        (
            not (endpoint.token_file or endpoint.client_ca_file or _is_private(endpoint)),
            f"endpoint.host {endpoint.host} is not local: set token_file or client_ca_file",
        ),
        (
            not (endpoint.cert_file or endpoint.clear_text or _is_private(endpoint)),
            f"endpoint.host {endpoint.host} is not local: set cert_file, or clear_text = true",
        ),
        (
            endpoint.clear_text and endpoint.cert_file is not None,
            "endpoint.cert_file asks for TLS and endpoint.clear_text for none",
        ),
        (
            bool(endpoint.allow_origins) and endpoint.client_ca_file is not None,
            "endpoint.allow_origins does not go with client_ca_file: set token_file in its place",
        ),
        (endpoint.shared_memory_bytes < 0, "endpoint.shared_memory_bytes is negative"),
        (
            endpoint.shared_memory_bytes > 0 and not _is_private(endpoint),
            "endpoint.shared_memory_bytes needs a loopback address as host, or unix_path",
        ),
        (memory_bytes is not None and memory_bytes <= 0, "serving.memory_bytes is not positive"),
        (not 0 < config.sense_interval_s < math.inf, "sense_interval_s is not above 0"),
        (not 0 < config.telemetry_interval_s < math.inf, "telemetry_interval_s is not above 0"),
        (not 0 <= config.confirm_s < math.inf, "confirm_s is negative"),
        (config.spool_bytes <= 0, "spool_bytes is not positive"),
        (not 0 <= config.trust_grace_s < math.inf, "trust_grace_s is negative"),
    ]
    if fault := origins_fault(endpoint.allow_origins, needs_token=endpoint.token_file is not None):
        faults.append((True, f"endpoint.allow_origins {fault}"))
    parts = (config.install, config.hooks, config.delivery, config.peers, config.deferred)
    others = (config.feedback, config.measure, config.scrub, config.capture, config.shadow)
    for part in (*parts, *others):
        faults += [(True, text) for text in part.faults()]
    knows_clients = bool(endpoint.token_file or endpoint.client_ca_file)
    encrypts = bool(endpoint.cert_file) or endpoint.clear_text
    grpc_faults = endpoint.grpc.faults(knows_clients=knows_clients, encrypts=encrypts)
    faults += [(True, text) for text in grpc_faults]
    if config.policy is not None:
        faults += [(True, f"policy: {text}") for text in config.policy.faults()]
    for wrong, text in faults:
        if wrong:
            raise ConfigError(f"{name}: {text}")


def _is_private(endpoint: EndpointConfig) -> bool:
    """Tell whether only this device can reach an endpoint."""
    return endpoint.unix_path is not None or is_loopback(endpoint.host)
