"""Decides which piece to send to which device next.

Each device has a lane: the pieces that it asked for, and those that are under way to it.

Rules:
- Pure: the caller says what happened and when, and does what is decided.
- Lanes take turns, a quantum of bytes each (deficit round robin without the deficit, Shreedhar and
  Varghese 1995): who asks for much waits for itself. A message counts, however little it carries.
- How much may be under way to one device grows with what it has acknowledged, as the congestion
  window of TCP does in slow start. What is under way to all together is bounded too, and with it
  the broker's memory; but a device with nothing under way always gets one piece. When half of that
  is taken, no device has more than its share.
- A device that is not heard of any more has nothing under way.
- An acknowledgement is the answer that the device has seen last: the broker keeps the order, so
  what was sent before it has come or is lost.
- What is under way is not sent again, until the device has waited for it in vain; what waits is not
  put into the lane twice. What the device does not wait for any more is dropped: it waits as long
  as answers come, and then for its patience.
- Agents that do not count their requests ask for a new chunk when one has come: of theirs, all but
  the last `WINDOW_OF_OLD` pieces count as acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

import msgspec

from wire.delivery import NOTHING_LEFT, ChunkRequest

QUANTUM_BYTES: Final = 128 * 1024
MESSAGE_BYTES: Final = 16 * 1024
"""What a message costs at least, in bytes of a turn: a small one takes the sender as long."""

FIRST_BYTES: Final = 256 * 1024
"""What may be under way to a device that has acknowledged nothing: more than a device asks for."""

MOST_BYTES_OF_ONE: Final = 4 * 1024 * 1024
MOST_BYTES: Final = 32 * 1024 * 1024
MOST_PIECES: Final = 1024
"""In one lane, waiting or under way. A device has a window of 2 MiB, in pieces of 8 KiB or more."""

GONE_S: Final = 120.0
"""What was sent longer ago does not count as under way any more."""

WINDOW_OF_OLD: Final = 8
PATIENCE_OF_OLD_S: Final = 20.0
"""They ask for all again every 2 s, and end a transfer after 30 s without a chunk."""

MOST_BYTES_OF_OLD: Final = WINDOW_OF_OLD * 128 * 1024
SILENT_PATIENCES: Final = 2
"""A device asks again when its patience has run out, or says that something came. After twice that
time it is not there."""

MIN_PATIENCE_S: Final = 0.1
MAX_PATIENCE_S: Final = 900.0
"""The longest of a device (`agent.install.fetch.flow`): where answers have taken so long."""


class Piece(NamedTuple):
    """A piece of a blob."""

    sha256: str
    piece_bytes: int
    position: int
    """Its index, counted in pieces of that size."""


class Wanted(NamedTuple):
    """A piece that waits in a lane."""

    piece: Piece
    size_bytes: int
    number: int | None
    """Of the request."""

    since_s: float
    asked_s: float
    """When it was asked for last."""

    patience_s: float


class Turn(NamedTuple):
    """What to send next."""

    device: str
    wanted: Wanted


class _Sent(NamedTuple):
    piece: Piece
    size_bytes: int
    number: int | None
    at_s: float


class _Lane(msgspec.Struct):
    """What one device asked for."""

    waiting: OrderedDict[Piece, Wanted] = msgspec.field(default_factory=OrderedDict)
    under_way: deque[_Sent] = msgspec.field(default_factory=deque)
    under_way_bytes: int = 0
    allowed_bytes: int = FIRST_BYTES
    number: int = 0
    """Of the last request."""

    heard_s: float = 0.0
    patience_s: float = PATIENCE_OF_OLD_S
    """When that came, and how long the device waits then."""

    sent_s: float = float("-inf")
    """When it was sent something last."""

    turn_bytes: int = 0
    """What it was sent in this turn."""


class Lanes:
    """The lanes of all devices that ask.

    Args:
        most_bytes: What may be under way to all together.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lanes: dict[str, _Lane] = {}
        self._ready: OrderedDict[str, None] = OrderedDict()
        """The devices that may be sent something, as far as they alone decide; by their turns."""

        self._idle: OrderedDict[str, None] = OrderedDict()
        """Those among them to which nothing is under way."""

        self.under_way_bytes = 0
        self.dropped = 0
        """How many pieces waited longer than the device waited for them."""

        self.spared = 0
        """How many pieces were asked for again while they waited or were under way."""

    def __len__(self) -> int:
        return len(self._lanes)

    def ask(self, request: ChunkRequest, sizes_bytes: tuple[int, ...], now_s: float) -> None:
        """Take a request into the lane of its device.

        Args:
            request: With checked bounds; without indices it only tells what has come.
            sizes_bytes: Of the pieces, in the order of its indices.
            now_s: Monotonic time.
        """
        lane = self._lanes.setdefault(request.device, _Lane())
        number = request.number if isinstance(request.number, int) else None
        if number is not None and number < lane.number:  # the agent has started again
            self._settle(lane, len(lane.under_way))
            lane.waiting.clear()
            lane.allowed_bytes = FIRST_BYTES
        lane.number = number or 0
        self._acknowledge(lane, request)
        patience_s = PATIENCE_OF_OLD_S
        if isinstance(request.patience_s, float):
            patience_s = min(max(request.patience_s, MIN_PATIENCE_S), MAX_PATIENCE_S)
        # A device doubles its patience when it has run out: half of it is what it has waited.
        recent_s = now_s - (patience_s / 2 if number is not None else patience_s)
        recent = {sent.piece for sent in lane.under_way if sent.at_s > recent_s}
        again = {Piece(request.sha256, request.chunk_bytes, each) for each in request.indices}
        self._forget(lane, again - recent)
        for index, size_bytes in zip(request.indices, sizes_bytes, strict=True):
            piece = Piece(request.sha256, request.chunk_bytes, index)
            if (waiting := lane.waiting.get(piece)) is not None:
                self.spared += 1
                lane.waiting[piece] = waiting._replace(asked_s=now_s, patience_s=patience_s)
            elif piece in recent:
                self.spared += 1
            elif len(lane.waiting) < MOST_PIECES:
                lane.waiting[piece] = Wanted(piece, size_bytes, number, now_s, now_s, patience_s)
        lane.heard_s, lane.patience_s = now_s, patience_s
        self._place(request.device, lane)

    def next(self, now_s: float) -> Turn | None:
        """Return what to send next, or None if nothing may be sent now.

        The caller says with `sent` that it did, or asks again.

        Args:
            now_s: Monotonic time.
        """
        turns = self._ready if self.under_way_bytes < self._most_bytes else self._idle
        share_bytes = self._most_bytes
        if 2 * self.under_way_bytes > self._most_bytes:
            share_bytes = max(FIRST_BYTES, self._most_bytes // len(self._lanes))
        left = 2 * len(turns)  # each may be at the end of its turn
        while turns and left:
            left -= 1
            device = next(iter(turns))
            lane = self._lanes[device]
            if self._drop_stale(lane, now_s):
                self._place(device, lane)
                continue
            if lane.turn_bytes >= QUANTUM_BYTES:
                lane.turn_bytes = 0
                turns.move_to_end(device)
                continue
            wanted = next(iter(lane.waiting.values()))
            if not lane.under_way:
                return Turn(device, wanted)
            together_bytes = self.under_way_bytes + wanted.size_bytes
            own_bytes = lane.under_way_bytes + wanted.size_bytes
            if together_bytes <= self._most_bytes and own_bytes <= share_bytes:
                return Turn(device, wanted)
            turns.move_to_end(device)
        return None

    def sent(self, turn: Turn, now_s: float) -> None:
        """Note that a piece was sent.

        Args:
            turn: As `next` returned it.
            now_s: Monotonic time.
        """
        lane, wanted = self._lanes.get(turn.device), turn.wanted
        if lane is None or lane.waiting.pop(wanted.piece, None) is None:
            return  # the agent has started again meanwhile
        lane.turn_bytes += max(wanted.size_bytes, MESSAGE_BYTES)
        lane.sent_s = now_s
        lane.under_way.append(_Sent(wanted.piece, wanted.size_bytes, wanted.number, now_s))
        lane.under_way_bytes += wanted.size_bytes
        self.under_way_bytes += wanted.size_bytes
        self._place(turn.device, lane)

    def sweep(self, now_s: float) -> None:
        """Forget what cannot be under way any more, and the lanes that are empty.

        Args:
            now_s: Monotonic time.
        """
        for device, lane in list(self._lanes.items()):
            gone = sum(1 for sent in lane.under_way if now_s - sent.at_s >= GONE_S)
            if now_s - max(lane.heard_s, lane.sent_s) >= SILENT_PATIENCES * lane.patience_s:
                gone = len(lane.under_way)
            if gone:
                self._settle(lane, gone)
                lane.allowed_bytes = FIRST_BYTES
            self._drop_stale(lane, now_s)
            self._place(device, lane)
            if not lane.waiting and not lane.under_way:
                del self._lanes[device]

    def _acknowledge(self, lane: _Lane, request: ChunkRequest) -> None:
        if not isinstance(request.number, int):
            known = {*lane.waiting, *(sent.piece for sent in lane.under_way)}
            asked = {Piece(request.sha256, request.chunk_bytes, each) for each in request.indices}
            beyond = len(known | asked) - WINDOW_OF_OLD
            self._settle(lane, min(max(beyond, 0), len(lane.under_way)))
            lane.allowed_bytes = MOST_BYTES_OF_OLD
            return
        if not isinstance(request.seen, tuple):
            return
        number, index = request.seen
        if index == NOTHING_LEFT:
            self._settle(lane, sum(1 for sent in lane.under_way if (sent.number or 0) <= number))
            for wanted in [each for each in lane.waiting.values() if (each.number or 0) <= number]:
                del lane.waiting[wanted.piece]
            lane.allowed_bytes = FIRST_BYTES
            return
        for place, sent in enumerate(lane.under_way):
            if (sent.number, sent.piece.position) == (number, index):
                came_bytes = self._settle(lane, place + 1)
                lane.allowed_bytes = min(lane.allowed_bytes + came_bytes, MOST_BYTES_OF_ONE)
                return

    def _forget(self, lane: _Lane, pieces: set[Piece]) -> None:
        """Note that pieces are not under way any more: the device waited for them in vain."""
        kept = [sent for sent in lane.under_way if sent.piece not in pieces]
        if len(kept) < len(lane.under_way):
            lost_bytes = lane.under_way_bytes - sum(sent.size_bytes for sent in kept)
            lane.under_way = deque(kept)
            lane.under_way_bytes -= lost_bytes
            self.under_way_bytes -= lost_bytes

    def _settle(self, lane: _Lane, count: int) -> int:
        """Forget the first pieces that were sent; return their size in bytes."""
        size_bytes = sum(lane.under_way.popleft().size_bytes for _ in range(count))
        lane.under_way_bytes -= size_bytes
        self.under_way_bytes -= size_bytes
        return size_bytes

    def _drop_stale(self, lane: _Lane, now_s: float) -> bool:
        """Drop what the device does not wait for any more; tell whether there was something."""
        before = self.dropped
        while lane.waiting:
            piece, wanted = next(iter(lane.waiting.items()))
            if now_s - max(wanted.asked_s, lane.sent_s) <= wanted.patience_s:
                break
            del lane.waiting[piece]
            self.dropped += 1
        return self.dropped > before

    def _place(self, device: str, lane: _Lane) -> None:
        """Put a device among those that may be sent something, or take it away."""
        is_idle = bool(lane.waiting) and not lane.under_way
        _keep(self._idle, device, wanted=is_idle)
        _keep(self._ready, device, wanted=is_idle or _has_room(lane))


def _keep(turns: OrderedDict[str, None], device: str, *, wanted: bool) -> None:
    if wanted:
        turns.setdefault(device)
    else:
        turns.pop(device, None)


def _has_room(lane: _Lane) -> bool:
    if not lane.waiting or len(lane.under_way) >= MOST_PIECES:
        return False
    size_bytes = next(iter(lane.waiting.values())).size_bytes
    return lane.under_way_bytes + size_bytes <= lane.allowed_bytes
