"""Settings of `[prometheus]` and `[otlp]` in `controller.toml`: who gets telemetry. Pure.

Rules:
- Nobody gets any unless the operator asks for it.
- Telemetry and the secrets that go with it cross a network only encrypted, or the operator asks for
  clear text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from wire.hosts import is_loopback

MAX_URL_CHARS: Final = 512
MIN_INTERVAL_S: Final = 1.0
MAX_INTERVAL_S: Final = 3600.0
MIN_TIMEOUT_S: Final = 0.1
MAX_TIMEOUT_S: Final = 60.0
MAX_HEADERS: Final = 16


class PrometheusConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What Prometheus may scrape, at `/metrics` of the API."""

    enabled: bool = False
    by_device: bool = False
    """Whether each device has series of its own. A thousand devices then make tens of thousands."""

    token_file: str | None = None
    """Whoever knows its content may read `/metrics`, and nothing else. The API token may, too."""


class OtlpConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where telemetry goes as OTLP over HTTP."""

    endpoint: str
    """Address of a collector, before `/v1/metrics` and `/v1/logs`: `https://collector:4318`."""

    headers_file: str | None = None
    """Headers of each request, such as `Authorization: Bearer TOKEN`; one a line."""

    ca_file: str | None = None
    """PEM file of the authority that the collector's certificate is checked with; without it, those
    that come with the library."""

    clear_text: bool = False
    """No TLS although the collector is another machine."""

    interval_s: float = 60.0
    """How often what is new is sent. Telemetry has a row for each minute."""

    timeout_s: float = 10.0
    """How long one request may take, with its repetitions."""

    compression: Literal["gzip", "none"] = "gzip"
    metrics: bool = True
    events: bool = True
    """Sent as logs."""


def faults(prometheus: PrometheusConfig, otlp: OtlpConfig | None) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        prometheus: As read.
        otlp: As read; None without that table.

    Yields:
        One line for each fault.
    """
    if not prometheus.enabled and prometheus != PrometheusConfig():
        yield "prometheus.enabled is not true, and other settings of [prometheus] need it"
    if otlp is None:
        return
    if not MIN_INTERVAL_S <= otlp.interval_s <= MAX_INTERVAL_S:
        yield f"otlp.interval_s is not within {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g}"
    if not MIN_TIMEOUT_S <= otlp.timeout_s <= MAX_TIMEOUT_S:
        yield f"otlp.timeout_s is not within {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:g}"
    if not otlp.metrics and not otlp.events:
        yield "otlp.metrics and otlp.events are both false: nothing would be sent"
    if fault := _fault_of_url(otlp.endpoint, clear_text=otlp.clear_text):
        yield f"otlp.endpoint {fault}: {otlp.endpoint[:80]!r}"


def parse_headers(text: str) -> dict[str, str]:
    """Read a file of headers.

    Args:
        text: `NAME: VALUE` in each line; empty lines count for nothing.

    Returns:
        The headers.

    Raises:
        ValueError: A line is none; the text gives its number, not its content.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not colon or not _is_token(name) or not (value.isascii() and value.isprintable()):
            raise ValueError(f"line {number} is not NAME: VALUE")
        found[name] = value
    if len(found) > MAX_HEADERS:
        raise ValueError(f"it has more than {MAX_HEADERS} headers")
    return found


def _is_token(name: str) -> bool:
    return name.isascii() and name.replace("-", "a").replace("_", "a").isalnum()


def _fault_of_url(url: str, *, clear_text: bool) -> str:
    """Return why a URL cannot be that of a collector; empty if it can."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"http", "https"} or not host or not url.isascii():
        return "is not an http or https URL"
    if parts.query or parts.fragment or "@" in parts.netloc or len(url) > MAX_URL_CHARS:
        return f"has more than host, port and path, or more than {MAX_URL_CHARS} characters"
    if parts.path.rstrip("/").endswith(("/v1/metrics", "/v1/logs")):
        return "ends with the path of one signal; leave that out"
    if parts.scheme == "http" and not (clear_text or is_loopback(host)):
        return "has no TLS; write https, or set otlp.clear_text = true"
    return ""
