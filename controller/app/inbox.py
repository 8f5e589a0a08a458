"""The inbox: queues from the transport's thread to the one thread that handles messages.

Rules:
- Each device has a queue of its own, and they take turns: who sends much waits for itself. Those
  who are not enrolled share one queue, because they name themselves.
- The messages of one sender stay in their order.
- The queues are bounded together, in messages and in bytes. When they are full the transport waits,
  which slows the broker down.
- Each is bounded by itself, far above what a device sends that obeys the protocol. What comes
  beyond is dropped and logged: whoever needs an answer asks again.
- What waits is handed over together, up to a bound, so that one transaction can store much of it.
  After each time the inbox may gather for a moment, unless much waits already: so a message that
  comes alone is handled at once, and of many those that come within that moment together.
- Messages that may wait, such as telemetry, have queues of their own and gather for longer: nobody
  waits for them, and to store one alone costs as much as to store many. What a device sends of them
  may so be overtaken by what else it sends.
- If a message makes the handler fail, the message is logged and dropped, and the next one follows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wire.topics import sender_of
from wire.transport import Received

MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""10,000 greetings or reports take some 20 MiB. Messages may have 256 KiB each: without this bound,
those of one device could take 2.5 GiB."""

TAKEN_AT_ONCE = 200
TAKEN_AT_ONCE_BYTES = 4 * 1024 * 1024
"""What is handed over together; a message that answers something waits for that much at most."""

SHARE = 0.1
"""How much of that one sender may fill. A device has a mebibyte of telemetry on the way at most,
and few other messages."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Queue:
    """What one sender has waiting."""

    messages: deque[Received] = field(default_factory=deque)
    size_bytes: int = 0
    has_dropped: bool = False


_Queues = OrderedDict[str, _Queue]


def each(handle: Callable[[Received], None]) -> Callable[[Sequence[Received]], None]:
    """Return a handler of several messages that hands them over one by one.

    Args:
        handle: Takes one message; if it fails, that is logged.
    """

    def handle_all(received: Sequence[Received]) -> None:
        for one in received:
            try:
                handle(one)
            except Exception:  # noqa: BLE001 - one message must not stop the others
                _log.exception("the controller failed to handle a message on %s", one.topic[:200])

    return handle_all


class Inbox:
    """Bounded queues and their consumer.

    Args:
        handle: Takes messages in their order.
        max_waiting: How many messages may wait.
        max_waiting_bytes: How large they may be together; one alone may be larger.
        share: Which share of both one sender may fill.
        gather_s: For how long messages gather after some were handed over.
        is_patient: Tells by its topic whether a message may wait.
        patience_s: How long such messages wait at most after others of them were handed over.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[Received]], None],
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        share: float = SHARE,
        gather_s: float = 0.0,
        is_patient: Callable[[str], bool] = lambda _topic: False,
        patience_s: float = 0.0,
    ) -> None:
        self._handle = handle
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._max_of_one = share * max_waiting
        self._max_bytes_of_one = share * max_waiting_bytes
        self._queues: _Queues = OrderedDict()
        """The queues that are not empty, in the order of their turns."""

        self._is_patient, self._patience_s = is_patient, patience_s
        self._patient: _Queues = OrderedDict()
        """The same of messages that may wait."""

        self._due_s = 0.0
        """When they are handed over, by the monotonic clock."""

        self._waiting = 0
        self._waiting_bytes = 0
        self._gather_s = gather_s
        self._stopping = False
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._consume, name="inbox", daemon=True)

    def put(self, received: Received) -> None:
        """Put a message into its sender's queue; wait while all queues together are full."""
        sender = sender_of(received.topic)
        queues = self._patient if self._is_patient(received.topic) else self._queues
        with self._changed:
            if self._is_too_much(queues.get(sender), sender, received):
                return
            self._changed.wait_for(lambda: self._stopping or self._has_room_for(received))
            if self._stopping:
                return
            queue = queues.setdefault(sender, _Queue())
            queue.messages.append(received)
            queue.size_bytes += _size_bytes(received)
            self._waiting += 1
            self._waiting_bytes += _size_bytes(received)
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return self._waiting

    def start(self) -> None:
        """Begin to take messages."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop taking messages; those in the queue are dropped and will be sent again."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _is_too_much(self, queue: _Queue | None, sender: str, received: Received) -> bool:
        """Tell whether a sender has more waiting than a device ever has; log that once."""
        if queue is None or (
            len(queue.messages) < self._max_of_one
            and queue.size_bytes + _size_bytes(received) <= self._max_bytes_of_one
        ):
            return False
        if not queue.has_dropped:
            queue.has_dropped = True
            _log.warning(
                "%s more than the controller handles: messages are dropped",
                f"device {sender} sends" if sender else "those who are not enrolled send",
            )
        return True

    def _has_room_for(self, received: Received) -> bool:
        if not self._waiting:
            return True
        together_bytes = self._waiting_bytes + _size_bytes(received)
        return self._waiting < self._max_waiting and together_bytes <= self._max_waiting_bytes

    def _next(self) -> list[Received]:
        """Wait for messages and take those whose turn it is; none if the inbox stops."""
        with self._changed:
            while not (self._stopping or self._queues or self._is_due()):
                left_s = self._due_s - time.monotonic()
                self._changed.wait(max(left_s, 0.0) if self._patient else None)
            if self._stopping:
                return []
            taken = self._taken(self._queues)
            if self._is_due():
                taken += self._taken(self._patient)
                self._due_s = time.monotonic() + self._patience_s
            self._changed.notify_all()
            return taken

    def _is_due(self) -> bool:
        """Tell whether messages that may wait have done so for long enough, or are many."""
        return bool(self._patient) and (
            len(self._patient) >= TAKEN_AT_ONCE or time.monotonic() >= self._due_s
        )

    def _taken(self, queues: _Queues) -> list[Received]:
        """Take the messages whose turn it is."""
        taken: list[Received] = []
        left_bytes = TAKEN_AT_ONCE_BYTES
        while queues and len(taken) < TAKEN_AT_ONCE and left_bytes > 0:
            taken.append(self._pop(queues))
            left_bytes -= _size_bytes(taken[-1])
        return taken

    def _pop(self, queues: _Queues) -> Received:
        """Take the next message of the sender whose turn it is."""
        sender, queue = queues.popitem(last=False)
        received = queue.messages.popleft()
        queue.size_bytes -= _size_bytes(received)
        if queue.messages:
            queues[sender] = queue
        self._waiting -= 1
        self._waiting_bytes -= _size_bytes(received)
        return received

    def _consume(self) -> None:
        while received := self._next():
            self._handle(received)
            if self._gather_s and self._waiting < TAKEN_AT_ONCE:
                self._stopped.wait(self._gather_s)


def _size_bytes(received: Received) -> int:
    return len(received.topic) + len(received.payload)
