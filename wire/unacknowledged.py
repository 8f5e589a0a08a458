"""The messages that a broker has not acknowledged yet, and what it said of those that it has.

Rules:
- A broker acknowledges in the order in which the messages came.
- Any thread may ask.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple, Protocol

OVERHEAD_BYTES = 1024
"""What a client keeps for a message beside its payload, roughly."""


class Receipt(Protocol):
    """What a client gives for a message that it sends."""

    mid: int
    """The number of the packet."""

    def is_published(self) -> bool:
        """Tell whether the broker has acknowledged it."""
        ...


class _Sent(NamedTuple):
    topic: str
    receipt: Receipt
    size_bytes: int


class Unacknowledged:
    """What was sent on a connection.

    Args:
        most_bytes: How much may wait at one time.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._sent: deque[_Sent] = deque()
        self._topics: dict[int, str] = {}
        """By the number of the packet, which is used again only after it was acknowledged."""

        self._bytes = 0
        self.denied: set[str] = set()
        """Topics of messages that the broker refused since it was connected."""

        self.unheard: set[str] = set()
        """Topics to which nobody had subscribed, as the broker last said."""

    def has_room(self, payload: bytes) -> bool:
        """Tell whether a message may be sent now."""
        with self._lock:
            self._forget_acknowledged()
            return self._bytes + len(payload) + OVERHEAD_BYTES <= self._most_bytes

    def add(self, topic: str, payload: bytes, receipt: Receipt) -> None:
        """Note a message that was sent.

        Args:
            topic: Its topic.
            payload: Its content.
            receipt: What the client gave for it.
        """
        size_bytes = len(payload) + OVERHEAD_BYTES
        with self._lock:
            self._sent.append(_Sent(topic, receipt, size_bytes))
            self._topics[receipt.mid] = topic
            self._bytes += size_bytes

    def is_waiting(self, topic: str) -> bool:
        """Tell whether a message to a topic is not acknowledged yet."""
        with self._lock:
            self._forget_acknowledged()
            return any(sent.topic == topic for sent in self._sent)

    def answered(self, mid: int, *, denied: bool, unheard: bool) -> None:
        """Note what the broker says of a message.

        Args:
            mid: The number of its packet.
            denied: Whether the broker refuses it.
            unheard: Whether nobody had subscribed to its topic.
        """
        with self._lock:
            topic = self._topics.pop(mid, None)
            if topic is None:
                return
            if denied:
                self.denied.add(topic)
            elif unheard:
                self.unheard.add(topic)
            else:
                self.unheard.discard(topic)

    def begin(self) -> None:
        """Forget what an earlier connection was told.

        What it did not acknowledge goes out again with the same numbers.
        """
        self.denied.clear()
        self.unheard.clear()

    def _forget_acknowledged(self) -> None:
        while self._sent and self._sent[0].receipt.is_published():
            self._bytes -= self._sent.popleft().size_bytes
