"""Decides which pieces of a blob to ask for now, from what has come and how long it took.

Rules:
- Pure: the caller says what happened and when, and does what is decided.
- The device asks when half a window has come, or 256 KiB, and at the latest 0.1 s after something
  came: each request tells the controller what has come, and it waits for that.
- When nothing comes within the patience, the device asks for one smallest piece again, whose answer
  shows what was lost. To ask for all at once would fill a slow link with copies.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from agent.install.fetch.flow import MIN_PIECE_BYTES, Flow
from agent.install.fetch.pieces import Asked, Pieces
from wire.delivery import MAX_CHUNK_INDICES

ASK_BYTES: Final = 256 * 1024
ASK_S: Final = 0.1

MAX_REQUESTS: Final = 512
"""Requests whose answers may still come; older ones are taken for lost."""


class Request(NamedTuple):
    """What to ask for now; without indices it only tells what has come."""

    number: int
    piece_bytes: int
    indices: tuple[int, ...]
    patience_s: float


class Place(NamedTuple):
    """Where an answer belongs."""

    number: int
    """Of the request that it answers."""

    offset_bytes: int


class Asking:
    """The requests for one blob.

    Args:
        flow: The window and the patience, which outlive the blob.
        pieces: The pieces of the blob.
        size_bytes: Size of the blob.
    """

    def __init__(self, flow: Flow, pieces: Pieces, size_bytes: int) -> None:
        self._flow = flow
        self._pieces = pieces
        self._size_bytes = size_bytes
        self._grids: OrderedDict[int, int] = OrderedDict()
        """By the number of a request: the size of the pieces that it counts in."""

        self._timer_s = 0.0
        self._asked_s = float("-inf")
        self._has_come = False
        """Whether something came since the last request."""

    def next(self, now_s: float) -> Request | None:
        """Return what to ask for now, or None.

        Args:
            now_s: Monotonic time.
        """
        under_way_bytes = self._pieces.under_way_bytes
        window_bytes = self._flow.window_bytes
        number = self._flow.last + 1
        if under_way_bytes and now_s >= self._timer_s + self._flow.patience_s:
            self._flow.ran_out()
            return self._request(number, self._pieces.probe(number), now_s)
        room_bytes = window_bytes - under_way_bytes
        is_due = self._has_come and now_s - self._asked_s >= ASK_S
        asked = None
        if room_bytes >= min(window_bytes // 2, ASK_BYTES) or (is_due and room_bytes > 0):
            asked = self._pieces.ask(number, self._flow.piece_bytes, room_bytes, MAX_CHUNK_INDICES)
        if asked is None and is_due:
            self._asked_s, self._has_come = now_s, False
            return self.thanks()
        return self._request(number, asked, now_s, is_timed=under_way_bytes == 0)

    def thanks(self) -> Request:
        """Return the request that only tells what has come."""
        return Request(self._flow.last, MIN_PIECE_BYTES, (), self._flow.patience_s)

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing is to be done if nothing comes."""
        due_s = self._timer_s + self._flow.patience_s
        if self._has_come:
            due_s = min(due_s, self._asked_s + ASK_S)
        return max(due_s - now_s, 0.0)

    def place(self, number: int | None, index: int, size_bytes: int) -> Place | None:
        """Return where an answer belongs, or None if it answers no request.

        Args:
            number: Of the request that it answers; None from controllers that do not say.
            index: As in the answer.
            size_bytes: Of its data.
        """
        own = {self._grids.get(number, 0)} if number is not None else set(self._grids.values())
        for piece_bytes in own:
            offset_bytes = index * piece_bytes
            fits = size_bytes == piece_bytes or offset_bytes + size_bytes == self._size_bytes
            asked_in = self._pieces.asked_in(offset_bytes) if number is None else number
            if piece_bytes and fits and index >= 0 and asked_in is not None:
                return Place(asked_in, offset_bytes)
        return None

    def arrived(self, place: Place, size_bytes: int, waited_s: float, now_s: float) -> bool | None:
        """Note an answer.

        Args:
            place: Where it belongs.
            size_bytes: Of its data.
            waited_s: How long the request waited at the controller.
            now_s: Monotonic time.

        Returns:
            Whether its chunk is complete now; None if it is not needed.
        """
        self._timer_s = now_s
        done = self._pieces.arrived(place.offset_bytes, size_bytes)
        if done is not None:
            self._flow.arrived(place.number, size_bytes, waited_s, now_s)
        self._flow.settled(min(self._pieces.oldest or place.number, place.number))
        return done

    def settle(self, number: int) -> None:
        """Note that an answer to this request shows that no earlier one will be answered."""
        self._has_come = True
        if self._pieces.lose_before(number):
            self._flow.lost()
        self._flow.settled(number)
        while self._grids and next(iter(self._grids)) < number:
            self._grids.popitem(last=False)

    def restart(self) -> None:
        """Note that the connection is new: nothing is under way, and the way is unknown."""
        self._pieces.lose_all()
        self._flow.reset()

    def _request(
        self, number: int, asked: Asked | None, now_s: float, *, is_timed: bool = True
    ) -> Request | None:
        if asked is None:
            return None
        self._asked_s, self._has_come = now_s, False
        if is_timed:
            self._timer_s = now_s
        self._flow.asked(number, now_s)
        self._grids[number] = asked.piece_bytes
        if len(self._grids) > MAX_REQUESTS:
            self._grids.popitem(last=False)
        return Request(number, asked.piece_bytes, asked.indices, self._flow.patience_s)
