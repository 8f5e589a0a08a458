"""The inbox: a queue from the transport's thread to the one thread that handles messages.

Rules:
- The queue is bounded, in messages and in bytes. When it is full the transport waits, which slows
  the broker down; nothing is dropped here.
- If a message makes the handler fail, the message is logged and dropped, and the next one follows.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from wire.transport import Received

MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""10,000 greetings or reports take some 20 MiB. Messages may have 256 KiB each: without this bound,
those of one device could take 2.5 GiB."""

_log = logging.getLogger(__name__)


class Inbox:
    """A bounded queue and its consumer.

    Args:
        handle: Takes one message.
        max_waiting: How many messages may wait.
        max_waiting_bytes: How large they may be together; one alone may be larger.
    """

    def __init__(
        self,
        handle: Callable[[Received], None],
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._handle = handle
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[Received] = deque()
        self._waiting_bytes = 0
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._consume, name="inbox", daemon=True)

    def put(self, received: Received) -> None:
        """Put a message into the queue; wait while the queue is full."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._has_room_for(received))
            if self._stopping:
                return
            self._waiting.append(received)
            self._waiting_bytes += _size_bytes(received)
            self._changed.notify_all()

    def start(self) -> None:
        """Begin to take messages."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop taking messages; those in the queue are dropped and will be sent again."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _has_room_for(self, received: Received) -> bool:
        if not self._waiting:
            return True
        together_bytes = self._waiting_bytes + _size_bytes(received)
        return len(self._waiting) < self._max_waiting and together_bytes <= self._max_waiting_bytes

    def _next(self) -> Received | None:
        """Wait for the next message; None if the inbox stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._waiting)
            if self._stopping:
                return None
            received = self._waiting.popleft()
            self._waiting_bytes -= _size_bytes(received)
            self._changed.notify_all()
            return received

    def _consume(self) -> None:
        while (received := self._next()) is not None:
            try:
                self._handle(received)
            except Exception:  # noqa: BLE001 - one message must not stop the others
                _log.exception(
                    "the controller failed to handle a message on %s", received.topic[:200]
                )


def _size_bytes(received: Received) -> int:
    return len(received.topic) + len(received.payload)
