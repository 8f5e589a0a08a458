"""Knows which pieces of a blob are here, asked for or missing. Pure: it touches no file.

A blob is signed in chunks and asked for in pieces: a piece is a chunk or an even part of one. The
smallest piece is a block, and the state of a chunk that has been begun is kept by block.

Rules:
- Chunks are begun in their order, and what was lost is asked for before a new chunk is begun: so
  no more than about a window of chunks is ever incomplete.
- The controller answers in order. So an answer to one request shows that what was asked for in an
  earlier one and has not come is lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

HERE: Final = -1
MISSING: Final = 0
"""States of a block; a greater one is the number of the request that asked for it."""


class Asked(NamedTuple):
    """The pieces of one request."""

    piece_bytes: int
    indices: tuple[int, ...]


class Pieces:
    """The pieces of one blob.

    Args:
        size_bytes: Size of the blob.
        chunk_bytes: Size of its chunks.
        block_bytes: Least size of a piece, as far as the size of a chunk can be halved.
    """

    def __init__(self, size_bytes: int, chunk_bytes: int, block_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._chunk_bytes = chunk_bytes
        self._block_bytes = _even_part(chunk_bytes, block_bytes)
        self._per_chunk = chunk_bytes // self._block_bytes
        self._new: deque[int] = deque()
        """Chunks of which nothing was asked for."""

        self._begun: dict[int, list[int]] = {}
        """By the index of a chunk that is not complete: the state of each block."""

        self._gappy: dict[int, None] = {}
        """The chunks among these with blocks to ask for, in the order of their turns."""

        self._under_way: Counter[int] = Counter()
        """By the number of a request: how many blocks of it have not come."""

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return not self._new and not self._begun

    @property
    def under_way_bytes(self) -> int:
        """How much was asked for and has not come."""
        return self._under_way.total() * self._block_bytes

    def add(self, chunk: int) -> None:
        """Note that a chunk is not here; the chunks are begun in the order of these calls."""
        self._new.append(chunk)

    def ask(self, number: int, piece_bytes: int, room_bytes: int, most: int) -> Asked | None:
        """Choose what the next request asks for.

        Args:
            number: Of the request; greater than those before.
            piece_bytes: Greatest size of a piece, if a block is not larger.
            room_bytes: How much may be asked for, if a block is not larger.
            most: How many pieces a request may have.

        Returns:
            The pieces, or None if nothing is left to ask for.
        """
        indices: list[int] = []
        grid_bytes = 0
        while len(indices) < most and (gap := self._next_gap()):
            fitting_bytes = self._fitting(*gap, min(piece_bytes, room_bytes))
            if indices and (fitting_bytes != grid_bytes or room_bytes < grid_bytes):
                break
            grid_bytes = grid_bytes or fitting_bytes
            indices.append(gap[0] * self._block_bytes // grid_bytes)
            chunk, offset = divmod(gap[0], self._per_chunk)
            for block in range(min(grid_bytes // self._block_bytes, gap[1])):
                self._set(chunk, offset + block, number)
            room_bytes -= grid_bytes
        return Asked(grid_bytes, tuple(indices)) if indices else None

    def probe(self, number: int) -> Asked | None:
        """Ask again for the one block that was asked for first of those that have not come."""
        oldest = min(self._under_way, default=MISSING)
        for chunk, states in self._begun.items():
            if oldest != MISSING and oldest in states:
                block = states.index(oldest)
                self._set(chunk, block, number)
                return Asked(self._block_bytes, (chunk * self._per_chunk + block,))
        return None

    def arrived(self, offset_bytes: int, size_bytes: int) -> bool | None:
        """Note that a piece has come.

        Args:
            offset_bytes: Where it begins in the blob.
            size_bytes: Its size.

        Returns:
            Whether its chunk is complete now; None if it is no piece, or was not awaited.
        """
        first, rest = divmod(offset_bytes, self._block_bytes)
        end_bytes = offset_bytes + size_bytes
        if rest or (end_bytes % self._block_bytes and end_bytes != self._size_bytes):
            return None
        chunk, offset = divmod(first, self._per_chunk)
        states = self._begun.get(chunk, [])
        blocks = range(offset, offset - first - (-end_bytes // self._block_bytes))
        if not 0 < len(blocks) <= len(states) - offset:
            return None
        if all(states[block] == HERE for block in blocks):
            return None
        for block in blocks:
            self._set(chunk, block, HERE)
        if any(state != HERE for state in states):
            return False
        del self._begun[chunk]
        self._gappy.pop(chunk, None)
        return True

    def asked_in(self, offset_bytes: int) -> int | None:
        """Return the number of the request that asked for a block last, if it has not come."""
        chunk, block = divmod(offset_bytes // self._block_bytes, self._per_chunk)
        states = self._begun.get(chunk, [])
        state = states[block] if block < len(states) else MISSING
        return state if state > MISSING else None

    @property
    def oldest(self) -> int | None:
        """The number of the first request that has not been answered whole."""
        return min(self._under_way, default=None)

    def lose_before(self, number: int) -> bool:
        """Note that what was asked for before a request has not come and will not.

        Returns:
            Whether there was such a piece.
        """
        if min(self._under_way, default=number) >= number:
            return False
        self._lose(lambda state: state < number)
        return True

    def lose_all(self) -> None:
        """Note that nothing is under way any more."""
        self._lose(lambda _state: True)

    def again(self, chunk: int) -> None:
        """Note that a chunk that was complete has wrong content."""
        self._begun[chunk] = [MISSING] * self._blocks_of(chunk)
        self._gappy[chunk] = None

    def _lose(self, is_lost: Callable[[int], bool]) -> None:
        """Mark blocks that were asked for as missing.

        Args:
            is_lost: Tells by the number of the request.
        """
        for chunk, states in self._begun.items():
            for block, state in enumerate(states):
                if state > MISSING and is_lost(state):
                    self._set(chunk, block, MISSING)
                    self._gappy[chunk] = None

    def _next_gap(self) -> tuple[int, int] | None:
        """Return the first run of blocks to ask for, as first block of the blob and length."""
        while self._gappy:
            chunk = next(iter(self._gappy))
            states = self._begun[chunk]
            if MISSING in states:
                start = stop = states.index(MISSING)
                while stop < len(states) and states[stop] == MISSING:
                    stop += 1
                return chunk * self._per_chunk + start, stop - start
            del self._gappy[chunk]
        if not self._new:
            return None
        chunk = self._new.popleft()
        self.again(chunk)
        return chunk * self._per_chunk, len(self._begun[chunk])

    def _fitting(self, first: int, count: int, most_bytes: int) -> int:
        """Return the size of the largest piece that begins a run of blocks."""
        last = -(-self._size_bytes // self._block_bytes)
        fits = 1
        while (
            2 * fits <= self._per_chunk
            and 2 * fits * self._block_bytes <= most_bytes
            and first % (2 * fits) == 0
            and (count >= 2 * fits or first + count == last)
        ):
            fits *= 2
        return fits * self._block_bytes

    def _blocks_of(self, chunk: int) -> int:
        rest_bytes = self._size_bytes - chunk * self._chunk_bytes
        return -(-min(rest_bytes, self._chunk_bytes) // self._block_bytes)

    def _set(self, chunk: int, block: int, state: int) -> None:
        """Change the state of one block of a chunk that has been begun."""
        states = self._begun[chunk]
        old, states[block] = states[block], state
        if old > MISSING:
            self._under_way[old] -= 1
            if not self._under_way[old]:
                del self._under_way[old]
        if state > MISSING:
            self._under_way[state] += 1


def _even_part(whole_bytes: int, least_bytes: int) -> int:
    """Return a size halved as often as it stays even and at least as large as another."""
    while whole_bytes % 2 == 0 and whole_bytes // 2 >= least_bytes:
        whole_bytes //= 2
    return whole_bytes
