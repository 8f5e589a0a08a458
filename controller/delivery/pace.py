"""Decides how fast a blob is cast to many devices, from what they report.

Rules:
- Pure: the caller says what happened and when, and does what is decided.
- The pace is what more than half of the devices keep up with. TFMCC (RFC 4654) and NORM (RFC 5740)
  follow the slowest receiver; here who is slower leaves, and gets the blob by itself.
- It doubles as long as they keep up (slow start, RFC 5681), then it grows by steps and shrinks by a
  factor (additive increase, multiplicative decrease: Chiu and Jain 1989). It changes once in a
  round trip, when most have reported of what was sent after the change before, and grows to no more
  than twice what most have got meanwhile.
- The signs of too much are delay, as in LEDBAT (RFC 6817), and losses: what the broker drops for a
  device that is too far behind.
- Only so much is sent beyond what most have reported: without reports nothing is sent.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

LEAST_PIECE_BYTES, MOST_PIECE_BYTES = 8 * 1024, 32 * 1024
PIECES_PER_S: Final = 16
"""So that the first reports tell something, and slow links have one soon; no more where it goes
fast, because each message costs time. The broker copies a hundred for a slow device."""

START_BYTES_PER_S: Final = 128 * 1024
LEAST_BYTES_PER_S: Final = 16 * 1024
STEP_BYTES_PER_S: Final = 128 * 1024
STEP_SHARE: Final = 0.25
"""On slow links a step is no more than this share of the pace."""

DECREASE: Final = 0.7
"""As on the device: RFC 9438, 4.6."""

SLOW_START_DECREASE: Final = 0.5
TARGET_LAG_S: Final = 0.5
"""How long a piece may wait on the way to most: as `agent.install.fetch.flow`."""

LOST_SHARE: Final = 0.1
"""Of what was sent. The broker drops much at once; a way may lose a little without being full."""

GROWTH_PIECES: Final = 4
"""What most must have got since the last change, so that the rate can be told."""

LEAST_S: Final = 0.1
"""Between two changes. Reports come by turns, so a faster way shows nothing more."""

CATCH_UP_S: Final = 0.1
"""What the sender was late by, and may send at once."""

SAMPLE: Final = 32
"""How many devices are looked at: those that reported last. With many, each reports seldom."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""What may be under way to all: the broker copies for each what it writes to a connection."""

LEAST_WINDOW_BYTES, MOST_WINDOW_BYTES = 256 * 1024, 4 * 1024 * 1024


class _Word(msgspec.Struct):
    """What a device said last."""

    position: int
    lag_s: float = 0.0
    has_lost: bool = False
    is_fresh: bool = False
    """Whether it has got something that was sent after the last change."""


class Pace:
    """The pace of one cast.

    Args:
        position: What was published before it.
        now_s: Monotonic time.
    """

    def __init__(self, position: int, now_s: float) -> None:
        self.bytes_per_s: float = START_BYTES_PER_S
        self.listeners = 0
        """How many devices listen, whether they have reported or not."""

        self._is_slow_start = True
        self._published = position
        self._due_s = now_s
        self._words: OrderedDict[str, _Word] = OrderedDict()
        self._mark = position
        """What was published when the pace was changed last."""

        self._sent_before = position
        """What was published when the pace was judged last."""

        self._had = position
        """What most had got then."""

        self._judged_s = now_s

    @property
    def piece_bytes(self) -> int:
        """How large pieces are now."""
        size_bytes = MOST_PIECE_BYTES
        while size_bytes > LEAST_PIECE_BYTES and size_bytes * PIECES_PER_S > self.bytes_per_s:
            size_bytes //= 2
        return size_bytes

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing may be sent; infinite until somebody reports.

        Args:
            now_s: Monotonic time.
        """
        window_bytes = MOST_BYTES // max(self.listeners, 1)
        window_bytes = min(max(window_bytes, LEAST_WINDOW_BYTES), MOST_WINDOW_BYTES)
        if self._published - self._most_have() >= window_bytes:
            return float("inf")
        return max(self._due_s - now_s, 0.0)

    def sent(self, size_bytes: int, now_s: float) -> None:
        """Note that so many bytes were sent."""
        self._published += size_bytes
        self._due_s = max(self._due_s, now_s - CATCH_UP_S) + size_bytes / self.bytes_per_s

    def heard(
        self, device: str, position: int, lag_s: float, lost_bytes: int, now_s: float
    ) -> None:
        """Take what a device reports.

        Args:
            device: Who reports.
            position: How much of what was published it has seen or lost.
            lag_s: How long the last piece waited on the way.
            lost_bytes: What was lost since its report before.
            now_s: Monotonic time.
        """
        before = self._words.pop(device, None)
        came_bytes = position - before.position if before is not None else 0
        self._words[device] = _Word(
            position=position,
            lag_s=lag_s,
            has_lost=lost_bytes > 0 and lost_bytes >= LOST_SHARE * came_bytes,
            is_fresh=position > self._mark,
        )
        if len(self._words) > SAMPLE:
            self._words.popitem(last=False)
        fresh = sum(word.is_fresh for word in self._words.values())
        if 2 * fresh > min(self.listeners, SAMPLE) and now_s - self._judged_s >= LEAST_S:
            self._judge(now_s)

    def gone(self, device: str) -> None:
        """Note that a device does not listen any more."""
        self._words.pop(device, None)

    def _most_have(self) -> int:
        """Return what more than half of the devices have, or one of them at least."""
        positions = sorted((word.position for word in self._words.values()), reverse=True)
        return positions[len(positions) // 2] if positions else self._had

    def _judge(self, now_s: float) -> None:
        words = self._words.values()
        half = len(words) // 2
        lag_s = sorted(word.lag_s for word in words)[half]
        have_lost = sum(word.has_lost for word in words) > half
        elapsed_s = max(now_s - self._judged_s, LEAST_S)
        was_used = self._published - self._sent_before >= self.bytes_per_s * elapsed_s / 2
        got = self._most_have()
        got_bytes = got - self._had
        before_bytes_per_s = self.bytes_per_s
        if lag_s > TARGET_LAG_S or have_lost:
            factor = SLOW_START_DECREASE if self._is_slow_start else DECREASE
            less = min(factor * self.bytes_per_s, got_bytes / elapsed_s)
            self.bytes_per_s = max(less, LEAST_BYTES_PER_S)
            self._is_slow_start = False
        elif got_bytes < GROWTH_PIECES * self.piece_bytes:
            return
        elif was_used and self._is_slow_start:
            most = max(self.bytes_per_s, 2 * (got_bytes - self.piece_bytes) / elapsed_s)
            self.bytes_per_s = min(2 * self.bytes_per_s, most)
        elif was_used:
            self.bytes_per_s += min(STEP_BYTES_PER_S, STEP_SHARE * self.bytes_per_s)
        self._had, self._sent_before, self._judged_s = got, self._published, now_s
        if self.bytes_per_s != before_bytes_per_s:
            self._mark = self._published
            for word in words:
                word.is_fresh = False
