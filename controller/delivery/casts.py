"""Decides which blobs are sent once for many devices: the casts, and whose turn it is.

A cast is a topic to which the devices subscribe that wait for a blob; the broker copies each piece.

Rules:
- Pure: the caller says what happened and when, and does what is decided.
- A topic has a random name, and only a device that may read the blob is told of it.
- Casts take turns, a piece each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from controller.delivery.carousel import WAIT_S, Carousel, CastTurn
from wire.delivery import Cast, CastReport

LEAST_BYTES: Final = 1024 * 1024
"""A smaller blob has come before others have joined."""

KEPT_S: Final = 3600.0
"""A topic that nobody asked for or listened to for so long is forgotten."""

MAX_CASTS: Final = 1024
IDLE_S: Final = 1.0


class Casts:
    """All casts.

    Args:
        random_name: Makes names of topics that nobody can guess.
    """

    def __init__(self, random_name: Callable[[], str]) -> None:
        self._random_name = random_name
        self._by_name: OrderedDict[str, Carousel] = OrderedDict()
        self._by_blob: dict[str, Carousel] = {}
        self._turns: OrderedDict[str, None] = OrderedDict()
        """The casts to which somebody listens."""

    def offer(self, device: str, sha256: str, size_bytes: int, now_s: float) -> Cast | None:
        """Say where a blob comes to many, if others wait for it too.

        Args:
            device: Who asks; it may read the blob.
            sha256: The blob.
            size_bytes: Its size.
            now_s: Monotonic time.
        """
        if size_bytes < LEAST_BYTES:
            return None
        cast = self._by_blob.get(sha256)
        if cast is None:
            cast = Carousel(self._random_name(), sha256, size_bytes, now_s)
            self._by_blob[sha256] = self._by_name[cast.name] = cast
            while len(self._by_name) > MAX_CASTS:
                self._forget(next(iter(self._by_name)))
        self._by_name.move_to_end(cast.name)
        return Cast(topic=cast.name, wait_s=WAIT_S) if cast.ask(device, now_s) else None

    def report(self, report: CastReport, now_s: float) -> None:
        """Take what a device says of a cast; of one that it was not told of, nothing.

        Args:
            report: As received.
            now_s: Monotonic time.

        Raises:
            WireFormatError: It is out of bounds.
        """
        cast = self._by_name.get(report.topic)
        if cast is not None and cast.take(report, now_s):
            self._by_name.move_to_end(cast.name)
            self._turns.setdefault(cast.name)

    def next(self, now_s: float) -> CastTurn | None:
        """Return what to send next, or None if nothing may be sent now.

        Args:
            now_s: Monotonic time.
        """
        for name in list(self._turns):
            turn = self._by_name[name].next(now_s)
            if turn is not None:
                return turn
        return None

    def sent(self, turn: CastTurn, now_s: float) -> None:
        """Note that it was sent.

        Args:
            turn: As `next` returned it.
            now_s: Monotonic time.
        """
        cast = self._by_name.get(turn.name)
        if cast is None:
            return
        cast.sent(turn, now_s)
        self._turns.move_to_end(turn.name)
        if not turn.size_bytes:
            del self._turns[turn.name]

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing is to be done if no report comes."""
        return min((self._by_name[name].wait_s(now_s) for name in self._turns), default=IDLE_S)

    def sweep(self, now_s: float) -> None:
        """Forget what nobody asks for any more."""
        for name, cast in list(self._by_name.items()):
            if now_s - cast.touched_s < KEPT_S:
                break  # those that were touched last are last
            if name not in self._turns:
                self._forget(name)

    def _forget(self, name: str) -> None:
        cast = self._by_name.pop(name)
        self._by_blob.pop(cast.sha256)
        self._turns.pop(name, None)
