"""Settings of `[downloads]` in `controller.toml`: where packages come from beside MQTT. Pure.

Rules:
- Without a port and without places there are no downloads; MQTT needs none.
- What other machines reach has TLS, or the operator asks for clear text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from wire.hosts import is_loopback

MAX_PORT: Final = 65535
MAX_CONNECTIONS: Final = 4096
MAX_PLACES: Final = 4
"""With the longest links of S3, an answer for 64 blobs then still fits into a message."""

MAX_URL_CHARS: Final = 512
MIN_VALID_S: Final = 60
MAX_VALID_S: Final = 7 * 86_400
"""S3 takes no presigned link that is valid for longer."""

WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound


class LinkPlace(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="link",
):
    """A server that lets the controller check each link, such as nginx (docs/downloads.md)."""

    url: str
    """What stands before `/blobs/`, such as `https://blobs.example`."""


class S3Place(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="s3",
):
    """A bucket of an S3-compatible store, which checks presigned links itself."""

    url: str
    """The bucket's address: `https://BUCKET.s3.REGION.amazonaws.com` or `https://HOST/BUCKET`."""

    region: str
    credentials_file: str
    """In the form of `~/.aws/credentials`; its section `default` counts."""

    prefix: str = ""
    """What the keys in the bucket begin with, such as `blobs/`."""


class PlainPlace(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="plain",
):
    """A mirror or a CDN that gives blobs to everybody."""

    url: str
    """What stands before the first two digits of a blob, such as `https://cdn.example/blobs`."""


PlaceConfig: TypeAlias = LinkPlace | S3Place | PlainPlace


class DownloadsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where devices download packages by HTTP, beside MQTT."""

    host: str = "127.0.0.1"
    """Where the download listener listens. Any other address than loopback needs `cert_file` and
    `key_file`, or `clear_text`."""

    port: int | None = None
    """None: there is no listener. 0 lets the system choose."""

    cert_file: str | None = None
    """PEM file of the listener's certificate and those up to its authority, which devices know."""

    key_file: str | None = None
    """PEM file of its private key, not encrypted."""

    clear_text: bool = False
    """No TLS although other machines reach it, or a place: who listens on the network reads the
    packages. What devices install is checked against signatures all the same."""

    connections: int = 256
    """Open connections; each takes up to half a mebibyte."""

    connections_per_client: int = 64
    """Open connections from one address, or one IPv6 network of 64 bits. Raise it where many
    devices come from behind one address."""

    public_url: str | None = None
    """How devices reach the listener, or a server before it: `https://fleet.example:8471`. None:
    made of host and port."""

    valid_s: int = 86_400
    """How long links work. Whoever has a link can read its blob until then."""

    places: tuple[PlaceConfig, ...] = ()
    """Other places with the same content, the preferred first; devices try the listener last."""


def faults(config: DownloadsConfig) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.

    Yields:
        One line for each fault.
    """
    if config.port is not None and not 0 <= config.port <= MAX_PORT:
        yield "downloads.port is not a port"
    for name in ("connections", "connections_per_client"):
        if not 1 <= getattr(config, name) <= MAX_CONNECTIONS:
            yield f"downloads.{name} is not within 1 to {MAX_CONNECTIONS}"
    if not MIN_VALID_S <= config.valid_s <= MAX_VALID_S:
        yield f"downloads.valid_s is not within {MIN_VALID_S} to {MAX_VALID_S}"
    if (config.cert_file is None) != (config.key_file is None):
        yield "downloads.cert_file and downloads.key_file must be set together"
    if config.port is None and (config.cert_file or config.public_url):
        yield "downloads.cert_file and downloads.public_url need downloads.port"
    yield from _faults_of_addresses(config)


def _faults_of_addresses(config: DownloadsConfig) -> Iterator[str]:
    if len(config.places) > MAX_PLACES:
        yield f"downloads.places are more than {MAX_PLACES}"
    if config.port is not None and config.public_url is None and config.host in WILDCARDS:
        yield "downloads.public_url must say how devices reach the listener at all addresses"
    urls = [("downloads.public_url", config.public_url)]
    for place in config.places:
        urls.append(("the url of a downloads.places", place.url))
        if isinstance(place, LinkPlace) and config.port is None:
            yield 'downloads.places of kind "link" need downloads.port, which checks the links'
        if isinstance(place, S3Place) and not _is_printable(place.region + place.prefix):
            yield "the region or prefix of a downloads.places has characters other than ASCII's"
        if isinstance(place, S3Place) and "\0" in place.credentials_file:
            yield "the credentials_file of a downloads.places has a NUL"
    for name, url in urls:
        if url is not None and (fault := _fault_of_url(url, clear_text=config.clear_text)):
            yield f"{name} {fault}: {url[:80]!r}"


def _fault_of_url(url: str, *, clear_text: bool) -> str:
    """Return why a URL cannot be the beginning of links; empty if it can."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in {"http", "https"} or not host or not _is_printable(url):
        return "is not an http or https URL"
    if parts.query or parts.fragment or "@" in parts.netloc or len(url) > MAX_URL_CHARS:
        return f"has more than host, port and path, or more than {MAX_URL_CHARS} characters"
    if parts.scheme == "http" and not (clear_text or is_loopback(host)):
        return "has no TLS; write https, or set downloads.clear_text = true"
    return ""


def _is_printable(text: str) -> bool:
    return all("!" <= char <= "~" for char in text)
