"""One blob that comes over messages: what to ask for, and what to do with an answer."""

from __future__ import annotations

from agent.errors import BlobMissingError
from agent.install.fetch.asking import Asking, Request
from agent.install.fetch.flow import MIN_PIECE_BYTES, Flow
from agent.install.fetch.part import Part
from agent.install.fetch.pieces import Pieces
from wire.delivery import Chunk


class Transfer:
    """One blob that is being fetched over messages.

    Args:
        part: Its partial file.
        flow: The window and the patience.
    """

    def __init__(self, part: Part, flow: Flow) -> None:
        blob = part.blob
        self._part = part
        self._pieces = Pieces(blob.size_bytes, blob.chunk_bytes, MIN_PIECE_BYTES)
        self._asking = Asking(flow, self._pieces, blob.size_bytes)
        for index in part.lacking:
            self._pieces.add(index)
        self.useful_bytes = 0
        """How much has come that was lacking; whether it is right is seen with each chunk."""

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return self._pieces.complete

    @property
    def under_way(self) -> bool:
        """Whether something was asked for that may still come."""
        return self._pieces.under_way_bytes > 0

    def next(self, now_s: float) -> Request | None:
        """Return what to ask for now, or None."""
        return self._asking.next(now_s)

    def thanks(self) -> Request:
        """Return the request that only tells the controller what has come."""
        return self._asking.thanks()

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing is to be done if nothing comes."""
        return self._asking.wait_s(now_s)

    def restart(self) -> None:
        """Note that the connection is new: nothing is under way."""
        self._asking.restart()

    def take(self, chunk: Chunk, now_s: float) -> int:
        """Keep an answer if it is needed.

        Args:
            chunk: As it came.
            now_s: Monotonic time.

        Returns:
            The size of the chunk that it completes; 0 if it completes none.

        Raises:
            BlobMissingError: The controller has no such blob.
            IntegrityError: Too many chunks were wrong.
        """
        blob = self._part.blob
        if chunk.missing:
            raise BlobMissingError(
                f"the controller has no blob {blob.sha256}",
                remedy="publish the release again",
            )
        size_bytes = len(chunk.data)
        number = chunk.number if isinstance(chunk.number, int) else None
        place = self._asking.place(number, chunk.index, size_bytes)
        if place is None:
            return 0
        waited_s = chunk.waited_s if isinstance(chunk.waited_s, float) else 0.0
        done = self._asking.arrived(place, size_bytes, waited_s, now_s)
        if number is not None:
            self._asking.settle(number)
        if done is None:
            return 0
        self.useful_bytes += size_bytes
        self._part.write(place.offset_bytes, chunk.data)
        if not done:
            return 0
        index = place.offset_bytes // blob.chunk_bytes
        is_chunk = size_bytes == blob.length(index)
        finished_bytes = self._part.finish(index, chunk.data if is_chunk else None)
        if not finished_bytes:
            self._pieces.again(index)
        return finished_bytes
