"""Fetches chunks by HTTP range requests, from wherever the controller's signed links lead.

Rules:
- Without TLS a link is used only on loopback, unless the settings allow more.
- A refused link may be too old, and an answer may end because its link expired: the controller is
  asked once for another.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from agent.install.fetch.connection import Bounds
from agent.install.fetch.part import Part
from agent.install.fetch.places import Places
from agent.install.fetch.sources import (
    EndedError,
    Errand,
    RefusedLinkError,
    SourceError,
    SourceName,
    Ways,
)
from wire.clock import Clock
from wire.hosts import is_loopback
from wire.progress import HTTP


class HttpSource:
    """Brings chunks by HTTP(S).

    Args:
        ways: Knows the links.
        clock: For rests.
        ca_files: Authorities of certificates, beside those of the system.
        clear_text: Whether other machines may be asked without TLS.
        least_bytes: A smaller blob is left to messages: to ask for a link takes as long.
        bounds: What a server may cost; None for the usual.
        came: Called with the size of what has come, useful or not.
    """

    name: SourceName = HTTP

    def __init__(
        self,
        ways: Ways,
        clock: Clock,
        *,
        ca_files: tuple[Path, ...] = (),
        clear_text: bool = False,
        least_bytes: int = 0,
        bounds: Bounds | None = None,
        came: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._ways = ways
        self._clear_text = clear_text
        self._least_bytes = least_bytes
        self._places = Places(
            HTTP,
            clock,
            pardoned=(RefusedLinkError, EndedError),
            ca_files=ca_files,
            bounds=bounds or Bounds(),
            came=came,
        )

    def bring(self, part: Part, errand: Errand) -> None:
        """Bring what the links give; see `ChunkSource`.

        Raises:
            SourceError: No link leads to the rest.
        """
        if part.blob.size_bytes < self._least_bytes:
            return
        fault = self._from_any(part, errand)
        if isinstance(fault, RefusedLinkError | EndedError):
            self._ways.forget(part.blob.sha256)
            fault = self._from_any(part, errand, is_last=True)
        if fault is not None:
            raise fault

    def end(self) -> None:
        """Close the connection."""
        self._places.end()

    def wake(self) -> None:
        """Let a read that waits end at once, because the agent stops."""
        self._places.wake()

    def _from_any(self, part: Part, errand: Errand, *, is_last: bool = False) -> SourceError | None:
        """Bring what lacks from one place after another; return the last one's fault, if any."""
        ways = self._ways.of(part.blob.sha256, errand)
        fault: SourceError | None = None
        urls = ways.urls if ways is not None else ()
        for number, url in enumerate(urls, 1):
            following = next(map(_host_of, urls[number:]), "")
            try:
                self._places.bring(self._checked(url), part, errand, following=following)
            except EndedError as exc:
                fault = exc
                if is_last:
                    self._places.blame(urlsplit(url))
            except SourceError as exc:
                fault = exc
            if part.complete:
                return None
        return fault

    def _checked(self, url: str) -> SplitResult:
        """Split a link.

        Raises:
            SourceError: It is none, or the settings do not allow it.
        """
        try:
            place = urlsplit(url)
            host, _port = place.hostname or "", place.port
        except ValueError:
            place, host = urlsplit(""), ""
        if place.scheme not in {"http", "https"} or not host or place.username is not None:
            raise SourceError("the controller gave a link that is none")
        if not url.isascii() or any(char <= " " for char in url):
            raise SourceError(f"the controller gave a link to {host} that cannot be sent")
        if place.scheme == "http" and not (self._clear_text or is_loopback(host)):
            raise SourceError(
                f"{host} has no TLS", remedy="delivery.clear_text = true allows that on this device"
            )
        return place


def _host_of(url: str) -> str:
    """Return who answers at a link, for people."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return "another place"
