"""The inbox: a queue from the transport's thread to the one thread that handles messages.

Rules:
- The queue is bounded. When it is full the transport waits, which slows the broker down; nothing
  is dropped here.
- If a message makes the handler fail, the message is logged and dropped, and the next one follows.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from wire.transport import Received

MAX_WAITING = 10_000
STEP_S = 0.2
_log = logging.getLogger(__name__)


class Inbox:
    """A bounded queue and its consumer.

    Args:
        handle: Takes one message.
        max_waiting: Size of the queue.
    """

    def __init__(self, handle: Callable[[Received], None], max_waiting: int = MAX_WAITING) -> None:
        self._handle = handle
        self._queue: queue.Queue[Received] = queue.Queue(max_waiting)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._consume, name="inbox", daemon=True)

    def put(self, received: Received) -> None:
        """Put a message into the queue; wait while the queue is full."""
        while not self._stopping.is_set():
            try:
                self._queue.put(received, timeout=STEP_S)
            except queue.Full:
                continue
            return

    def start(self) -> None:
        """Begin to take messages."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop taking messages; those in the queue are dropped and will be sent again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _consume(self) -> None:
        while not self._stopping.is_set():
            try:
                received = self._queue.get(timeout=STEP_S)
            except queue.Empty:
                continue
            try:
                self._handle(received)
            except Exception:  # noqa: BLE001 - one message must not stop the others
                _log.exception(
                    "the controller failed to handle a message on %s", received.topic[:200]
                )
