"""Serves chunks: a device pulls the blobs of the release that it has to run.

Rules:
- A device reads only blobs of the published release that is assigned to it, and deltas to them. For
  any other blob the answer is that it does not exist, whether or not it does.
- Every request is bounded. What is asked for waits in lanes (`controller.delivery.lanes`), and a
  thread of its own sends it, no faster than the settings allow: nothing that is asked for is
  dropped because others ask too.
- What the broker does not take now is sent a little later.
- What many wait for is sent once for all (`controller.delivery.casts`), by the same thread.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Collection, Sequence
from math import ceil
from typing import Final, Protocol

import msgspec
from msgspec import UnsetType

from controller.delivery.budget import Budget
from controller.delivery.carousel import CastTurn
from controller.delivery.casts import Casts
from controller.delivery.lanes import Lanes, Turn
from controller.delivery.shares import Shares
from controller.domain.faults import Faults
from controller.errors import UnknownBlobError
from controller.services.director import Publisher
from controller.services.own_messages import own_message
from controller.services.releases import MAX_CHUNK_BYTES
from controller.store import releases
from controller.store.database import Database
from wire import topics
from wire.clock import Clock
from wire.codec import to_msgpack
from wire.delivery import MAX_CHUNK_INDICES, Cast, CastPiece, CastReport, Chunk, ChunkRequest
from wire.errors import FleetError, WireFormatError
from wire.package.index import is_digest
from wire.topics import parse_up
from wire.transport import Received

MIN_CHUNK_BYTES: Final = 1024
MAX_INDEX: Final = 2**31
"""With the smallest chunks, the last of a blob of 2 TiB."""

MAX_NUMBER: Final = 2**53 - 1
"""Of a request: what every JSON reader reads exactly."""

MIN_EXPIRY_S: Final = 30
"""What the broker could not deliver for longer is not waited for any more."""

CAST_EXPIRY_S: Final = 10
"""A device that is so late has left the cast."""

CAST_NAME_BYTES: Final = 16
KNOWN_S: Final = 10.0
"""How long the controller relies on what it read of a blob and a device. Of a release that is
revoked it sends what already waits."""

MAX_KNOWN: Final = 50_000
MESSAGE_BYTES: Final = 1024
"""What an answer without data counts."""

LOOK_S: Final = 0.5
"""How often the sender looks for what has become stale."""

FULL_S: Final = 0.1
"""How long the sender waits when the broker takes no more: mostly, there is no connection."""

_log = logging.getLogger(__name__)


class ReadsBlobs(Protocol):
    """Reads blobs by their digests."""

    def read(self, sha256: str, *, offset: int = 0, length: int) -> bytes:
        """Return a part of a blob; `UnknownBlobError` if it is not there."""


class ChunkServer:
    """Takes requests for pieces, and sends the pieces in a thread of its own.

    Args:
        database: Knows which blobs a device may read.
        blobs: The content.
        publisher: The way to the devices.
        budget: A limit on the bytes that are sent.
        clock: Durations.
    """

    def __init__(
        self,
        database: Database,
        blobs: ReadsBlobs,
        publisher: Publisher,
        budget: Budget,
        clock: Clock,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._publisher = publisher
        self._budget = budget
        self._clock = clock
        self._lanes = Lanes()
        self._casts = Casts(lambda: secrets.token_hex(CAST_NAME_BYTES))
        self._shares = Shares()
        self._faults = Faults()
        self._sizes_bytes: dict[tuple[str, str], tuple[float, int]] = {}
        """By device and blob: when its size was read, and the size."""

        self._swept_s = clock.monotonic_s()
        self._asked = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._send_for_ever, name="chunks", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop sending; the devices ask again."""
        with self._asked:
            self._stopping = True
            self._asked.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def handle(self, received: Sequence[Received]) -> None:
        """Take requests for pieces, and what devices say of casts; a fault in one is logged.

        What devices may read is asked of the database once for all of them: thousands of devices
        that install at one time would wait longer for answers than they do before they ask again.

        Args:
            received: As they came.
        """
        requests: list[ChunkRequest] = []
        for one in received:
            try:
                self._sort(one, requests)
            except FleetError as exc:
                if self._faults.is_first(topics.sender_of(one.topic), self._clock.monotonic_s()):
                    _log.warning("a request on %s was refused: %s", one.topic[:200], exc.message)
            except Exception:  # noqa: BLE001 - one message must not stop the others
                _log.exception("the controller failed to read a request on %s", one.topic[:200])
        try:
            sizes_bytes = self._sizes_of({(each.device, each.sha256) for each in requests})
            for each in requests:
                self._take(each, sizes_bytes.get((each.device, each.sha256), 0))
        except FleetError as exc:
            if self._faults.is_first("", self._clock.monotonic_s()):
                _log.warning("requests for pieces are not answered: %s", exc.message)
        except Exception:  # noqa: BLE001 - the devices ask again
            _log.exception("the controller failed to take requests for pieces")

    def _sort(self, received: Received, requests: list[ChunkRequest]) -> None:
        """Take a report of a cast, or add a request to those that are taken together.

        Raises:
            WireFormatError: It is neither, or out of bounds.
        """
        topic = parse_up(received.topic)
        if topic.kind == "cast_report":
            self.hear(own_message(received.payload, CastReport, topic.device))
            return
        request = own_message(received.payload, ChunkRequest, topic.device)
        check_request(request)
        requests.append(request)

    def offer(self, device: str, sha256: str) -> Cast | None:
        """Say on which topic a blob comes to many devices, if others wait for it too.

        Args:
            device: Who asks; for a blob that it may not read there is none.
            sha256: The blob.

        Raises:
            DatabaseError: The database does not answer.
        """
        size_bytes = self._sizes_of({(device, sha256)}).get((device, sha256))
        if size_bytes is None:
            return None
        with self._asked:
            return self._casts.offer(device, sha256, size_bytes, self._clock.monotonic_s())

    def hear(self, report: CastReport) -> None:
        """Take what a device says of a cast.

        Args:
            report: What it says.

        Raises:
            WireFormatError: It is out of bounds.
        """
        with self._asked:
            self._casts.report(report, self._clock.monotonic_s())
            self._asked.notify()

    def _take(self, request: ChunkRequest, size_bytes: int) -> None:
        """Put what a device asks for into its lane.

        Args:
            request: Which blob and which pieces, as it was checked.
            size_bytes: How large the blob is; 0 if the device may not read it.
        """
        sizes_bytes = tuple(
            min(size_bytes - index * request.chunk_bytes, request.chunk_bytes)
            for index in request.indices
        )
        if min(sizes_bytes, default=1) <= 0:
            if self._budget.wait_s(MESSAGE_BYTES) == 0:
                self._budget.spend(MESSAGE_BYTES)
                self._publish_missing(request.device, request.sha256, request.indices[0])
            return
        with self._asked:
            self._lanes.ask(request, sizes_bytes, self._clock.monotonic_s())
            self._asked.notify()

    def _sizes_of(self, asked: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return the sizes of blobs that devices may read, by device and digest.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.monotonic_s()
        found: dict[tuple[str, str], int] = {}
        unknown: list[tuple[str, str]] = []
        for each in asked:
            read_s, size_bytes = self._sizes_bytes.get(each, (-KNOWN_S, 0))
            if now_s - read_s < KNOWN_S:
                found[each] = size_bytes
            else:
                unknown.append(each)
        if unknown:
            with self._database.reading() as transaction:
                read = releases.readable_blobs(transaction, unknown)
            if len(self._sizes_bytes) >= MAX_KNOWN:
                self._sizes_bytes.clear()
            self._sizes_bytes |= {each: (now_s, size_bytes) for each, size_bytes in read.items()}
            found |= read
        return found

    def _send_for_ever(self) -> None:
        while not self._stopping:
            try:
                wait_s = self._send_next()
            except Exception:  # noqa: BLE001 - the next piece may succeed; a dead thread cannot
                _log.exception("the controller failed to send a piece")
                wait_s = LOOK_S
            if wait_s:
                with self._asked:
                    self._asked.wait_for(lambda: self._stopping, wait_s)

    def _send_next(self) -> float:
        """Send the next piece; return how long to wait before the one after it."""
        with self._asked:
            now_s = self._clock.monotonic_s()
            if now_s - self._swept_s >= LOOK_S:
                self._lanes.sweep(now_s)
                self._casts.sweep(now_s)
                self._swept_s = now_s
            turn = self._shares.choose(self._lanes.next(now_s), self._casts.next(now_s))
            if turn is None:
                self._asked.wait(min(LOOK_S, self._casts.wait_s(now_s)))
                return 0.0
        size_bytes = turn.size_bytes if isinstance(turn, CastTurn) else turn.wanted.size_bytes
        wait_s = self._budget.wait_s(size_bytes)
        if wait_s:
            return min(wait_s, LOOK_S)
        sent = True
        try:
            sent = self._cast(turn) if isinstance(turn, CastTurn) else self._send(turn)
        finally:  # what cannot be sent must not stand in the way of the others
            if sent:
                self._budget.spend(size_bytes)
                with self._asked:
                    self._note_sent(turn)
        return 0.0 if sent else FULL_S

    def _note_sent(self, turn: Turn | CastTurn) -> None:
        now_s = self._clock.monotonic_s()
        self._shares.sent(turn)
        if isinstance(turn, CastTurn):
            self._casts.sent(turn, now_s)
        else:
            self._lanes.sent(turn, now_s)

    def _cast(self, turn: CastTurn) -> bool:
        """Send a piece to many; return False if the broker takes no message now."""
        data = b""
        if turn.size_bytes:
            try:
                data = self._blobs.read(turn.sha256, offset=turn.offset, length=turn.size_bytes)
            except FleetError as exc:
                _log.warning("a piece for many cannot be read: %s", exc.message)
                return True  # the devices find out what is lacking
        piece = CastPiece(
            position=turn.position,
            offset=turn.offset,
            data=data,
            at_s=self._clock.monotonic_s(),
            report_s=turn.report_s,
        )
        topic = topics.cast(turn.name)
        if not self._publisher.publish(topic, to_msgpack(piece), expiry_s=CAST_EXPIRY_S):
            return False
        if turn.says:
            _log.info("%s", turn.says)
        return True

    def _send(self, turn: Turn) -> bool:
        """Send a piece; return False if the broker takes no message now."""
        wanted = turn.wanted
        piece = wanted.piece
        offset_bytes = piece.position * piece.piece_bytes
        try:
            data = self._blobs.read(piece.sha256, offset=offset_bytes, length=wanted.size_bytes)
        except UnknownBlobError:
            return self._publish_missing(turn.device, piece.sha256, piece.position)
        except FleetError as exc:
            _log.warning("a piece for %s cannot be read: %s", turn.device, exc.message)
            return True  # the device asks again
        chunk = Chunk(
            sha256=piece.sha256,
            index=piece.position,
            data=data,
            number=msgspec.UNSET if wanted.number is None else wanted.number,
            waited_s=max(self._clock.monotonic_s() - wanted.since_s, 0.0),
        )
        expiry_s = max(ceil(2 * wanted.patience_s), MIN_EXPIRY_S)
        topic = topics.down(turn.device, "chunk")
        return self._publisher.publish(topic, to_msgpack(chunk), expiry_s=expiry_s)

    def _publish_missing(self, device: str, sha256: str, index: int) -> bool:
        chunk = Chunk(sha256=sha256, index=index, missing=True)
        return self._publisher.publish(
            topics.down(device, "chunk"), to_msgpack(chunk), expiry_s=MIN_EXPIRY_S
        )


def check_request(request: ChunkRequest) -> None:
    """Refuse a request that no correct device sends.

    Args:
        request: As received.

    Raises:
        WireFormatError: Sizes or indices out of bounds.
    """
    if not MIN_CHUNK_BYTES <= request.chunk_bytes <= MAX_CHUNK_BYTES:
        raise WireFormatError(f"chunks of {request.chunk_bytes} bytes are out of bounds")
    least_count = 0 if isinstance(request.seen, tuple) else 1
    if not least_count <= len(request.indices) <= MAX_CHUNK_INDICES:
        raise WireFormatError(f"{len(request.indices)} chunks in one request are out of bounds")
    if not is_digest(request.sha256):
        raise WireFormatError("the request names no blob")
    numbers = (request.number, *(request.seen if isinstance(request.seen, tuple) else ()))
    if not all(isinstance(each, UnsetType) or -1 <= each <= MAX_NUMBER for each in numbers):
        raise WireFormatError("the number of the request is out of bounds")
    least, greatest = min(request.indices, default=0), max(request.indices, default=0)
    if len(set(request.indices)) != len(request.indices) or least < 0 or greatest > MAX_INDEX:
        raise WireFormatError("the request names a chunk twice, or an impossible index")
