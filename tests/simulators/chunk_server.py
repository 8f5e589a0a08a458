"""The controller's side of a transfer: answers chunk requests from blobs in memory."""

from __future__ import annotations

from collections.abc import Callable

from wire.codec import sha256_hex, to_msgpack
from wire.delivery import Chunk, ChunkRequest
from wire.messages import decode_message
from wire.topics import down
from wire.transport import Received, Transport

Tamper = Callable[[Chunk], Chunk | None]
"""Changes a chunk on its way, or loses it."""


class ChunkServer:
    """Serves blobs.

    Args:
        transport: On which it answers; the test subscribes `hear` to `up/chunk_request`.
        tamper: What happens to chunks on their way.
    """

    def __init__(self, transport: Transport, tamper: Tamper = lambda chunk: chunk) -> None:
        self._transport = transport
        self.tamper = tamper
        self.blobs: dict[str, bytes] = {}
        self.sent: list[tuple[str, int]] = []

    def add(self, *contents: bytes) -> None:
        """Have some blobs."""
        self.blobs |= {sha256_hex(content): content for content in contents}

    def hear(self, received: Received) -> None:
        """Answer a request."""
        request = decode_message(received.payload, ChunkRequest)
        for chunk in self._chunks(request):
            kept = self.tamper(chunk)
            if kept is not None:
                self.sent.append((kept.sha256, kept.index))
                self._transport.publish(down(request.device, "chunk"), to_msgpack(kept))

    def _chunks(self, request: ChunkRequest) -> list[Chunk]:
        blob = self.blobs.get(request.sha256)
        if blob is None:
            return [Chunk(sha256=request.sha256, index=0, missing=True, number=request.number)]
        size = request.chunk_bytes
        return [
            Chunk(
                sha256=request.sha256,
                index=i,
                data=blob[i * size : (i + 1) * size],
                number=request.number,
            )
            for i in request.indices
        ]
