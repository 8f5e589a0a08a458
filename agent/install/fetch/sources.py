"""What a source of chunks is, and what it is told of the install that it works for.

Rules:
- A source brings what it can of the chunks that a partial file lacks. The file checks every chunk,
  so no source needs to be trusted: a lying one costs time, never a wrong byte.
- A source that cannot go on raises `SourceError`, and the next one is tried. Any other error ends
  the transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from agent.errors import FetchError
from agent.install.fetch.part import Part
from agent.install.fetch.slowness import Slow
from wire.delivery import BlobSources

SourceName = Literal["local", "delta", "peer", "http", "multicast", "mqtt"]
"""As `wire.progress` names them."""


class SourceError(FetchError):
    """A source cannot bring a blob now; another may."""

    code = "agent.fetch.source"


class SlowError(SourceError):
    """A source is too slow, and another one is asked.

    Args:
        slow: How slow it is.
    """

    code = "agent.fetch.slow"

    def __init__(self, slow: Slow) -> None:
        super().__init__(
            f"{slow.who} sends too slowly: {slow.bytes_per_s:.0f} bytes/s, less than "
            f"{slow.least_bytes_per_s:.0f}"
        )
        self.slow = slow


class RefusedLinkError(SourceError):
    """A server refuses a link; it may be too old."""

    code = "agent.fetch.link"


class AbsentError(SourceError):
    """A server does not have a blob."""

    code = "agent.fetch.absent"


class EndedError(SourceError):
    """A server ended its answer before its end; the link may have expired meanwhile."""

    code = "agent.fetch.ended"


class LaterError(SourceError):
    """A server will have a blob, or time for it, a little later.

    Args:
        message: As for every error.
        retry_s: When to ask again.
    """

    code = "agent.fetch.later"

    def __init__(self, message: str, *, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class BusyError(LaterError):
    """A server ended a new connection at once; it may have too many."""

    code = "agent.fetch.busy"


class Coming:
    """Which blob comes to this device now, for the devices that would wait for it. For any thread.

    A device that itself waits for others does not say so: two of them would wait for each other.
    """

    def __init__(self) -> None:
        self.sha256 = ""
        """Empty while none comes."""


class Holdings(Protocol):
    """What the other packages on this device have."""

    @property
    def packages(self) -> Collection[str]:
        """Digests of the packages that are whole."""
        ...

    def chunk(self, digest: str) -> bytes | None:
        """Return the chunk that should have a digest, or None; its content is not checked."""
        ...

    def file(self, sha256: str) -> Path | None:
        """Return the path of a file that should have a digest, or None; it is not checked."""
        ...


class NoHoldings:
    """A device without other packages."""

    packages: tuple[str, ...] = ()

    def chunk(self, digest: str) -> bytes | None:  # noqa: ARG002 - as in the protocol
        """Return None."""
        return None

    def file(self, sha256: str) -> Path | None:  # noqa: ARG002 - as in the protocol
        """Return None."""
        return None


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What an install wants from the sources, and what it tells them."""

    progress: Callable[[int, SourceName], None] = lambda _size, _source: None
    """Called with the size of each chunk that is new in the file, and what brought it."""

    found: Callable[[int], None] = lambda _size: None
    """Called with how much of a blob its partial file had already."""

    check: Callable[[], None] = lambda: None
    """Called often; raises to end the transfer."""

    wrote: Callable[[int], None] = lambda _size: None
    """Called with the size of what is written to the storage."""

    holdings: Holdings = NoHoldings()
    blobs: tuple[str, ...] = ()
    """SHA-256 of all that the install lacks, in the order in which it will fetch."""

    only_deltas: Callable[[], bool] = lambda: False
    """Whether no whole file may come by the network in use."""

    too_slow: Callable[[Slow], bool] = lambda _slow: True
    """Called when a source was too slow for a whole window; returns whether it is to be left."""

    asks: bool = False
    """Whether the controller answers when it is asked for other sources than messages."""


class Ways(Protocol):
    """What knows in which other ways than messages a blob can come."""

    def of(self, sha256: str, errand: Errand) -> BlobSources | None:
        """Return the ways to a blob, or None if nobody tells; it may take some seconds."""
        ...

    def forget(self, sha256: str) -> None:
        """Forget the ways to a blob, because they do not work or others are to be ready now."""
        ...


class ChunkSource(Protocol):
    """Something that brings chunks."""

    @property
    def name(self) -> SourceName:
        """As in the settings and in reports."""
        ...

    def bring(self, part: Part, errand: Errand) -> None:
        """Bring what it can of what a partial file lacks; it may bring nothing.

        Args:
            part: The partial file.
            errand: What the install wants.

        Raises:
            SourceError: It cannot go on; what it brought is kept.
            FleetError: The transfer must end, also for other sources.
            OSError: The file cannot be read or written.
        """
        ...

    def end(self) -> None:
        """Let go of what is open, because the install needs nothing more now."""
        ...
