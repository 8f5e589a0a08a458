"""The scheduler of one worker: lets the threads of requests take turns with it.

It starts no thread. The first request leads: when its turn begins, its thread sends it and the
waiting requests to the worker, hands out the answers and passes the lead to the next request. So a
request that finds the worker idle is answered without waking another thread.

Rules:
- `RequestQueue` decides which requests run next, and which are refused.
- The leader always passes the lead on, and every admitted request gets an answer or an error.
- When a turn takes too long because some of its requests have many samples, only these have failed:
  the others only waited for them, and the worker is not to blame.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from agent.serve.blame import is_cause, samples_of
from agent.serve.errors import (
    DeadlineError,
    TooManySamplesError,
    WorkerBusyError,
    WorkerCrashedError,
    WorkerError,
    WorkerGoneError,
    WorkerTimeoutError,
)
from agent.serve.frames import Asked, Reply
from agent.serve.request_queue import QueuedRequest, RequestQueue
from agent.serve.settings import Turn
from wire.clock import Clock

LATE: Final = "the deadline of this request passed while it waited"
SHED: Final = "more urgent requests took the place of this one"
BROKEN_OFF: Final = "the connection to the worker broke"


_WEIGHT: Final = 0.2
"""Weight of the newest answer in the mean time of a sample."""

Run: TypeAlias = Callable[[Sequence[Asked], Turn], Iterable[Reply]]
"""Lets a worker answer; each reply has its request's position. WorkerError: the worker ended."""


class Scheduler:
    """Lets requests take turns with a worker. For any thread.

    Args:
        run: Lets the worker answer.
        places: Requests that may wait.
        clock: For deadlines.
    """

    def __init__(self, run: Run, places: int, clock: Clock) -> None:
        self._run = run
        self._clock = clock
        self._lock = threading.Lock()
        self._joined = threading.Condition(self._lock)
        self._queue: RequestQueue = RequestQueue(places)
        self._led = False
        self._closed = ""
        """Why no request is admitted any more; empty while the scheduler is open."""

        self._sample_s = 0.0
        """Moving mean of the time in the runtime for a sample; 0 before the first answer."""

        self._turn = threading.Lock()
        """Held during a turn with the worker."""

        self._ended_by_request = False

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn now."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or waits now."""
        return not self._led

    @property
    def usual_s(self) -> float:
        """How long a request takes on average; 0 before the first."""
        return self._queue.usual_s

    @property
    def ended_by_request(self) -> bool:
        """Whether the worker was ended because a request had too many samples.

        Waits for the end of its last turn, which tells.
        """
        with self._turn:
            return self._ended_by_request

    def answer(self, request: QueuedRequest, turn: Turn) -> Reply:
        """Answer a request.

        Args:
            request: The request.
            turn: Bounds of the turns that it leads.

        Returns:
            The answer, which may say that the request is malformed.

        Raises:
            DeadlineError: Its deadline passed before its turn.
            WorkerBusyError: There is no place for it, or a more urgent request took its place.
            WorkerGoneError: The worker ended before its turn.
            WorkerCrashedError: The worker ended during its turn.
            WorkerTimeoutError: The worker did not answer in time.
        """
        if self._enter(request) or self._wait(request):
            try:
                while request.outcome is None:
                    self._take_turn(turn)
            finally:
                self._pass_on(request)
        if isinstance(request.outcome, Reply):
            return request.outcome
        raise request.outcome or WorkerCrashedError(BROKEN_OFF)

    def close(self, reason: str) -> None:
        """Admit no more requests; waiting ones fail with the reason. Calling it twice is safe."""
        with self._lock:
            self._closed = self._closed or reason
            for request in self._queue.empty():
                request.finish(WorkerGoneError(reason))
            self._joined.notify_all()

    def _enter(self, request: QueuedRequest) -> bool:
        """Admit a request; True when it leads.

        Raises:
            DeadlineError: Its deadline has passed.
            WorkerBusyError: There is no place for it.
            WorkerGoneError: The worker has ended.
        """
        with self._lock:
            if self._closed:
                raise WorkerGoneError(self._closed)
            now_s = self._clock.monotonic_s()
            if request.deadline_s <= now_s:
                raise DeadlineError("the deadline of this request has passed")
            if not self._led:
                self._led = True
                self._queue.enter(request)
                return True
            shed = self._queue.wait(request, now_s)
            if shed is not None:
                shed.finish(WorkerBusyError(SHED, retry_after_s=self._queue.retry_after_s(now_s)))
            self._joined.notify()
        return False

    def _wait(self, request: QueuedRequest) -> bool:
        """Wait for an outcome or the lead; True when it leads.

        Raises:
            DeadlineError: The deadline of the request passed.
        """
        left_s = request.deadline_s - self._clock.monotonic_s()
        # A lock accepts no longer timeout than TIMEOUT_MAX.
        if request.woken.acquire(timeout=max(0.0, min(left_s, threading.TIMEOUT_MAX))):
            return request.leads
        with self._lock:
            if not request.leads and self._queue.leave(request):
                raise DeadlineError(LATE)
        request.woken.acquire()
        return request.leads

    def _take_turn(self, turn: Turn) -> None:
        with self._lock:
            if turn.max_queue_delay_s > 0:
                self._joined.wait_for(
                    lambda: len(self._queue) >= turn.max_batch or self._closed != "",
                    turn.max_queue_delay_s,
                )
            chosen, late = self._queue.begin(self._clock.monotonic_s(), turn.max_batch)
        for request in late:
            request.finish(DeadlineError(LATE))
        try:
            with self._turn:
                self._run_turn(chosen, turn)
        finally:
            joined = any(isinstance(r.outcome, Reply) and r.outcome.joined > 1 for r in chosen)
            with self._lock:
                self._queue.end(self._clock.monotonic_s(), joined=joined)

    def _run_turn(self, chosen: Sequence[QueuedRequest], turn: Turn) -> None:
        """Let the worker answer; close the scheduler if that fails."""
        try:
            if chosen:
                for reply in self._run([request.asked for request in chosen], turn):
                    self._learn(reply)
                    chosen[reply.place].finish(reply)
        except BaseException as exc:
            error = exc if isinstance(exc, WorkerError) else WorkerCrashedError(BROKEN_OFF)
            left = [request for request in chosen if request.outcome is None]
            error = self._blame(left, error, turn)
            for request in left:
                if request.outcome is None:  # threads must not share one error
                    request.finish(type(error)(error.message))
            self.close(error.message)
            if not isinstance(exc, WorkerError):
                raise

    def _learn(self, reply: Reply) -> None:
        if reply.compute_ms > 0:
            sample_s = reply.compute_ms / 1000 / max(reply.samples, 1)
            weight = _WEIGHT if self._sample_s else 1.0
            self._sample_s += weight * (sample_s - self._sample_s)

    def _blame(self, left: Sequence[QueuedRequest], error: WorkerError, turn: Turn) -> WorkerError:
        """Fail the requests that took too long by themselves; return the error of the others."""
        if not isinstance(error, WorkerTimeoutError) or not turn.batches:
            return error
        for request in left:
            samples = samples_of(request.asked)
            if is_cause(samples, self._sample_s, turn.timeout_s):
                self._ended_by_request = True
                request.finish(TooManySamplesError(samples, turn.timeout_s))
        return WorkerGoneError(error.message) if self._ended_by_request else error

    def _pass_on(self, leader: QueuedRequest) -> None:
        with self._lock:
            self._queue.leave(leader)
            heir = self._queue.head
            self._led = heir is not None
            if heir is not None:
                heir.leads = True
                heir.woken.release()
