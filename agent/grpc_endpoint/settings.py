"""Where gRPC is served: the table `[endpoint.grpc]` of `agent.toml`.

Rules:
- Without `port` or `unix_path` there is no gRPC, and no process for it.
- The token and the certificates are those of `[endpoint]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from agent.serve.http.connections import EndpointLimits
from wire.hosts import is_loopback

MAX_PORT: Final = 65535
MAX_CALLS: Final = 1024
LEAST_BYTES: Final = 4096
BODY_BYTES: Final = EndpointLimits().body_bytes
"""What the endpoint takes over HTTP, where every request goes on to."""


class GrpcSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether and where gRPC is served."""

    host: str = "127.0.0.1"
    port: int | None = None
    """0 takes a free one, which the log names."""

    unix_path: Path | None = None
    """A Unix socket instead of a port."""

    max_message_bytes: int = BODY_BYTES
    """Longest message that is accepted."""

    calls: int = 64
    """Calls at the same time, open streams among them; others are refused at once. As many as
    requests may wait for a worker."""

    @property
    def is_on(self) -> bool:
        """Whether gRPC is served."""
        return self.port is not None or self.unix_path is not None

    def faults(self, *, knows_clients: bool, encrypts: bool) -> list[str]:
        """Return what is wrong, each as a line for the operator.

        Args:
            knows_clients: Whether the endpoint has a token or asks for certificates.
            encrypts: Whether it has a certificate, or may do without.
        """
        is_private = self.unix_path is not None or is_loopback(self.host)
        outside = f"endpoint.grpc.host {self.host} is not local"
        faults = [
            (
                self.port is not None and self.unix_path is not None,
                "endpoint.grpc has port and unix_path: set one of them",
            ),
            (
                not 0 <= (self.port or 0) <= MAX_PORT,
                "endpoint.grpc.port is not within 0 to 65535",
            ),
            (
                not LEAST_BYTES <= self.max_message_bytes <= BODY_BYTES,
                f"endpoint.grpc.max_message_bytes is not within {LEAST_BYTES} to {BODY_BYTES}",
            ),
            (
                not 1 <= self.calls <= MAX_CALLS,
                f"endpoint.grpc.calls is not within 1 to {MAX_CALLS}",
            ),
            (
                self.is_on and not (is_private or knows_clients),
                f"{outside}: set endpoint.token_file or endpoint.client_ca_file",
            ),
            (
                self.is_on and not (is_private or encrypts),
                f"{outside}: set endpoint.cert_file, or endpoint.clear_text = true",
            ),
        ]
        return [text for wrong, text in faults if wrong]
