"""The messages by which blobs come to devices: chunks, other sources, casts.

Rules:
- They follow the rules of `wire.messages`.
- Requests and reports are JSON; chunks and pieces of casts are MessagePack.
- The answer that names other sources travels signed by the `director` role
  (`wire.trust.envelope`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.messages import Message

SOURCES_PAYLOAD_TYPE = "application/vnd.edgefleet.sources+json"
MAX_CHUNK_INDICES = 64
"""Chunks that one request may ask for."""

MAX_SOURCE_BLOBS = 64
"""Blobs that one request for sources may name."""

MAX_SOURCE_PACKAGES = 16
MAX_DELTA_CHUNKS = 1024
"""Digests of chunks in one answer, all deltas together: so it fits into a message."""

NOTHING_LEFT: Final = -1
"""No index of a piece: see `ChunkRequest.seen`."""


class ChunkRequest(Message, frozen=True, kw_only=True):
    """A device asks for pieces of a blob that it lacks.

    The controller answers the requests of a device in their order, and each piece of a request in
    its order: so an answer shows that the pieces asked for before it have come or are lost.
    """

    device: str
    sha256: str
    chunk_bytes: int
    """Size of the pieces that this request counts in; a signed chunk may be several pieces."""

    indices: tuple[int, ...]
    number: int | msgspec.UnsetType = msgspec.UNSET
    """Grows with each request of one start of the agent; unset by agents that do not count."""

    seen: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """Number and index of the answer that came last: nothing that was sent before it, nor it, is
    on its way any more. Unset before the first answer."""

    patience_s: float | msgspec.UnsetType = msgspec.UNSET
    """After this time without any answer the device asks again, and no longer waits for this."""


class Chunk(Message, frozen=True, kw_only=True):
    """One piece of a blob, or the answer that there is no such blob. MessagePack."""

    sha256: str
    index: int
    data: bytes = b""
    missing: bool = False
    number: int | msgspec.UnsetType = msgspec.UNSET
    """Of the request that this answers; unset if the request had none."""

    waited_s: float | msgspec.UnsetType = msgspec.UNSET
    """How long the request waited at the controller for its turn: the rest of the time that the
    answer took belongs to the way."""


class SourceRequest(Message, frozen=True, kw_only=True):
    """A device asks in which other ways than messages it can get blobs. No answer means none."""

    device: str
    nonce: str
    """New for each request; the answer repeats it, so that no recorded answer counts."""

    blobs: tuple[str, ...]
    """SHA-256 of what the device lacks, in the order in which it will fetch."""

    packages: tuple[str, ...] = ()
    """Digests of the whole packages that the device has: what a delta may begin from."""


class DeltaSource(msgspec.Struct, frozen=True, kw_only=True):
    """A delta that leads to a blob: itself a blob, which is fetched like any."""

    base: str
    """SHA-256 of the file that it begins from; that of no bytes for a blob that is compressed."""

    sha256: str
    size_bytes: int
    chunk_bytes: int
    chunks: tuple[str, ...] = ()
    """SHA-256 of each chunk; empty where only the whole can be checked."""

    urls: tuple[str, ...] = ()
    """As in `BlobSources`."""


class Cast(msgspec.Struct, frozen=True, kw_only=True):
    """A topic on which a blob may come to many devices at once."""

    topic: str
    """Random: who is not told of it cannot name it. See `wire.topics.cast`."""

    wait_s: float
    """How long to wait for the first piece: others may still come."""


class BlobSources(msgspec.Struct, frozen=True, kw_only=True):
    """The ways to one blob, beside messages."""

    sha256: str
    urls: tuple[str, ...] = ()
    """Where a GET with `Range` gives it, the best first. They are secrets while they are valid."""

    delta: DeltaSource | None = None
    """The smallest delta from what the device has, if one pays."""

    delta_in_s: float = 0.0
    """A delta that may pay is being made: ask again after this time. 0 for none."""

    cast: Cast | msgspec.UnsetType = msgspec.UNSET
    """Where it may come to many devices at once; unset if nobody else waits for it."""

    peers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Links (`wire.trust.peer_links`) to devices of the same site that have it or fetch it now,
    the best first; unset if there are none."""


class Sources(Message, frozen=True, kw_only=True):
    """The ways to some blobs; the answer to a `SourceRequest`. Signed; a device believes no other.

    A device that believed an unsigned one would send requests wherever somebody likes.
    """

    device: str
    nonce: str
    blobs: tuple[BlobSources, ...] = ()
    valid_s: float = 0.0
    """How long the URLs work, from when this was signed."""


class CastPiece(Message, frozen=True, kw_only=True):
    """A piece of a blob for all devices that listen. MessagePack.

    The topic says which blob. The broker keeps the order: what was sent before has come or is lost.
    """

    position: int
    """How many bytes were sent on this topic before it."""

    offset: int
    """Where it begins in the blob. A piece is within one chunk."""

    data: bytes
    """Empty if nothing more comes: the rest is to come in other ways."""

    at_s: float
    """When it was sent, by a clock of the controller that only runs."""

    report_s: float
    """How long a device waits between two reports."""


class CastReport(Message, frozen=True, kw_only=True):
    """A device tells what has come of a cast. The first report says that it listens."""

    device: str
    topic: str
    chunk_bytes: int
    lacking: str
    """The chunks that it lacks, as a hexadecimal number; bit n is chunk n. Empty: it has left."""

    position: int | msgspec.UnsetType = msgspec.UNSET
    """The position after the last piece that came. Unset before the first."""

    lag_s: float = 0.0
    """How much longer the last piece took than the one that took least."""

    lost_bytes: int = 0
    """What of the cast did not come, since the report before."""
