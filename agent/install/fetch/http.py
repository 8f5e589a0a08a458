"""Fetches chunks by HTTP range requests, from wherever the controller's signed links lead.

Rules:
- Without TLS a link is used only on loopback, unless the settings allow more.
- One request brings a run of chunks that lack; each chunk is kept as soon as it is whole.
- A place that does not answer rests, each time twice as long: the next source goes on meanwhile.
- A refused link may be too old: the controller is asked once for another.
- Python's HTTP client is loaded at the first link: most devices never need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from agent.install.fetch.part import Part
from agent.install.fetch.sources import Errand, RefusedLinkError, SourceError, SourceName, Ways
from wire.clock import Clock
from wire.hosts import is_loopback
from wire.progress import HTTP

if TYPE_CHECKING:
    from agent.install.fetch.ranges import Ranges

REST_MIN_S: Final = 5.0
REST_MAX_S: Final = 600.0


class _Run(NamedTuple):
    """Chunks that follow one another and lack."""

    first: int
    after: int


class HttpSource:
    """Brings chunks by HTTP(S).

    Args:
        ways: Knows the links.
        clock: For rests.
        ca_files: Authorities of certificates, beside those of the system.
        clear_text: Whether other machines may be asked without TLS.
        least_bytes: A smaller blob is left to messages: to ask for a link takes as long.
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
        came: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._ways = ways
        self._clock = clock
        self._ca_files = ca_files
        self._clear_text = clear_text
        self._least_bytes = least_bytes
        self._came = came
        self._ranges: Ranges | None = None
        self._resting: dict[str, tuple[float, float]] = {}
        """By host: until when it rests, and for how long."""

    def bring(self, part: Part, errand: Errand) -> None:
        """Bring what the links give; see `ChunkSource`.

        Raises:
            SourceError: No link leads to the rest.
        """
        if part.blob.size_bytes < self._least_bytes:
            return
        fault = self._from_any(part, errand)
        if isinstance(fault, RefusedLinkError):
            self._ways.forget(part.blob.sha256)
            fault = self._from_any(part, errand)
        if fault is not None:
            raise fault

    def end(self) -> None:
        """Close the connection."""
        if self._ranges is not None:
            self._ranges.close()

    def wake(self) -> None:
        """Let a read that waits end at once, because the agent stops."""
        if self._ranges is not None:
            self._ranges.wake()

    def _from_any(self, part: Part, errand: Errand) -> SourceError | None:
        """Bring what lacks from one place after another; return the last one's fault, if any."""
        ways = self._ways.of(part.blob.sha256, errand)
        fault: SourceError | None = None
        for url in ways.urls if ways is not None else ():
            try:
                self._from(url, part, errand)
            except SourceError as exc:
                fault = exc
            if part.complete:
                return None
        return fault

    def _from(self, url: str, part: Part, errand: Errand) -> None:
        """Bring what lacks from one place, unless it rests.

        Raises:
            RefusedLinkError: It refuses the link.
            SourceError: It does not give all of it.
        """
        place = self._checked(url)
        host = place.netloc
        until_s, rest_s = self._resting.get(host, (float("-inf"), 0.0))
        if self._clock.monotonic_s() < until_s:
            raise SourceError(f"{host} did not answer a short time ago")
        try:
            self._fetch_all(place, part, errand)
        except RefusedLinkError:
            raise
        except SourceError:
            rest_s = min(max(2 * rest_s, REST_MIN_S), REST_MAX_S)
            self._resting[host] = (self._clock.monotonic_s() + rest_s, rest_s)
            raise
        self._resting.pop(host, None)

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

    def _fetch_all(self, place: SplitResult, part: Part, errand: Errand) -> None:
        """Bring what lacks from one place.

        Raises:
            SourceError: It does not give all of it.
        """
        for run in _runs(part):
            self._fetch_run(place, run, part, errand)
        if not part.is_possible():
            raise SourceError(f"{place.netloc} sent wrong bytes")

    def _fetch_run(self, place: SplitResult, run: _Run, part: Part, errand: Errand) -> None:
        """Bring some chunks that follow one another.

        Raises:
            SourceError: The place does not give them.
        """
        blob = part.blob
        start = run.first * blob.chunk_bytes
        end = min(run.after * blob.chunk_bytes, blob.size_bytes)
        indices = range(run.first, run.after)
        sizes_bytes = [blob.length(index) for index in indices]
        blocks = self._opened().read(place, start, end, blob.size_bytes, sizes_bytes, errand.check)
        for index, data in zip(indices, blocks, strict=True):
            size_bytes = part.keep_right(index, data)
            if size_bytes is None:  # the others of the package may be wrong, too
                raise SourceError(f"{place.netloc} sent wrong bytes")
            if size_bytes:
                errand.progress(size_bytes, HTTP)

    def _opened(self) -> Ranges:
        if self._ranges is None:
            from agent.install.fetch.ranges import Ranges

            self._ranges = Ranges(self._ca_files, self._clock, self._came)
        return self._ranges


def _runs(part: Part) -> Iterator[_Run]:
    """Yield the runs of what lacks now."""
    lacking = part.lacking
    first = 0
    for place, index in enumerate(lacking):
        if place + 1 == len(lacking) or lacking[place + 1] != index + 1:
            yield _Run(lacking[first], index + 1)
            first = place + 1
