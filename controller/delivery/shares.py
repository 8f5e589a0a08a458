"""Decides whether a piece for one device or one for many is sent next. Pure.

Rule: as long as a device waits in a lane, casts send no more bytes than lanes. A message counts as
in `controller.delivery.lanes`, however little it carries.
"""

from __future__ import annotations

from controller.delivery.carousel import CastTurn
from controller.delivery.lanes import MESSAGE_BYTES, Turn


class Shares:
    """The shares of lanes and of casts."""

    def __init__(self) -> None:
        self._ahead_bytes = 0
        """What casts have sent more than the lanes, while these had something to send."""

    def choose(self, lane: Turn | None, cast: CastTurn | None) -> Turn | CastTurn | None:
        """Return which of two is sent next.

        Args:
            lane: What the lanes would send; None for nothing.
            cast: What the casts would send; None for nothing.
        """
        if lane is None:
            self._ahead_bytes = 0
            return cast
        return lane if cast is None or self._ahead_bytes > 0 else cast

    def sent(self, turn: Turn | CastTurn) -> None:
        """Note that it was sent."""
        if isinstance(turn, CastTurn):
            self._ahead_bytes += max(turn.size_bytes, MESSAGE_BYTES)
        else:
            size_bytes = max(turn.wanted.size_bytes, MESSAGE_BYTES)
            self._ahead_bytes = max(self._ahead_bytes - size_bytes, 0)
