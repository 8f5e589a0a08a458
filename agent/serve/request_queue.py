"""The queue before a worker: who is next, who cannot wait, who has to go. Pure: times are numbers.

A request's rank is when it came, plus `DEFER_S` for each level of its priority. So while the
queue is short the urgent always go first, and none is overtaken by others for ever: whoever comes
`DEFER_S` later for each level between them goes behind.

Rules:
- As Triton has it, 1 is the most urgent priority and 0 stands for the default.
- A full queue gives the place of its least urgent request to a more urgent one, and refuses others.
- No estimate refuses a request that need not wait. Were it otherwise, one slow run could have all
  refused, and nothing would ever correct the estimate.
- Only who comes too late even by half the estimate is refused for it.
- A turn is short, so that the urgent need not wait long for theirs, unless it is one joined run.

Source:
    Triton Inference Server, "Extensions": schedule policy (`priority`, `timeout`).
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from agent.serve.errors import DeadlineError, WorkerBusyError

MOST_URGENT: Final = 1
LEAST_URGENT: Final = 9
"""Greater numbers count as this one: it bounds how long a request can be deferred."""

DEFAULT_PRIORITY: Final = 2
"""One level is left above it and the rest below it: deferring is what most clients want."""

DEFER_S: Final = 1.0
"""Longer than a full queue of quick requests takes, so that there the order is strict."""

JOINED_BYTES: Final = 8 * 1024 * 1024
"""Requests are taken together up to here: copying more costs as much as a turn of one's own."""

MAX_RETRY_AFTER_S: Final = 60
SURELY: Final = 0.5
"""Share of the estimated wait that a request must not have the time for to be refused: the mean may
be that of slower times."""

TURN_S: Final = 0.1
"""Requests that are not joined share a turn only as long as this: sharing saves each of them the
fraction of a millisecond that the worker waits between turns."""

TURNS_BETWEEN_TRIALS: Final = 32
"""Now and then a turn is filled all the same, for the worker to see whether joining pays."""

_WEIGHT: Final = 0.2
"""Of the newest turn in the mean duration: it forgets in about ten turns."""

T = TypeVar("T", bound="Ticket")


def level_of(priority: int) -> int:
    """Return the level of a priority as clients give it: 0 is the default."""
    return min(priority, LEAST_URGENT) if priority else DEFAULT_PRIORITY


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A request that wants its turn."""

    arrived_s: float
    priority: int = DEFAULT_PRIORITY
    """From `MOST_URGENT` to `LEAST_URGENT`."""

    deadline_s: float = math.inf
    size_bytes: int = 0
    alone: bool = False
    """Whether it must not share a turn: a worker ended while it had this request."""

    @property
    def rank(self) -> float:
        """Smaller goes first."""
        return self.arrived_s + DEFER_S * self.priority


class RequestQueue(Generic[T]):
    """Requests in the order of their turns, and how long a turn takes. Not for several threads.

    Args:
        places: Requests that may wait.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: list[T] = []
        self._each_s = 0.0
        """Moving mean of a turn's duration for each of its requests."""

        self._turns = 0
        self._joined = False
        """Whether the requests of the last shared turn were joined into fewer runs."""

        self._began_s = 0.0
        self._running = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def head(self) -> T | None:
        """Who is next."""
        return self._waiting[0] if self._waiting else None

    def enter(self, ticket: T) -> None:
        """Take a request that need not wait."""
        bisect.insort(self._waiting, ticket, key=_rank)

    def wait(self, ticket: T, now_s: float) -> T | None:
        """Take a request that has to wait.

        Args:
            ticket: The request.
            now_s: The time.

        Returns:
            A less urgent one that has lost its place to it.

        Raises:
            WorkerBusyError: There is no place for it, or its time would pass while it waits.
        """
        if ticket.deadline_s < now_s + SURELY * self.wait_s(ticket, now_s):
            raise WorkerBusyError(
                "so many requests wait for the model that this one would come too late",
                retry_after_s=self.retry_after_s(now_s),
            )
        shed = None
        if len(self._waiting) >= self._places:
            shed = max(self._waiting, key=lambda t: (t.priority, t.rank), default=None)
            if shed is None or shed.priority <= ticket.priority:
                raise WorkerBusyError(
                    "too many requests wait for the model",
                    retry_after_s=self.retry_after_s(now_s),
                )
            self._waiting.remove(shed)
        self.enter(ticket)
        return shed

    def leave(self, ticket: T) -> bool:
        """Take a request out; False when it does not wait any more."""
        if ticket not in self._waiting:
            return False
        self._waiting.remove(ticket)
        return True

    def begin(self, now_s: float, most: int) -> tuple[list[T], list[T]]:
        """Begin a turn.

        Args:
            now_s: The time.
            most: Requests that may share it.

        Returns:
            The requests whose turn it is, and those whose time has passed.
        """
        most = self._share(most)
        chosen: list[T] = []
        late: list[T] = []
        size_bytes = 0
        while self._waiting and len(chosen) < most:
            ticket = self._waiting[0]
            if ticket.deadline_s <= now_s:
                late.append(ticket)
            elif chosen and not self._fits(ticket, chosen[0], size_bytes):
                break
            else:
                chosen.append(ticket)
                size_bytes += ticket.size_bytes
            del self._waiting[0]
        self._began_s, self._running = now_s, len(chosen)
        return chosen, late

    def end(self, now_s: float, *, joined: bool) -> None:
        """End a turn.

        Args:
            now_s: The time.
            joined: Whether some of its requests were joined into one run.
        """
        if self._running == 0:
            return
        each_s = (now_s - self._began_s) / self._running
        self._each_s += (_WEIGHT if self._each_s else 1.0) * (each_s - self._each_s)
        if self._running > 1:
            self._joined = joined
        self._turns += 1
        self._running = 0

    def empty(self) -> list[T]:
        """Take out all requests."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def wait_s(self, ticket: T, now_s: float) -> float:
        """Estimate how long a request would wait for its turn."""
        ahead = bisect.bisect_right(self._waiting, ticket.rank, key=_rank)
        return self._rest_s(now_s) + ahead * self._each_s

    def retry_after_s(self, now_s: float) -> int:
        """Return in how many seconds the queue should be empty, at least 1."""
        rest_s = self._rest_s(now_s) + len(self._waiting) * self._each_s
        return max(1, min(math.ceil(rest_s), MAX_RETRY_AFTER_S))

    def _rest_s(self, now_s: float) -> float:
        """Estimate how long the present turn will go on."""
        return max(0.0, self._began_s + self._running * self._each_s - now_s)

    def _share(self, most: int) -> int:
        """Return how many requests may share the next turn."""
        if self._joined or self._turns % TURNS_BETWEEN_TRIALS == 0:
            return most
        return min(most, max(1, int(TURN_S / self._each_s))) if self._each_s else most

    @staticmethod
    def _fits(ticket: T, first: T, size_bytes: int) -> bool:
        """Tell whether a request may share the turn of another."""
        shares = not ticket.alone and not first.alone
        return shares and size_bytes + ticket.size_bytes <= JOINED_BYTES


def check_time(ticket: Ticket, now_s: float) -> None:
    """Refuse a request whose time has passed.

    Args:
        ticket: The request.
        now_s: The time.

    Raises:
        DeadlineError: It has.
    """
    if ticket.deadline_s <= now_s:
        raise DeadlineError("the time for this request has passed")


def _rank(ticket: Ticket) -> float:
    return ticket.rank
