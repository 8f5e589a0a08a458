"""The order of the requests that wait for one worker, and how long a turn takes. Times are numbers.

A request's rank is its arrival time plus `DEFER_S` for each level of its priority; the smallest
rank goes first. So urgent requests go first while the queue is short, and no request waits for
ever: one that is n levels more urgent but comes over n times `DEFER_S` later goes behind it.

Rules:
- As Triton has it, 1 is the most urgent priority.
- A full queue gives the place of its least urgent request to a more urgent one, and refuses others.
- A request that need not wait is not refused for its estimate: one slow run could refuse all, and
  no later run would correct the estimate. A request that must wait is refused only if half the
  estimated wait makes it late.
- Deferrable requests, which may be as long as they like, say nothing about how long others take.
- A turn that is not one joined run is short, so that urgent requests need not wait long.

Source:
    Triton Inference Server, "Extensions": schedule policy (`priority`, `timeout`).
"""

from __future__ import annotations

import bisect
import math
import threading
from operator import attrgetter
from typing import Final

import msgspec

from agent.serve.errors import WorkerBusyError
from agent.serve.frames import Asked, Reply
from wire.errors import FleetError

MOST_URGENT: Final = 1
LEAST_URGENT: Final = 9
"""Greater numbers count as this one: it bounds how long a request can be deferred."""

DEFERRABLE: Final = LEAST_URGENT + 1
"""Deferrable requests go after all others, and lose their place first."""

DEFAULT_PRIORITY: Final = 2
"""One level is above it and seven are below: clients mostly want to defer requests."""

DEFER_S: Final = 1.0
"""Longer than a full queue of quick requests takes, so that priority decides their order."""

JOINED_BYTES: Final = 8 * 1024 * 1024
"""Requests share a turn up to this size: copying more costs as much as a separate turn."""

AHEAD_BYTES: Final = 64 * 1024
"""So much fits into the socket beside the end of the turn that runs: sending it never waits for the
worker to read."""

MAX_RETRY_AFTER_S: Final = 60
SURELY: Final = 0.5
"""Share of the estimated wait that must make a request late before it is refused: the estimate
may be too long."""

TURN_S: Final = 0.1
"""Longest turn of requests that are not joined, with those that are sent ahead: sharing and sending
ahead save each a fraction of a millisecond."""

TURNS_BETWEEN_TRIALS: Final = 32
"""Now and then a turn is filled all the same, so that the worker tests whether joining pays."""

_WEIGHT: Final = 0.2
"""Weight of the newest turn in the mean duration: the mean forgets a turn in about ten turns."""

_RANK: Final = attrgetter("rank")


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class QueuedRequest(msgspec.Struct, kw_only=True, eq=False):
    """A request, and the thread that waits for its answer."""

    asked: Asked
    arrived_s: float
    priority: int = DEFAULT_PRIORITY
    """From `MOST_URGENT` to `LEAST_URGENT`, or `DEFERRABLE`."""

    deadline_s: float = math.inf
    size_bytes: int = 0
    unbatched: bool = False
    """Whether it must not share a turn: a worker ended while it had this request."""

    began_s: float | None = None
    """When its turn began; None while it waits."""

    outcome: Reply | FleetError | None = None
    leads: bool = False
    woken: threading.Lock = msgspec.field(default_factory=_held)
    """Held until the request has an outcome or gets the lead."""

    @property
    def rank(self) -> float:
        """The request with the smallest rank goes first."""
        return self.arrived_s + DEFER_S * self.priority

    def finish(self, outcome: Reply | FleetError) -> None:
        """Answer the request, or say why it is not answered."""
        self.outcome = outcome
        if self.woken.locked():  # already released if it just got the lead
            self.woken.release()


class RequestQueue:
    """Requests in the order of their turns, and how long a turn takes. Not for several threads.

    Args:
        places: Requests that may wait.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: list[QueuedRequest] = []
        self._each_s = 0.0
        """Moving mean of a turn's duration divided by its number of requests."""

        self._turns = 0
        self._joined = False
        """Whether the requests of the last shared turn were joined into fewer runs."""

        self._ahead: list[QueuedRequest] = []
        """Those that have been sent to the worker already, which runs others before them."""

        self._began_s = 0.0
        self._running = 0
        self._is_deferrable = False
        """Whether the requests of the present turn are deferrable."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._ahead)

    @property
    def head(self) -> QueuedRequest | None:
        """The request that is next."""
        return self._waiting[0] if self._waiting else None

    @property
    def usual_s(self) -> float:
        """How long a request takes on average; 0 before the first."""
        return self._each_s

    def enter(self, request: QueuedRequest) -> None:
        """Take a request that need not wait."""
        bisect.insort(self._waiting, request, key=_RANK)

    def wait(self, request: QueuedRequest, now_s: float) -> QueuedRequest | None:
        """Take a request that has to wait.

        Args:
            request: The request.
            now_s: The time.

        Returns:
            A less urgent request that lost its place to this one; None if none did.

        Raises:
            WorkerBusyError: There is no place for it, or its deadline would pass while it waits.
        """
        if request.deadline_s < now_s + SURELY * self.wait_s(request, now_s):
            raise WorkerBusyError(
                "too many requests wait for the model: this one would miss its deadline",
                retry_after_s=self.retry_after_s(now_s),
            )
        shed = None
        if len(self) >= self._places:
            shed = max(self._waiting, key=lambda r: (r.priority, r.rank), default=None)
            if shed is None or shed.priority <= request.priority:
                raise WorkerBusyError(
                    "too many requests wait for the model",
                    retry_after_s=self.retry_after_s(now_s),
                )
            self._waiting.remove(shed)
        self.enter(request)
        return shed

    def leave(self, request: QueuedRequest) -> bool:
        """Remove a request; False if it does not wait any more."""
        waits = request in self._waiting
        if waits:
            self._waiting.remove(request)
        return waits

    def begin(
        self, now_s: float, max_batch: int
    ) -> tuple[list[QueuedRequest], list[QueuedRequest]]:
        """Begin a turn.

        Args:
            now_s: The time.
            max_batch: Requests that may share it.

        Returns:
            The requests whose turn it is, and those whose deadline has passed.
        """
        if not self._fills(self._turns):
            max_batch = self._share(max_batch)
        chosen: list[QueuedRequest] = []
        late: list[QueuedRequest] = []
        size_bytes = 0
        self._is_deferrable = False
        while self._waiting and len(chosen) < max_batch:
            request = self._waiting[0]
            if request.deadline_s <= now_s:
                late.append(request)
            elif chosen and not self._fits(request, chosen[0], size_bytes):
                break
            else:
                request.began_s = now_s
                chosen.append(request)
                size_bytes += request.size_bytes
                self._is_deferrable |= request.priority == DEFERRABLE
            del self._waiting[0]
        self._began_s, self._running = now_s, len(chosen)
        return chosen, late

    def begin_ahead(self, now_s: float, max_batch: int) -> list[QueuedRequest]:
        """Choose requests to be sent to the worker while it runs others.

        None is chosen while joining pays or is about to be tried: then the next turn should hold as
        many as come until it begins. With those that run, they take no longer than a turn may.

        Args:
            now_s: The time.
            max_batch: Requests that may share a turn.

        Returns:
            The requests, which count as waiting until `begin_what_was_ahead`; often none.
        """
        tries_next = self._turns == 0 or self._fills(self._turns + 1)
        if max_batch > 1 and (self._joined or tries_next):
            return []
        # Then what is at the worker is short, so that urgent requests need not wait long.
        most = int(TURN_S / self._each_s) - self._running if self._each_s else 0
        begins_s, size_bytes = now_s + self._rest_s(now_s), 0
        for request in self._waiting[: max(0, min(most, max_batch))]:
            size_bytes += request.size_bytes
            if size_bytes > AHEAD_BYTES or request.priority == DEFERRABLE:
                break
            if request.deadline_s <= begins_s:
                break  # whether it is late is seen when it is its turn
            if self._ahead and not self._fits(request, self._ahead[0], size_bytes):
                break
            self._ahead.append(request)
        del self._waiting[: len(self._ahead)]
        return list(self._ahead)

    def begin_what_was_ahead(self, now_s: float) -> None:
        """Begin the turn of the requests that `begin_ahead` chose.

        Args:
            now_s: The time.
        """
        for request in self._ahead:
            request.began_s = now_s
        self._began_s, self._running = now_s, len(self._ahead)
        self._is_deferrable = False
        self._ahead = []

    def end(self, now_s: float, *, joined: bool) -> None:
        """End a turn.

        Args:
            now_s: The time.
            joined: Whether some of its requests were joined into one run.
        """
        if self._running == 0:
            return
        if not self._is_deferrable:
            each_s = (now_s - self._began_s) / self._running
            self._each_s += (_WEIGHT if self._each_s else 1.0) * (each_s - self._each_s)
        if self._running > 1:
            self._joined = joined
        self._turns += 1
        self._running = 0

    def empty(self) -> list[QueuedRequest]:
        """Remove and return all requests that wait here."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def wait_s(self, request: QueuedRequest, now_s: float) -> float:
        """Estimate how long a request would wait for its turn."""
        ahead = bisect.bisect_right(self._waiting, request.rank, key=_RANK)
        return self._rest_s(now_s) + (ahead + len(self._ahead)) * self._each_s

    def retry_after_s(self, now_s: float) -> int:
        """Return in how many seconds the queue should be empty, at least 1."""
        rest_s = self._rest_s(now_s) + len(self) * self._each_s
        return max(1, min(math.ceil(rest_s), MAX_RETRY_AFTER_S))

    def _rest_s(self, now_s: float) -> float:
        """Estimate how long the present turn will go on."""
        return max(0.0, self._began_s + self._running * self._each_s - now_s)

    @staticmethod
    def _fills(turn: int) -> bool:
        """Tell whether a turn is filled to see whether joining pays."""
        return turn % TURNS_BETWEEN_TRIALS == 0

    def _share(self, max_batch: int) -> int:
        """Return how many requests may share a turn that is not filled."""
        if self._joined:
            return max_batch
        return min(max_batch, max(1, int(TURN_S / self._each_s))) if self._each_s else max_batch

    @staticmethod
    def _fits(request: QueuedRequest, first: QueuedRequest, size_bytes: int) -> bool:
        """Tell whether a request may share the turn of another."""
        shares = not request.unbatched and not first.unbatched
        return shares and size_bytes + request.size_bytes <= JOINED_BYTES
