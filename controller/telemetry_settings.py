"""Settings of `[telemetry]` in `controller.toml`: how long it is kept, and its bounds. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from telemetry.server.bounds import Bounds
from wire.hosts import is_loopback

SECONDS_PER_DAY: Final = 86_400.0
USUAL: Final = Bounds()
MIN_TOLERANCE_S: Final = 60.0
"""Twice the error with which a device knows the controller's time."""


STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_SERVERS: Final = 16
MAX_REPLICAS: Final = 5
MIN_KEEP_BYTES: Final = 1024 * 1024


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log in which telemetry waits until it is stored: NATS JetStream."""

    servers: tuple[str, ...]
    """Such as `tls://nats-1:4222`; those of a cluster, or one."""

    stream: str = "EDGEFLEET_TELEMETRY"
    """Its stream, and what its subjects begin with. It is made if there is none; controllers of one
    fleet have the same."""

    replicas: int = 1
    """On how many servers a new stream is: 3 of a cluster lose nothing when one of them does."""

    keep_bytes: int = 4 * 1024**3
    """How much may wait in a new stream; then devices keep their telemetry."""

    user: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    """PEM file of the authority that the servers' certificates are checked with; without it, those
    of the system."""

    clear_text: bool = False
    """No TLS although the servers are other machines; then there is no password, either."""


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long telemetry is kept, in days, and what is taken of devices."""

    keep_minutes: float = 7.0
    """What each device measured in each minute. What comes later than this is refused."""

    keep_hours: float = 90.0
    """The same, by the hour."""

    keep_days: float = 730.0
    """The same, by the day."""

    keep_events: float = 90.0
    """What happened on devices, and why."""

    clock_tolerance_s: float = USUAL.clock_tolerance_s
    """A device's clock that is wrong by more is corrected."""

    label_values: int = USUAL.label_values
    """Values of one label of one metric in the fleet; further ones become `other`."""

    device_label_values: int = USUAL.device_label_values
    """Those that one device may bring; further ones of it become `other`, but for what is
    published."""

    device_series: int = USUAL.device_series
    """Series that one device may bring; of further ones all labels become `other`."""

    log: LogConfig | None = None
    """Where it waits until it is stored; None: what comes is stored before it is acknowledged."""

    @property
    def bounds(self) -> Bounds:
        """What the store takes of devices."""
        return Bounds(
            clock_tolerance_s=self.clock_tolerance_s,
            label_values=self.label_values,
            device_label_values=self.device_label_values,
            device_series=self.device_series,
        )


def faults(config: TelemetryConfig) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.

    Yields:
        One line for each fault.
    """
    for name in ("keep_minutes", "keep_events"):
        if not getattr(config, name) > 0:
            yield f"telemetry.{name} is not positive"
    if not config.keep_minutes <= config.keep_hours <= config.keep_days:
        yield "telemetry.keep_minutes, keep_hours and keep_days do not rise"
    if not MIN_TOLERANCE_S <= config.clock_tolerance_s < math.inf:
        yield f"telemetry.clock_tolerance_s is not a number from {MIN_TOLERANCE_S:.0f} on"
    for name in ("label_values", "device_label_values", "device_series"):
        if getattr(config, name) < 1:
            yield f"telemetry.{name} is below 1"
    if config.log is not None:
        yield from (f"telemetry.log.{fault}" for fault in _log_faults(config.log))


def _log_faults(log: LogConfig) -> Iterator[str]:
    if not 1 <= len(log.servers) <= MAX_SERVERS:
        yield f"servers is not 1 to {MAX_SERVERS} addresses"
    for server in log.servers:
        if fault := _server_fault(server, log):
            yield f"servers {fault}"
    if STREAM_NAME.fullmatch(log.stream) is None:
        yield "stream is not 1 to 64 of A-Z a-z 0-9 _ -"
    if not 1 <= log.replicas <= MAX_REPLICAS:
        yield f"replicas is not within 1 to {MAX_REPLICAS}"
    if log.keep_bytes < MIN_KEEP_BYTES:
        yield f"keep_bytes is below {MIN_KEEP_BYTES}"
    if (log.user is None) != (log.password_file is None):
        yield "user and telemetry.log.password_file must be set together"


def _server_fault(server: str, log: LogConfig) -> str:
    """Return why a text cannot be the address of a server; empty if it can."""
    try:
        parts: SplitResult | None = urlsplit(server)
        host, port = (parts.hostname, parts.port) if parts else (None, None)
    except ValueError:
        parts, host, port = None, None, None
    # Not told as written: it may hold a password.
    if not parts or parts.scheme not in {"nats", "tls"} or not host or "@" in parts.netloc:
        return "has an address that is not nats://HOST:PORT or tls://HOST:PORT"
    if not server.isascii() or parts.path or parts.query or parts.fragment or port == 0:
        return "has an address with more than host and port"
    if parts.scheme == "tls" or is_loopback(host):
        return ""
    if log.user is not None or not log.clear_text:
        return f"has no TLS for {host}; write tls://, or set clear_text = true without a user"
    return ""
