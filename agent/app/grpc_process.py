"""Makes what keeps the gRPC process running, from the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.app.config import AgentConfig
from agent.app.named_files import load_endpoint_token
from agent.log import Log
from agent.ports import RecorderPort
from agent.serve.http.endpoint import Endpoint
from wire.clock import Clock

if TYPE_CHECKING:
    from agent.grpc_endpoint.keeper import GrpcKeeper

PRIVATE_SOCKET: Final = "endpoint.sock"
"""Where the gRPC process asks the endpoint, in the state directory."""


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
