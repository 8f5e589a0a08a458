"""Where requests wait for a worker that answers for one thread at a time.

There is no thread of its own here. The first request to come leads: its thread asks the worker for
itself and for those that wait when its turn begins, hands out the answers and leaves the lead to
who is next. So a request that finds the worker idle is answered without another thread waking.

Rules:
- Whoever leads passes the lead on, whatever happens to it.
- Everyone who was let in gets an answer or an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from agent.serve.errors import (
    DeadlineError,
    WorkerBusyError,
    WorkerCrashedError,
    WorkerError,
    WorkerGoneError,
)
from agent.serve.frames import Asked, Reply
from agent.serve.modes import Turn
from agent.serve.request_queue import RequestQueue, Ticket, check_time
from wire.clock import Clock
from wire.errors import FleetError

LATE: Final = "the time for this request passed while it waited"
SHED: Final = "more urgent requests took the place of this one"
BROKEN_OFF: Final = "the conversation with the worker broke off"


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(slots=True, kw_only=True, eq=False)
class Waiter(Ticket):
    """A request, and the thread that waits for its answer."""

    asked: Asked
    outcome: Reply | FleetError | None = None
    leads: bool = False
    woken: threading.Lock = field(default_factory=_held)
    """Held until there is an outcome or the lead to be taken."""

    def finish(self, outcome: Reply | FleetError) -> None:
        """Answer the request, or say why it is not answered."""
        self.outcome = outcome
        if self.woken.locked():  # it is not when the lead came just before
            self.woken.release()


Converse: TypeAlias = Callable[[Sequence[Waiter], Turn], None]
"""Asks the worker and finishes the waiters. Raises a WorkerError when the worker has ended."""


class Desk:
    """Lets requests take turns.

    Args:
        converse: Asks the worker.
        places: Requests that may wait.
        clock: For deadlines.
    """

    def __init__(self, converse: Converse, places: int, clock: Clock) -> None:
        self._converse = converse
        self._clock = clock
        self._lock = threading.Lock()
        self._joined = threading.Condition(self._lock)
        self._queue: RequestQueue[Waiter] = RequestQueue(places)
        self._led = False
        self._closed = ""
        """Why nobody is let in any more; empty while the desk is open."""

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn now."""
        return len(self._queue)

    def ask(self, waiter: Waiter, turn: Turn) -> Reply:
        """Have a request answered.

        Args:
            waiter: The request.
            turn: What holds if it leads.

        Returns:
            The answer.

        Raises:
            DeadlineError: Its time passed before its turn.
            WorkerBusyError: There is no place for it to wait, or it had to make place.
            WorkerGoneError: The worker ended before its turn.
            WorkerCrashedError: The worker ended during its turn.
            WorkerTimeoutError: The worker did not answer in time.
        """
        if self._enter(waiter) or self._wait(waiter):
            self._lead(waiter, turn)
        if isinstance(waiter.outcome, Reply):
            return waiter.outcome
        raise waiter.outcome or WorkerCrashedError(BROKEN_OFF)

    def close(self, reason: str) -> None:
        """Let nobody in any more and send away who waits. Again is no fault.

        Args:
            reason: What they hear.
        """
        with self._lock:
            self._closed = self._closed or reason
            for waiter in self._queue.empty():
                waiter.finish(WorkerGoneError(reason))
            self._joined.notify_all()

    def _enter(self, waiter: Waiter) -> bool:
        """Let a request in; True when it leads.

        Raises:
            DeadlineError: Its time has passed.
            WorkerBusyError: There is no place for it.
            WorkerGoneError: The worker has ended.
        """
        with self._lock:
            if self._closed:
                raise WorkerGoneError(self._closed)
            now_s = self._clock.monotonic_s()
            check_time(waiter, now_s)
            if not self._led:
                self._led = True
                self._queue.enter(waiter)
                return True
            shed = self._queue.wait(waiter, now_s)
            if shed is not None:
                retry_after_s = self._queue.retry_after_s(now_s)
                shed.finish(WorkerBusyError(SHED, retry_after_s=retry_after_s))
            self._joined.notify()
        return False

    def _wait(self, waiter: Waiter) -> bool:
        """Wait for an outcome or for the lead; True when it leads.

        Raises:
            DeadlineError: The time of the request passed.
        """
        left_s = waiter.deadline_s - self._clock.monotonic_s()
        # A lock refuses to wait for longer than this.
        if waiter.woken.acquire(timeout=max(0.0, min(left_s, threading.TIMEOUT_MAX))):
            return waiter.leads
        with self._lock:
            if not waiter.leads and self._queue.leave(waiter):
                raise DeadlineError(LATE)
        waiter.woken.acquire()
        return waiter.leads

    def _lead(self, waiter: Waiter, turn: Turn) -> None:
        try:
            while waiter.outcome is None:
                self._take_turn(turn)
        finally:
            self._pass_on(waiter)

    def _take_turn(self, turn: Turn) -> None:
        with self._lock:
            if turn.company_s > 0:
                self._joined.wait_for(
                    lambda: len(self._queue) >= turn.most or self._closed != "", turn.company_s
                )
            chosen, late = self._queue.begin(self._clock.monotonic_s(), turn.most)
        for waiter in late:
            waiter.finish(DeadlineError(LATE))
        try:
            if chosen:
                self._converse(chosen, turn)
        except WorkerError as exc:
            _give_up(chosen, exc)
            self.close(exc.message)
        except BaseException:
            _give_up(chosen, WorkerCrashedError(BROKEN_OFF))
            self.close(BROKEN_OFF)
            raise
        finally:
            joined = any(isinstance(w.outcome, Reply) and w.outcome.joined > 1 for w in chosen)
            with self._lock:
                self._queue.end(self._clock.monotonic_s(), joined=joined)

    def _pass_on(self, leader: Waiter) -> None:
        with self._lock:
            self._queue.leave(leader)
            heir = self._queue.head
            self._led = heir is not None
            if heir is not None:
                heir.leads = True
                heir.woken.release()


def _give_up(waiters: Sequence[Waiter], exc: WorkerError) -> None:
    """Tell each of the waiters, with an error of its own: a raised one belongs to one thread."""
    for waiter in waiters:
        if waiter.outcome is None:
            waiter.finish(type(exc)(exc.message))
