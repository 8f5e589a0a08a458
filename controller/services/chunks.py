"""Serves chunks: a device pulls the blobs of the release that it has to run.

Rules:
- A device reads only blobs of the published release that is assigned to it. For any other blob the
  answer is that it does not exist, whether or not it does.
- Every request is bounded, and so is the number of bytes that the controller sends per second. It
  drops the chunks that exceed this budget, and the device asks again.
"""

from __future__ import annotations

from collections.abc import Iterator

from controller.errors import UnknownBlobError
from controller.services.blobs import BlobStore
from controller.services.director import Publisher
from controller.services.releases import MAX_CHUNK_BYTES
from controller.store import releases
from controller.store.database import Database
from wire import topics
from wire.clock import Clock
from wire.codec import to_msgpack
from wire.errors import WireFormatError
from wire.messages import MAX_CHUNK_INDICES, Chunk, ChunkRequest

MIN_CHUNK_BYTES = 1024
MAX_INDEX = 2**31
"""With the smallest chunks, the last of a blob of 2 TiB."""

CHUNK_EXPIRY_S = 30
"""After this time the device has asked for the chunk again."""

BURST_S = 1.0
"""How many seconds of the budget an idle controller saves up."""


class Budget:
    """A limit on bytes per second: a token bucket.

    Args:
        clock: Durations.
        bytes_per_s: The rate that is allowed in the long run.
    """

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._capacity_bytes = bytes_per_s * BURST_S
        self._left_bytes = self._capacity_bytes
        self._at_s = clock.monotonic_s()

    def take(self, size_bytes: int) -> bool:
        """Take bytes from the bucket; return False when it holds too few."""
        now_s = self._clock.monotonic_s()
        gained_bytes = (now_s - self._at_s) * self._bytes_per_s
        self._left_bytes = min(self._capacity_bytes, self._left_bytes + gained_bytes)
        self._at_s = now_s
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True


class ChunkServer:
    """Answers requests for chunks.

    Args:
        database: Knows which blobs a device may read.
        blobs: The content.
        publisher: The way to the devices.
        budget: A limit on the bytes that are sent.
    """

    def __init__(
        self, database: Database, blobs: BlobStore, publisher: Publisher, budget: Budget
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._publisher = publisher
        self._budget = budget

    def handle(self, request: ChunkRequest) -> bool:
        """Send a device the chunks that it asks for.

        Args:
            request: Which blob and which chunks.

        Returns:
            False when some were dropped because the budget is used up.

        Raises:
            WireFormatError: Sizes or indices out of bounds.
            DatabaseError: The database does not answer.
            StorageError: The disk cannot read the blob.
        """
        check_request(request)
        topic = topics.down(request.device, "chunk")
        for chunk in self._chunks(request):
            if not self._budget.take(len(chunk.data)):
                return False
            self._publisher.publish(topic, to_msgpack(chunk), expiry_s=CHUNK_EXPIRY_S)
        return True

    def _chunks(self, request: ChunkRequest) -> Iterator[Chunk]:
        with self._database.reading() as transaction:
            size_bytes = releases.blob_size_for(
                transaction, device=request.device, sha256=request.sha256
            )
        for index in request.indices:
            offset = index * request.chunk_bytes
            data = None
            if size_bytes is not None and (offset < size_bytes or offset == 0):
                data = self._read(request.sha256, offset, request.chunk_bytes)
            if data is None:
                yield Chunk(sha256=request.sha256, index=index, missing=True)
            else:
                yield Chunk(sha256=request.sha256, index=index, data=data)

    def _read(self, sha256: str, offset: int, length: int) -> bytes | None:
        try:
            return self._blobs.read(sha256, offset=offset, length=length)
        except UnknownBlobError:
            return None


def check_request(request: ChunkRequest) -> None:
    """Refuse a request that no correct device sends.

    Args:
        request: As received.

    Raises:
        WireFormatError: Sizes or indices out of bounds.
    """
    if not MIN_CHUNK_BYTES <= request.chunk_bytes <= MAX_CHUNK_BYTES:
        raise WireFormatError(f"chunks of {request.chunk_bytes} bytes are out of bounds")
    if not 1 <= len(request.indices) <= MAX_CHUNK_INDICES:
        raise WireFormatError(f"{len(request.indices)} chunks in one request are out of bounds")
    least, greatest = min(request.indices), max(request.indices)
    if len(set(request.indices)) != len(request.indices) or least < 0 or greatest > MAX_INDEX:
        raise WireFormatError("the request names a chunk twice, or an impossible index")
