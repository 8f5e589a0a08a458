"""The scheduler of one worker: lets the threads of requests take turns with it.

It starts no thread. The first request leads: its thread gives the worker the requests whose turn it
is, and hands out the answers. As soon as it has its own answer, it passes the lead on. So a request
that finds the worker idle is answered without waking another thread.

While a turn runs, the next one is sent ahead, so that the worker need not wait for the supervisor
between two turns. Whoever finds that it may be sent sends it: the leader, or a request that comes.

Rules:
- `RequestQueue` decides which requests run next, which may be sent ahead, and which are refused.
- The leader always passes the lead on, and every admitted request gets an answer or an error.
- Requests that were only sent ahead when the worker failed go elsewhere, like those that waited.
- When a turn takes too long because some of its requests have many samples, only these have failed:
  the others only waited for them, and the worker is not to blame.
- Whoever decides to send something takes the lock for sending before it gives the other one back:
  turns reach the worker in the order in which they were decided.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from agent.serve.blame import is_cause, samples_of
from agent.serve.errors import (
    DeadlineError,
    TooManySamplesError,
    WorkerCrashedError,
    WorkerError,
    WorkerGoneError,
    WorkerShedError,
    WorkerTimeoutError,
)
from agent.serve.frames import Asked, Reply
from agent.serve.request_queue import QueuedRequest, RequestQueue
from agent.serve.settings import Turn
from wire.clock import Clock

LATE: Final = "the deadline of this request passed while it waited"
SHED: Final = "more urgent requests took the place of this one"
BROKEN_OFF: Final = "the connection to the worker broke"
TOO_LARGE: Final = "there is not enough memory for a request of this size"

_WEIGHT: Final = 0.2
"""Weight of the newest answer in the mean time of a sample."""


class Worker(Protocol):
    """What runs requests: a worker process, or a stand-in in tests. It answers turns in order."""

    def hold(self) -> None:
        """Keep the worker for requests, until `let_go`.

        Raises:
            WorkerGoneError: It has ended; it is held all the same.
        """
        ...

    def let_go(self) -> None:
        """Let others use the worker: all its answers have been taken, or it has failed."""
        ...

    def give(self, requests: Sequence[Asked], turn: Turn) -> None:
        """Send the requests of a turn.

        Raises:
            WorkerError: The worker has ended.
        """
        ...

    def take(self, turn: Turn) -> Sequence[Reply] | None:
        """Wait for some answers of the first turn that has not been answered.

        Returns:
            The answers, each with the place of its request; None if the worker has no memory for
            these requests together.

        Raises:
            WorkerError: The worker has ended, or was ended because no answer came in time.
        """
        ...


class _Group(msgspec.Struct, eq=False):
    """The requests of a turn."""

    requests: list[QueuedRequest]
    turn: Turn
    joined: bool = False
    """Whether some were joined into one run."""

    @property
    def left(self) -> list[QueuedRequest]:
        """Those that have not been answered."""
        return [request for request in self.requests if request.outcome is None]


class Scheduler:
    """Lets requests take turns with a worker. For any thread.

    Args:
        worker: Answers the requests.
        places: Requests that may wait.
        clock: For deadlines.
    """

    def __init__(self, worker: Worker, places: int, clock: Clock) -> None:
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._joined = threading.Condition(self._lock)
        self._queue: RequestQueue = RequestQueue(places)
        self._led = False
        self._closed = ""
        """Why no request is admitted any more; empty while the scheduler is open."""

        self._sample_s = 0.0
        """Moving mean of the time in the runtime for a sample; 0 before the first answer."""

        self._running: _Group | None = None
        """What the worker runs; the leader takes the answers."""

        self._ahead: _Group | None = None
        """What it has to run next."""

        self._is_given = False
        """Whether all of what runs has been sent, so that more may be sent ahead."""

        self._sending = threading.Lock()
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
        with self._joined:
            self._joined.wait_for(lambda: self._running is None)
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
        if self._enter(request, turn) or self._wait(request):
            try:
                while request.outcome is None:
                    self._go_on(turn)
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

    def _enter(self, request: QueuedRequest, turn: Turn) -> bool:
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
                shed.finish(WorkerShedError(SHED, retry_after_s=self._queue.retry_after_s(now_s)))
            self._joined.notify()
            ahead = self._choose_ahead(turn, now_s)
        if ahead is not None:
            self._send_ahead(ahead)
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

    def _go_on(self, turn: Turn) -> None:
        """Begin a turn if none runs, and hand out the next answers of the one that runs."""
        try:
            group = self._running
            if group is None:
                group = self._begin(turn)
                if group is None:
                    return
            replies = self._worker.take(group.turn)
            if replies is None:
                self._part(group)
            else:
                for reply in replies:
                    self._learn(reply)
                    group.requests[reply.place].finish(reply)
                    group.joined = group.joined or reply.joined > 1
            if not group.left:
                self._end(group)
        except BaseException as exc:
            self._fail(exc)
            if not isinstance(exc, WorkerError):
                raise

    def _begin(self, turn: Turn) -> _Group | None:
        """Give the worker the requests whose turn it is; None if there are none in time.

        Raises:
            WorkerError: The worker has ended.
        """
        with self._lock:
            if turn.max_queue_delay_s > 0:
                self._joined.wait_for(
                    lambda: len(self._queue) >= turn.max_batch or self._closed != "",
                    turn.max_queue_delay_s,
                )
            chosen, late = self._queue.begin(self._clock.monotonic_s(), turn.max_batch)
            group = _Group(chosen, turn) if chosen else None
            self._running, self._is_given = group, False
        for request in late:
            request.finish(DeadlineError(LATE))
        if group is None:
            return None
        self._worker.hold()
        self._worker.give([request.asked for request in chosen], turn)
        with self._lock:
            self._is_given = True
            ahead = self._choose_ahead(turn, self._clock.monotonic_s())
        if ahead is not None:
            self._send_ahead(ahead)
        return group

    def _end(self, group: _Group) -> None:
        """End a turn that has been answered; the one that was sent ahead runs now."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._queue.end(now_s, joined=group.joined)
            self._running, self._ahead = self._ahead, None
            ahead = None
            if self._running is None:
                self._worker.let_go()
                self._joined.notify_all()
            else:
                self._queue.begin_what_was_ahead(now_s)
                ahead = self._choose_ahead(group.turn, now_s)
        if ahead is not None:
            self._send_ahead(ahead)

    def _part(self, group: _Group) -> None:
        """Let requests run one by one, for which together the worker has no memory."""
        left = group.left
        if len(left) == 1:
            left[0].finish(Reply.refusal(413, TOO_LARGE))
            return
        with self._lock:
            group.requests = [request for request in group.requests if request not in left]
            for request in left:
                request.unbatched, request.began_s = True, None
                self._queue.enter(request)

    def _choose_ahead(self, turn: Turn, now_s: float) -> _Group | None:
        """Choose what to send ahead; then the lock for sending is held. None if nothing may go."""
        if self._queue.head is None or not self._is_given:
            return None
        if self._running is None or self._ahead is not None:
            return None
        if turn.max_queue_delay_s > 0 or self._closed:
            return None
        chosen = self._queue.begin_ahead(now_s, turn.max_batch)
        if not chosen:
            return None
        self._ahead = _Group(chosen, turn)
        self._sending.acquire()
        return self._ahead

    def _send_ahead(self, group: _Group) -> None:
        """Send what was chosen; if that fails, the leader finds that the worker has ended."""
        try:
            with contextlib.suppress(WorkerError, MemoryError):
                self._worker.give([request.asked for request in group.requests], group.turn)
        finally:
            self._sending.release()

    def _fail(self, exc: BaseException) -> None:
        """Close the scheduler, and tell all whom the worker has not answered."""
        error = exc if isinstance(exc, WorkerError) else WorkerCrashedError(BROKEN_OFF)
        with self._lock:
            group, ahead = self._running, self._ahead
        if group is not None:
            left = group.left
            error = self._blame(left, error, group.turn)
            for request in left:
                if request.outcome is None:  # threads must not share one error
                    request.finish(type(error)(error.message))
        self.close(error.message)
        for request in ahead.left if ahead is not None else ():
            request.finish(WorkerGoneError(error.message))
        with self._lock:
            self._running = self._ahead = None
            if group is not None:
                self._worker.let_go()
            self._joined.notify_all()

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
            heir = self._heir()
            self._led = heir is not None
            if heir is not None:
                heir.leads = True
                heir.woken.release()

    def _heir(self) -> QueuedRequest | None:
        """Return who is next to be answered."""
        for group in (self._running, self._ahead):
            if group is not None and (left := group.left):
                return left[0]
        return self._queue.head
