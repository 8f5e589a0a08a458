"""Settings of `[api]` in `controller.toml`: where the HTTP API listens. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

MAX_PORT: Final = 65535
MAX_CONNECTIONS: Final = 4096


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the HTTP API listens."""

    host: str = "127.0.0.1"
    """Loopback by default. Any other address needs `cert_file` and `key_file`, or `clear_text`:
    callers send their token."""

    port: int = 8470
    """0 lets the system choose."""

    token_file: str = "api.token"  # noqa: S105 - a file name
    """A caller that knows its content may do everything."""

    cert_file: str | None = None
    """PEM file of the API's certificate and those up to its authority; with it the API accepts only
    TLS."""

    key_file: str | None = None
    """PEM file of its private key, not encrypted."""

    ca_file: str | None = None
    """PEM file of the authority that `fleet --home` trusts; without it, those of the system."""

    clear_text: bool = False
    """No TLS although other machines reach the API: behind a proxy with TLS, or in a closed
    network."""

    connections: int = 512
    """Open connections. A new one takes the place of one that waits for a request, or has shown no
    token."""

    connections_per_client: int = 64
    """Open connections from one address, or one IPv6 network of 64 bits. Set it to `connections`
    behind a proxy: all connections come from its address."""


def faults(config: ApiConfig) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.

    Yields:
        One line for each fault.
    """
    if not 0 <= config.port <= MAX_PORT:
        yield "api.port is not a port"
    for name in ("connections", "connections_per_client"):
        if not 1 <= getattr(config, name) <= MAX_CONNECTIONS:
            yield f"api.{name} is not within 1 to {MAX_CONNECTIONS}"
    if (config.cert_file is None) != (config.key_file is None):
        yield "api.cert_file and api.key_file must be set together"
    if config.ca_file is not None and config.cert_file is None:
        yield "api.ca_file needs api.cert_file"
    if config.clear_text and config.cert_file is not None:
        yield "api.cert_file asks for TLS and api.clear_text for none"
