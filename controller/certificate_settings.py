"""Settings of `[device_certificates]` in `controller.toml`: how devices log in to the broker. Pure.

Rules:
- Without the table devices have accounts with passwords, as in directories from before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

SECONDS_PER_DAY: Final = 86_400.0
VALID_DAYS: Final = 7.0
"""A device that is away for longer comes back by its key, as one does that lost its account."""

LEAST_VALID_S: Final = 10.0
MOST_VALID_DAYS: Final = 366.0
DEVICES_PORT: Final = 8884
"""Beside the port that is registered for MQTT over TLS."""

MAX_PORT: Final = 65535


class DeviceCertificatesConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """How devices get certificates for the broker, and where it listens for them."""

    port: int = DEVICES_PORT
    """Where the broker listens for devices with certificates. On `broker.port` they enrol."""

    ca_file: str = "keys/devices-ca.pem"
    """PEM file of the authority that signs the certificates."""

    key_file: str = "keys/devices-ca.key"
    """PEM file of its private key, not encrypted."""

    valid_days: float = VALID_DAYS
    """How long a certificate is valid. A device renews its own after about two thirds."""

    accept_passwords: bool = False
    """Whether devices may enrol that ask for no certificate: those with an older agent."""

    @property
    def valid_s(self) -> float:
        """How long a certificate is valid, in seconds."""
        return self.valid_days * SECONDS_PER_DAY


def faults(config: DeviceCertificatesConfig, *, broker_port: int, has_tls: bool) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.
        broker_port: Where the broker listens otherwise.
        has_tls: Whether the broker speaks TLS.

    Yields:
        One line for each fault.
    """
    if not 1 <= config.port <= MAX_PORT:
        yield "device_certificates.port is not a port"
    if config.port == broker_port:
        yield "device_certificates.port must not be that of the broker"
    if not LEAST_VALID_S <= config.valid_s <= MOST_VALID_DAYS * SECONDS_PER_DAY:
        yield f"device_certificates.valid_days is not within 10 seconds to {MOST_VALID_DAYS:g} days"
    if not has_tls:
        yield "device_certificates needs broker.ca_file: there are no certificates without TLS"
