"""Settings of `[alerts]` in `controller.toml`: how often rules are judged, and who is told. Pure.

Rules:
- Alerts go over TLS. Without it they go to loopback or to a private address alone, and only where
  the settings say so; a name is never looked up to find out.
- A secret is in a file of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from wire.hosts import is_loopback
from wire.profile import NAME_PATTERN

MAX_WEBHOOKS: Final = 4
MAX_URL_CHARS: Final = 2000
MIN_INTERVAL_S: Final = 1.0
MAX_INTERVAL_S: Final = 3600.0
DAY_S: Final = 86_400.0
_PRIVATE: Final = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
"""Addresses of a site, of RFC 1918 and 4193. Python's `is_private` has many more, such as the one
at which clouds tell a machine its secrets, 169.254.169.254."""


class WebhookConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver of alerts, of events of rollouts, or of both."""

    name: str
    """How commands and logs name it: its address may hold a secret."""

    url: str
    secret_file: str
    """File with the secret that signs what is sent; only its owner may read it (0600)."""

    tells: tuple[Literal["alerts", "rollouts"], ...] = ("alerts",)
    """What it is told of."""

    ca_file: str | None = None
    """PEM file of the authority that its certificate is checked with; without it, those of the
    system."""

    clear_text: bool = False
    """No TLS: to loopback or a private address alone."""

    @property
    def parts(self) -> SplitResult:
        """The parts of the address.

        Raises:
            ValueError: It is none; `faults` names it.
        """
        return urlsplit(self.url)


class AlertsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether and how rules of alerts are judged."""

    enabled: bool = True
    interval_s: float = 30.0
    """How often each rule is judged. Devices report every ten seconds, and telemetry is kept by the
    minute."""

    repeat_s: float = 4 * 3600.0
    """How often an alert that fires, and that nobody acknowledged, is told again; 0 for never."""

    history_days: float = 90.0
    webhooks: tuple[WebhookConfig, ...] = ()


def faults(config: AlertsConfig) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.

    Yields:
        One line for each fault; none holds an address.
    """
    if not MIN_INTERVAL_S <= config.interval_s <= MAX_INTERVAL_S:
        yield f"alerts.interval_s is not within {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g}"
    if config.repeat_s != 0 and not config.interval_s <= config.repeat_s <= 365 * DAY_S:
        yield "alerts.repeat_s is neither 0 nor within alerts.interval_s to a year"
    if not 1 <= config.history_days <= 3660:  # noqa: PLR2004 - the bounds are in the text
        yield "alerts.history_days is not within 1 to 3660"
    if len(config.webhooks) > MAX_WEBHOOKS:
        yield f"alerts.webhooks has more than {MAX_WEBHOOKS}"
    names = [webhook.name for webhook in config.webhooks]
    for name in names:
        if NAME_PATTERN.fullmatch(name) is None:
            yield f"alerts.webhooks.name is not 1 to 63 of a-z 0-9 . _ -: {name[:64]!r}"
        elif names.count(name) > 1:
            yield f"alerts.webhooks has the name {name} twice"
    for webhook in config.webhooks:
        for fault in _webhook_faults(webhook):
            yield f"alerts.webhooks {webhook.name[:64]}: {fault}"


def _webhook_faults(webhook: WebhookConfig) -> Iterator[str]:
    if not webhook.tells:
        yield "tells names neither alerts nor rollouts"
    try:
        parts = webhook.parts
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        yield "url is not an address"
        return
    if len(webhook.url) > MAX_URL_CHARS or not (
        webhook.url.isascii() and webhook.url.isprintable()
    ):
        yield f"url is not at most {MAX_URL_CHARS} printable ASCII characters"
    elif parts.scheme not in {"https", "http"} or not host or " " in webhook.url:
        yield "url does not begin with https:// and a host"
    elif parts.username is not None or parts.password is not None:
        yield "url has a name or a password, which would be sent to nobody; the signature is enough"
    elif parts.scheme == "http" and not webhook.clear_text:
        yield "url has no TLS: write https://; or clear_text = true for a private address"
    elif parts.scheme == "http" and not _is_near(host):
        yield "clear_text is for loopback and private addresses only, such as 10.0.0.5"
    elif parts.scheme == "https" and webhook.clear_text:
        yield "url asks for TLS and clear_text for none"
    if webhook.ca_file is not None and not webhook.url.startswith("https:"):
        yield "ca_file needs https://"


def _is_near(host: str) -> bool:
    if is_loopback(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _PRIVATE)
