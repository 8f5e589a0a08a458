"""Decides what to keep of a cast, what to report, and when to stop listening.

Rules:
- Pure: the caller says what came and when, and does what is decided.
- A device listens to one round at most, and to the chunk again in which it joined: what it then
  lacks was lost.
- A device that falls behind leaves: the controller casts as fast as most can hear. What is still on
  its way to it is kept all the same.
- Few chunks are ever incomplete, because the pieces of one follow one another.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final, Literal, NamedTuple

from wire.delivery import CastPiece

PATIENCE_S: Final = 5.0
"""So long a device that has heard something waits for more."""

BEHIND_S: Final = 5.0
"""How much longer than the quickest piece one may take. The pace has been changed before that where
most are late."""

QUIET_INTERVALS: Final = 4
QUIET_LEAST_S, QUIET_MOST_S = 0.5, 5.0
"""When a device has left, nothing is on its way any more if nothing comes for so long."""

REPORT_S: Final = 0.2
"""Until the controller says."""

MAX_BEGUN: Final = 4

End = Literal["", "over", "round", "silence", "behind"]


class Ready(NamedTuple):
    """A chunk of which all pieces have come; nobody has checked it."""

    chunk: int
    data: bytes


class Listening:
    """One blob that may come by a cast.

    Args:
        size_bytes: Its size.
        chunk_bytes: Size of its chunks.
        wait_s: How long to wait for the first piece.
        phase: From 0 to 1, random: so that devices do not all report at the same time.
        now_s: Monotonic time.
    """

    def __init__(
        self, size_bytes: int, chunk_bytes: int, *, wait_s: float, phase: float, now_s: float
    ) -> None:
        self._size_bytes = size_bytes
        self._chunk_bytes = chunk_bytes
        self._patience_s = wait_s
        self._phase = phase
        self._heard_s = now_s
        self._interval_s = QUIET_LEAST_S
        self._first: int | None = None
        self._least_delay_s = float("inf")
        self._report_s = REPORT_S
        self._due_s = now_s
        self._begun: OrderedDict[int, dict[int, bytes]] = OrderedDict()
        self._end: End = ""
        self.position: int | None = None
        """How far the cast has come; None before the first piece."""

        self.lag_s = 0.0
        self.lost_bytes = 0

    def take(self, piece: CastPiece, now_s: float) -> Ready | None:
        """Take a piece; return the chunk that it completes, if it does.

        Args:
            piece: As it came.
            now_s: When it came, monotonic.
        """
        if not (math.isfinite(piece.at_s) and math.isfinite(piece.report_s)):
            return None  # no controller of ours
        size_bytes = len(piece.data)
        before = piece.position if self.position is None else self.position
        if piece.position < before:
            return None  # sent twice, or the controller began anew
        if not size_bytes:
            self._end = "over"
            return None
        self._report_s = min(max(piece.report_s, REPORT_S), PATIENCE_S)
        if self._first is None:
            self._first = piece.position
            self._due_s = now_s + self._phase * self._report_s
        self.lost_bytes += piece.position - before
        self.position = piece.position + size_bytes
        delay_s = now_s - piece.at_s
        self._least_delay_s = min(self._least_delay_s, delay_s)
        self.lag_s = delay_s - self._least_delay_s
        self._interval_s = now_s - self._heard_s
        self._heard_s, self._patience_s = now_s, PATIENCE_S
        if self.position - self._first >= self._size_bytes + self._chunk_bytes:
            self._end = self._end or "round"
        elif self.lag_s >= BEHIND_S:
            self._end = self._end or "behind"
        return self._joined(piece)

    def end(self, now_s: float) -> End:
        """Return why not to listen any more; empty to go on.

        Args:
            now_s: Monotonic time.
        """
        if not self._end and now_s - self._heard_s >= self._patience_s:
            self._end = "silence"
        return self._end

    def is_quiet(self, now_s: float) -> bool:
        """Tell whether nothing is on its way to a device that has left."""
        quiet_s = min(max(QUIET_INTERVALS * self._interval_s, QUIET_LEAST_S), QUIET_MOST_S)
        return self._end != "behind" or now_s - self._heard_s >= quiet_s

    def must_report(self, now_s: float) -> bool:
        """Tell whether a report is due, which the caller then sends."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._report_s
        return True

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing is to be done if nothing comes."""
        return max(self._due_s - now_s, 0.0)

    def _joined(self, piece: CastPiece) -> Ready | None:
        """Keep a piece; return its chunk if it is whole."""
        index, within = divmod(piece.offset, self._chunk_bytes)
        chunk_bytes = min(self._chunk_bytes, self._size_bytes - index * self._chunk_bytes)
        if piece.offset < 0 or within + len(piece.data) > chunk_bytes:
            return None
        pieces = self._begun.setdefault(index, {})
        pieces[within] = piece.data
        held_bytes = sum(len(data) for data in pieces.values())
        # After the last one the others have come or are lost; and no pieces of ours overlap.
        if within + len(piece.data) == chunk_bytes or held_bytes > chunk_bytes:
            del self._begun[index]
            data = b"".join(pieces[each] for each in sorted(pieces))
            return Ready(index, data) if len(data) == chunk_bytes else None
        if len(self._begun) > MAX_BEGUN:
            self._begun.popitem(last=False)
        return None
