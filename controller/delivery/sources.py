"""Tells devices in which other ways than messages they can get the blobs of their release.

Rules:
- A device learns of a blob only if it may read it, as in `controller.delivery.chunks`. Of any other
  blob the answer says nothing.
- An answer is signed: a device sends requests to no place that the director does not name.
- Every request is bounded, and each device may send so many of them only: the rest is dropped, and
  logged once, as are faults.
- An answer fits into a message; what does not fit is left out, the last first.
- Links and what is made of them are secrets: no log gets them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from controller.delivery.places import Place
from controller.domain.faults import Faults
from controller.services.director import Publisher
from controller.services.own_messages import own_message
from controller.store import releases
from controller.store.database import Database
from wire import topics
from wire.clock import Clock
from wire.codec import to_json
from wire.delivery import (
    MAX_DELTA_CHUNKS,
    MAX_SOURCE_BLOBS,
    MAX_SOURCE_PACKAGES,
    SOURCES_PAYLOAD_TYPE,
    BlobSources,
    Cast,
    DeltaSource,
    SourceRequest,
    Sources,
)
from wire.errors import FleetError, WireFormatError
from wire.messages import MAX_MESSAGE_BYTES
from wire.package.index import is_digest
from wire.token_bucket import TokenBucket
from wire.transport import Received
from wire.trust.envelope import SigningKey, seal

MAX_NONCE_CHARS: Final = 64
ENVELOPE_BYTES: Final = 1024
"""What an envelope has beside its payload, which grows by a third in it."""

MAX_PAYLOAD_BYTES: Final = (MAX_MESSAGE_BYTES - ENVELOPE_BYTES) // 4 * 3
EXPIRY_S: Final = 30
"""What the broker could not deliver for longer is not waited for any more."""

BURST: Final = 16.0
EVERY_S: Final = 1.0
"""A device asks a few times for each package: it may send so many requests at once, and one more in
each such time."""

MAX_KNOWN: Final = 10_000

_log = logging.getLogger(__name__)


class DeltaOffers(Protocol):
    """What makes deltas, and knows which there are."""

    def offer(
        self, device: str, blob_sha256: str, packages: tuple[str, ...]
    ) -> DeltaSource | float | None:
        """Say which delta leads to a blob from what a device has; must not wait for one.

        Args:
            device: The device, which may read the blob.
            blob_sha256: The blob.
            packages: Digests of the packages that the device says it has.

        Returns:
            The delta, without URLs; in how many seconds there may be one; None for none.
        """
        ...


class CastOffers(Protocol):
    """What sends blobs once for many devices."""

    def offer(self, device: str, sha256: str) -> Cast | None:
        """Say where a blob may come to many devices at once.

        Args:
            device: The device, which may read the blob.
            sha256: The blob.

        Returns:
            The topic; None if no others wait for the blob.
        """
        ...


class PeerOffers(Protocol):
    """What knows which devices can serve others."""

    def offer(self, device: str, blobs: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return links to devices of the same site that have blobs, or fetch them now.

        Args:
            device: The device, which may read the blobs.
            blobs: The blobs.

        Returns:
            By blob the links, the best first.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The ways to blobs beside messages."""

    places: Sequence[Place] = ()
    """The preferred first."""

    valid_s: int = 0
    """How long links work."""

    deltas: DeltaOffers | None = None
    casts: CastOffers | None = None
    peers: PeerOffers | None = None


class SourceServer:
    """Answers requests for sources.

    Args:
        database: Knows which blobs a device may read.
        ways: What there is to offer.
        publisher: The way to the devices.
        key: The director's private key.
        clock: Wall time for links, durations.
    """

    def __init__(
        self, database: Database, ways: Ways, publisher: Publisher, key: SigningKey, clock: Clock
    ) -> None:
        self._database = database
        self._ways = ways
        self._publisher = publisher
        self._key = key
        self._clock = clock
        self._turns = Turns()
        self._faults = Faults()

    def handle(self, received: Received) -> None:
        """Answer a request; a fault in it is logged.

        Args:
            received: As it came.
        """
        device, now_s = topics.sender_of(received.topic), self._clock.monotonic_s()
        turn = self._turns.take(device, now_s)
        if turn == "first-dropped":
            _log.warning(
                "device %s asks for sources more often than it needs: requests are dropped", device
            )
        if turn != "granted":
            return
        try:
            request = own_message(received.payload, SourceRequest, device)
            check_request(request)
            answer = self.answer(request)
        except FleetError as exc:
            if self._faults.is_first(device, now_s):
                _log.warning("a request on %s was refused: %s", received.topic[:200], exc.message)
            return
        # Where the broker takes no message now the device asks again.
        topic = topics.down(request.device, "sources")
        self._publisher.publish(topic, sealed(answer, self._key), expiry_s=EXPIRY_S)

    def answer(self, request: SourceRequest) -> Sources:
        """Return all ways to the blobs that a device asks for.

        Args:
            request: With checked bounds.

        Returns:
            The answer; it may be larger than a message.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            readable = releases.readable_blobs(
                transaction, [(request.device, sha256) for sha256 in request.blobs]
            )
        now_s = self._clock.now_s()
        blobs = [sha256 for sha256 in request.blobs if (request.device, sha256) in readable]
        peers = self._peers(request.device, blobs)
        found = (self._sources(request, sha256, peers.get(sha256, ()), now_s) for sha256 in blobs)
        return Sources(
            device=request.device,
            nonce=request.nonce,
            blobs=tuple(each for each in found if _says_something(each)),
            valid_s=float(self._ways.valid_s),
        )

    def _sources(
        self, request: SourceRequest, sha256: str, peers: tuple[str, ...], now_s: float
    ) -> BlobSources:
        urls = self._links(request.device, sha256, now_s, only_deltas=False)
        cast = self._ways.casts.offer(request.device, sha256) if self._ways.casts else None
        ways = BlobSources(
            sha256=sha256, urls=urls, cast=cast or msgspec.UNSET, peers=peers or msgspec.UNSET
        )
        offer = self._offer(request, sha256)
        if isinstance(offer, DeltaSource):
            links = self._links(request.device, offer.sha256, now_s, only_deltas=True)
            return msgspec.structs.replace(ways, delta=msgspec.structs.replace(offer, urls=links))
        return msgspec.structs.replace(ways, delta_in_s=max(float(offer or 0), 0.0))

    def _peers(self, device: str, blobs: Sequence[str]) -> dict[str, tuple[str, ...]]:
        if self._ways.peers is None or not blobs:
            return {}
        try:
            return self._ways.peers.offer(device, blobs)
        except FleetError as exc:  # the device gets them from farther away
            _log.warning("no peers are offered to %s: %s", device, exc.message)
            return {}

    def _offer(self, request: SourceRequest, sha256: str) -> DeltaSource | float | None:
        if self._ways.deltas is None:
            return None
        try:
            return self._ways.deltas.offer(request.device, sha256, request.packages)
        except FleetError as exc:  # the device gets the whole blob
            _log.warning("no delta is offered to %s: %s", request.device, exc.message)
            return None

    def _links(
        self, device: str, sha256: str, now_s: float, *, only_deltas: bool
    ) -> tuple[str, ...]:
        return tuple(
            place.link(device, sha256, now_s, self._ways.valid_s)
            for place in self._ways.places
            if place.has_deltas or not only_deltas
        )


def _says_something(ways: BlobSources) -> bool:
    own = ways.urls or ways.delta or ways.delta_in_s
    return bool(own or isinstance(ways.cast, Cast) or isinstance(ways.peers, tuple))


@dataclass(slots=True)
class _Asker:
    bucket: TokenBucket
    """How many requests the device may send at once."""

    has_dropped: bool = False
    """Since the bucket was full."""


class Turns:
    """How often each device may ask: a token bucket for each."""

    def __init__(self) -> None:
        self._askers: OrderedDict[str, _Asker] = OrderedDict()
        """The device that has asked least recently comes first."""

    def __len__(self) -> int:
        return len(self._askers)

    def take(self, device: str, now_s: float) -> Literal["granted", "first-dropped", "dropped"]:
        """Take a turn.

        Args:
            device: Who asks.
            now_s: Monotonic time.

        Returns:
            Whether it is granted; if it is not, whether that is the first time in a row.
        """
        asker = self._askers.get(device)
        if asker is None:
            asker = self._askers[device] = _Asker(TokenBucket(1 / EVERY_S, BURST, now_s))
        self._askers.move_to_end(device)
        if len(self._askers) > MAX_KNOWN:
            self._askers.popitem(last=False)
        if asker.bucket.is_full(now_s):
            asker.has_dropped = False
        if asker.bucket.take(now_s):
            return "granted"
        was, asker.has_dropped = asker.has_dropped, True
        return "dropped" if was else "first-dropped"


def check_request(request: SourceRequest) -> None:
    """Refuse a request that no correct device sends.

    Args:
        request: As received.

    Raises:
        WireFormatError: Too many blobs or packages, something that is no digest, a strange nonce.
    """
    if not 1 <= len(request.blobs) <= MAX_SOURCE_BLOBS:
        raise WireFormatError(f"sources for {len(request.blobs)} blobs are out of bounds")
    if len(request.packages) > MAX_SOURCE_PACKAGES:
        raise WireFormatError(f"{len(request.packages)} packages of a device are out of bounds")
    if not all(map(is_digest, (*request.blobs, *request.packages))):
        raise WireFormatError("the request names a blob or a package by what is no digest")
    if len(set(request.blobs)) != len(request.blobs):
        raise WireFormatError("the request names a blob twice")
    if not 1 <= len(request.nonce) <= MAX_NONCE_CHARS or not request.nonce.isascii():
        raise WireFormatError("the nonce of the request is out of bounds")


def sealed(answer: Sources, key: SigningKey) -> bytes:
    """Return an answer as it is sent.

    Args:
        answer: All that there is to say.
        key: The director's.

    Returns:
        The envelope, which fits into a message.
    """
    payload = to_json(fitted(answer, MAX_PAYLOAD_BYTES))
    return seal(payload, payload_type=SOURCES_PAYLOAD_TYPE, keys=(key,))


def fitted(answer: Sources, limit_bytes: int) -> Sources:
    """Return as much of an answer as fits.

    Peers go first, because other ways lead to the same bytes; then the digests of the chunks of
    deltas, because a delta works without them; then the deltas, then blobs, for which the device
    asks again. In each kind the last goes first.

    Args:
        answer: All that there is to say.
        limit_bytes: Of the document.

    Returns:
        The answer, or what is left of it.
    """
    blobs = list(answer.blobs)
    chunks = sum(len(each.delta.chunks) for each in blobs if each.delta)
    size_bytes = len(to_json(answer))
    for place, blob in reversed(list(enumerate(blobs))):
        if size_bytes > limit_bytes and isinstance(blob.peers, tuple):
            blobs[place] = msgspec.structs.replace(blob, peers=msgspec.UNSET)
            size_bytes += len(to_json(blobs[place])) - len(to_json(blob))
    for place, blob in reversed(list(enumerate(blobs))):
        if (size_bytes > limit_bytes or chunks > MAX_DELTA_CHUNKS) and blob.delta:
            chunks -= len(blob.delta.chunks)
            bare = msgspec.structs.replace(blob.delta, chunks=())
            blobs[place] = msgspec.structs.replace(blob, delta=bare)
            size_bytes += len(to_json(blobs[place])) - len(to_json(blob))
    for place, blob in reversed(list(enumerate(blobs))):
        if size_bytes > limit_bytes and blob.delta:
            blobs[place] = msgspec.structs.replace(blob, delta=None)
            size_bytes += len(to_json(blobs[place])) - len(to_json(blob))
    while blobs and size_bytes > limit_bytes:
        size_bytes -= len(to_json(blobs.pop())) + 1  # the comma
    return msgspec.structs.replace(answer, blobs=tuple(blobs))
