"""Spreads what a device sends to others over time, in turns that are fair by device.

Rules:
- Nothing is taken before its turn: a connection that ends while it waits has cost the others
  nothing, so who connects again and again gets one device's share.
- Of those that wait, the device goes first that has had the least (start-time fair queueing, Goyal,
  Vin and Cheng 1996).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wire.clock import Clock

LATE_S: Final = 0.05
"""A thread that wakes up so late makes good for it. What was not used for longer is lost."""

MAX_DEVICES: Final = 64
"""That are remembered beside those that wait."""


class _Turn:
    """Somebody who waits."""

    __slots__ = ("begin_bytes",)

    def __init__(self, begin_bytes: float) -> None:
        self.begin_bytes = begin_bytes


class Pace:
    """Gives one turn to send after another. For any thread.

    Args:
        bytes_per_s: How much may be sent by all together.
        clock: For the time that has passed.
    """

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_s = clock.monotonic_s()
        self._changed = threading.Condition()
        self._has_ended = False
        self._waiting: list[_Turn] = []
        self._begun_bytes = 0.0
        """Where the last turn began: what each device has had if all have had the same."""

        self._had_bytes: dict[str, float] = {}
        """By device: where its last turn ended, if that is beyond."""

    def turn(self, device: str, size_bytes: int, is_present: Callable[[], bool]) -> bool:
        """Wait for a turn to send, and take it.

        Args:
            device: Who is served.
            size_bytes: How much will be sent.
            is_present: Tells whether the turn is still wanted; `look_again` says that it may have
                changed. It must call nothing of this object.

        Returns:
            False if the turn is not wanted any more, or there are no more turns.
        """
        with self._changed:
            turn = _Turn(max(self._begun_bytes, self._had_bytes.get(device, 0.0)))
            self._waiting.append(turn)
            try:
                if not self._comes(turn, is_present):
                    return False
                self._take(turn, device, size_bytes)
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
            return True

    def look_again(self) -> None:
        """Let those who wait ask whether they still want their turns."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Give no more turns."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _comes(self, turn: _Turn, is_present: Callable[[], bool]) -> bool:
        """Wait until a turn may be taken; tell whether it is still wanted."""
        has_waited = False
        while not self._has_ended and is_present():
            wait_s: float | None = None  # until those before it have had their turns
            if turn is min(self._waiting, key=lambda each: each.begin_bytes):
                wait_s = self._free_s - self._clock.monotonic_s()
                if has_waited or wait_s <= 0:
                    return True
            has_waited = not self._changed.wait(wait_s)
        return False

    def _take(self, turn: _Turn, device: str, size_bytes: int) -> None:
        now_s = self._clock.monotonic_s()
        begin_s = self._free_s if now_s - self._free_s < LATE_S else now_s
        self._free_s = begin_s + size_bytes / self._bytes_per_s
        self._begun_bytes = max(self._begun_bytes, turn.begin_bytes)
        self._had_bytes.pop(device, None)
        self._had_bytes[device] = turn.begin_bytes + size_bytes
        beyond = [(d, had) for d, had in self._had_bytes.items() if had > self._begun_bytes]
        self._had_bytes = dict(beyond[-MAX_DEVICES:])
