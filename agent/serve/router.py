"""The router: it sends each request to the active variant and answers the client.

Usually the next variant is ready before the old one ends. If a device has no memory for both, the
old worker ends first, and requests wait during this handover.

Rules:
- One worker with one variant answers a request, and the answer names the variant.
- After a crash or a hang the router tries a request once more, apart from others: inference has no
  side effects, so a repeat is safe, and the request must not make other requests fail again.
- A request that takes too long because it has many samples is not repeated, and gets a 413. Its
  worker is replaced, but that counts as no crash: a client must not bench a variant.
- Requests on a route can finish before its worker is ended. A closed route gets no new worker.
- The first thread that finds a dead worker replaces it; the other threads wait for that.
- A limited number of requests wait during a handover, for a limited time; the others get 503.
- 503 means: not now, ask again after `Retry-After`. 504 means: the client's
  deadline passed before the request began. A request that would surely be late gets a 503 at once.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from agent.ports import RecorderPort
from agent.serve.answered import Answered, Listener, Outcome, record
from agent.serve.benches import CRASHES_TO_BENCH
from agent.serve.errors import (
    DeadlineError,
    NotServingError,
    TooManySamplesError,
    UnknownModelError,
    WorkerBusyError,
    WorkerCrashedError,
    WorkerError,
    WorkerGoneError,
    WorkerTimeoutError,
)
from agent.serve.frames import Asked, Reply
from agent.serve.pool import Prepared, WorkerPool
from agent.serve.request_queue import DEFAULT_PRIORITY, DEFERRABLE, LEAST_URGENT, QueuedRequest
from agent.serve.routes import Handover, InferenceCall, Route
from agent.serve.settings import Mode, ServingSettings, Turn
from wire.clock import Clock
from wire.errors import FleetError
from wire.package.manifest import Variant

MAX_TRIES: Final = CRASHES_TO_BENCH + 2
"""A bench or a switch normally ends the crashes before this limit."""

OK: Final = 200
INTERNAL_ERROR: Final = 500
TOO_LATE: Final = "too many requests come: this one would have been answered too late"
NOT_LOADED: Final = "no model is loaded"


class Router:
    """Answers requests through the active route. For any thread.

    Args:
        pool: Gives a new worker for one that crashed.
        recorder: Where figures go.
        clock: For deadlines.
        settings: Bounds, and how requests are run at first.
    """

    def __init__(
        self, pool: WorkerPool, recorder: RecorderPort, clock: Clock, settings: ServingSettings
    ) -> None:
        self.mode = settings.mode
        """How requests are run; a change takes effect with the next run of the model."""

        self.switches = Counter[str]()
        """How often requests were sent to another worker by a switch, by the model's name."""

        self._pool = pool
        self._clock = clock
        self._settings = settings
        self._listeners: list[Listener] = [partial(record, recorder)]
        self._greeters: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._route: Route | None = None
        self._handover: Handover | None = None
        self._waiting = 0
        self._last_turn: tuple[Variant, Mode, Turn] | None = None
        self._why_none = NOT_LOADED

    @property
    def active(self) -> Prepared | None:
        """The variant that answers requests now; None while requests wait or are refused."""
        route = self._route
        return route.target if route is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered now."""
        active = self.active
        return active is not None and active.worker.is_alive

    @property
    def is_idle(self) -> bool:
        """Whether a variant serves and has no request."""
        active = self.active
        return active is not None and active.worker.is_alive and active.scheduler.is_idle

    @property
    def in_flight(self) -> int:
        """Requests that have come and have no answer yet, those in a handover included."""
        route = self._route
        return self._waiting + (route.in_flight if route is not None else 0)

    @property
    def waiting(self) -> int:
        """Those of them that wait for their turn, or for the end of a handover."""
        active = self.active
        return self._waiting + (active.waiting if active is not None else 0)

    @property
    def handover(self) -> Handover | None:
        """The handover that is going on; None when there is none."""
        return self._handover

    def listen(self, listener: Listener) -> None:
        """Call a listener for each request from now on.

        Args:
            listener: Called in the thread of the request, before the client gets the answer.
        """
        self._listeners.append(listener)

    def greet(self, greeter: Callable[[], None]) -> None:
        """Call a function for each request when it comes, before it waits, from now on."""
        self._greeters.append(greeter)

    def handle(self, call: InferenceCall) -> Reply:
        """Answer a client.

        Args:
            call: Its request.

        Returns:
            The answer; 404 if it asks for a model that does not serve, 503 with Retry-After if no
            variant can answer now, 504 if its deadline passed before it began.
        """
        start_s = self._clock.monotonic_s()
        target, code, queue_s = self.active, "", 0.0
        for greeter in () if call.deferrable else self._greeters:
            greeter()
        try:
            reply, target, queue_s = self._answer(call, start_s)
            outcome = Outcome.OK if reply.status == OK else Outcome.INVALID
            if reply.status >= INTERNAL_ERROR:
                outcome = Outcome.FAILED
        except UnknownModelError as exc:
            reply, outcome = Reply.refusal(404, str(exc)), Outcome.UNKNOWN_MODEL
        except TooManySamplesError as exc:
            reply, outcome = Reply.refusal(413, str(exc)), Outcome.INVALID
        except (NotServingError, DeadlineError, WorkerError) as exc:
            reply, outcome, code = _refusal(exc), Outcome.REFUSED, exc.code
        active = self.active
        answered = Answered(
            asked_model=call.model,
            variant=target.variant.name if target is not None else "none",
            release=target.release if target is not None else "none",
            active=active.model if active is not None else None,
            outcome=outcome,
            code=code,
            status=reply.status,
            request_bytes=len(call.body),
            answer_bytes=len(reply.body),
            total_s=self._clock.monotonic_s() - start_s,
            queue_s=queue_s,
            compute_s=reply.compute_ms / 1000,
            samples=reply.samples,
            joined=reply.joined,
            apart=reply.apart,
            deferred=call.deferrable,
        )
        for listener in self._listeners:
            listener(answered)
        return reply

    def put(
        self, target: Prepared | None, why_none: str = NOT_LOADED
    ) -> tuple[Route | None, Handover | None]:
        """Send new requests to a variant, or refuse them, and end a handover.

        Args:
            target: The variant, or None.
            why_none: What refused requests are told.

        Returns:
            The route and the handover until now; None for each that there was not.
        """
        route = Route(target=target) if target is not None else None
        with self._changed:
            old, self._route = self._route, route
            handover, self._handover = self._handover, None
            self._why_none = why_none
            self.switches.update([target.model.name] if target is not None else [])
            self._changed.notify_all()
        return old, handover

    def begin_handover(self) -> Route | None:
        """Make new requests wait; return the route that was active."""
        with self._changed:
            old, self._route = self._route, None
            if self._handover is None:
                self._handover = Handover(
                    began_s=self._clock.monotonic_s(),
                    expected_s=old.target.worker.start_s if old is not None else 0.0,
                    previous=old.target if old is not None else None,
                    cause="the memory has no room for two workers",
                )
        return old

    def retire(self, route: Route | None, drain_s: float) -> None:
        """Close a route, let the requests on it finish, and end its worker.

        Args:
            route: The route, which gets no new requests; None to do nothing.
            drain_s: How long its requests may take.
        """
        if route is None:
            return
        with self._changed:
            route.is_closed = True
            self._changed.wait_for(lambda: route.in_flight == 0, drain_s)
        route.target.stop()

    def replace(self, route: Route, dead: Prepared, reason: str) -> None:
        """Replace a dead worker, unless another thread has done so.

        Args:
            route: The route whose worker failed.
            dead: The variant in the worker that failed.
            reason: How it failed.
        """
        with route.replacing:
            if route.is_closed or route.target is not dead:
                return
            dead.stop(grace_s=0)
            target = self._pool.after_crash(dead, reason)
            with self._changed:
                is_wanted = not route.is_closed
                if is_wanted and target is not None:
                    route.target = target
                elif is_wanted:
                    self._wait_for_another(route, reason)
        if target is not None and not is_wanted:
            target.stop()

    def supervise(self) -> None:
        """End a worker that hangs, and replace one that died; called about once a second."""
        route = self._route
        if route is None:
            return
        target = route.target
        target.worker.end_if_hung(target.scheduler.usual_s)
        if not target.worker.is_alive:
            self.replace(route, target, target.worker.how_it_died)

    def _wait_for_another(self, route: Route, cause: str) -> None:
        """Make requests wait until another variant, or the same one again, is put in place."""
        route.is_closed = True
        if self._route is not route:
            return
        self._route = None
        self._handover = Handover(
            began_s=self._clock.monotonic_s(),
            expected_s=route.target.worker.start_s,
            previous=None,
            cause=cause,
        )

    @contextlib.contextmanager
    def entered(self, deadline_s: float = math.inf) -> Iterator[Route]:
        """Hold the active route, so that its worker is not ended meanwhile.

        Args:
            deadline_s: Until when the request may wait during a handover.

        Yields:
            The route.

        Raises:
            NotServingError: No variant serves, or the handover lasts too long.
            DeadlineError: The deadline of the request passed.
        """
        route = self._enter(deadline_s)
        try:
            yield route
        finally:
            self._leave(route)

    def _enter(self, deadline_s: float) -> Route:
        """Hold the active route, as `entered` does, until `_leave`.

        Raises:
            NotServingError: No variant serves, or the handover lasts too long.
            DeadlineError: The deadline of the request passed.
        """
        with self._lock:
            route = self._route or self._awaited(deadline_s)
            route.in_flight += 1
        return route

    def _leave(self, route: Route) -> None:
        with self._lock:
            route.in_flight -= 1
            if route.is_closed:
                self._changed.notify_all()

    def _awaited(self, deadline_s: float) -> Route:
        """Wait during a handover.

        Raises:
            NotServingError: There is no handover, or it lasts too long, or too many requests wait.
            DeadlineError: The deadline of the request passed.
        """
        handover = self._handover
        if handover is not None and self._waiting < self._settings.limits.waiting:
            self._waiting += 1
            handover.waited += 1
            left_s = min(deadline_s - self._clock.monotonic_s(), self._settings.gap_wait_s)
            self._changed.wait_for(lambda: self._handover is None, max(0.0, left_s))
            self._waiting -= 1
        if self._route is not None:
            return self._route
        now_s = self._clock.monotonic_s()
        if now_s >= deadline_s:
            raise DeadlineError(
                "the deadline of this request passed while the model was being changed"
            )
        if handover is None or self._handover is None:
            raise NotServingError(self._why_none)
        left_s = handover.began_s + handover.expected_s - now_s
        raise NotServingError("the model is being changed", retry_after_s=max(1, math.ceil(left_s)))

    def _answer(self, call: InferenceCall, start_s: float) -> tuple[Reply, Prepared, float]:
        """Ask the active worker, and the one that replaces it when it crashes or hangs.

        A request that was only waiting did not cause the crash; it goes to the next worker.

        Returns:
            The answer, the variant that gave it, and how long the request waited for its turn.

        Raises:
            UnknownModelError: Another model serves.
            NotServingError: No variant serves.
            DeadlineError: The deadline passed before the request began.
            TooManySamplesError: The request took too long by itself.
            WorkerBusyError: Too many requests wait.
            WorkerCrashedError: A second worker crashed on this request.
            WorkerTimeoutError: A second worker hung on this request.
        """
        second = False
        for _ in range(MAX_TRIES):
            try:
                return self._ask(call, start_s, unbatched=second)
            except WorkerGoneError:
                continue
            except TooManySamplesError:
                raise
            except (WorkerCrashedError, WorkerTimeoutError):
                if second:
                    raise
                second = True
        raise NotServingError("the model kept crashing")

    def _ask(
        self, call: InferenceCall, start_s: float, *, unbatched: bool
    ) -> tuple[Reply, Prepared, float]:
        own_s = math.inf if call.timeout_s is None else start_s + call.timeout_s
        is_bounded = call.timeout_s is not None or call.deferrable
        request = QueuedRequest(
            asked=Asked(header_length=call.header_length, body=call.body, regions=call.regions),
            arrived_s=start_s,
            priority=DEFERRABLE if call.deferrable else level_of(call.priority),
            deadline_s=own_s if is_bounded else start_s + self.mode.longest_wait_s,
            size_bytes=len(call.body),
            # Large tensors gain little by joining, and only their own size should bound a run.
            unbatched=unbatched or bool(call.regions),
        )
        route = self._enter(own_s)
        try:
            target = route.target
            self._check(route, call)
            try:
                reply = target.scheduler.answer(request, self._turn(target.variant))
            except DeadlineError as exc:
                if is_bounded:
                    raise
                raise WorkerBusyError(TOO_LATE) from exc
            except (WorkerCrashedError, WorkerTimeoutError) as exc:
                self.replace(route, target, exc.message)
                raise
        finally:
            self._leave(route)
        return reply, target, (request.began_s or start_s) - start_s

    def _check(self, route: Route, call: InferenceCall) -> None:
        """Refuse a request that this route does not serve.

        Raises:
            UnknownModelError: The request is for another model.
        """
        model = route.target.model
        if call.model != model.name or call.version not in {None, model.version}:
            raise UnknownModelError(call.model, call.version)

    def _turn(self, variant: Variant) -> Turn:
        """Return how requests for a variant are run now; mostly as the one before."""
        mode, last = self.mode, self._last_turn
        if last is None or last[0] is not variant or last[1] is not mode:
            last = self._last_turn = (variant, mode, self._turn_of(variant, mode))
        return last[2]

    def _turn_of(self, variant: Variant, mode: Mode) -> Turn:
        timeout_s = self._settings.infer_timeout_s
        if mode.stream or not mode.joins or not has_batch(variant):
            return Turn(timeout_s=timeout_s, stream=mode.stream, batches=has_batch(variant))
        delay_s = mode.max_queue_delay_ms / 1000 if mode.max_batch > 1 else 0.0
        return Turn(
            timeout_s=timeout_s,
            max_batch=mode.max_batch,
            max_queue_delay_s=delay_s,
            batches=True,
        )


def level_of(priority: int) -> int:
    """Return the level of a priority that a client set: 0 means the default."""
    return min(priority, LEAST_URGENT) if priority else DEFAULT_PRIORITY


def has_batch(variant: Variant) -> bool:
    """Tell whether all inputs and outputs of a variant are batches of any size."""
    specs = (*variant.info.inputs, *variant.info.outputs)
    return all(spec.shape[:1] == (-1,) for spec in specs)


def _refusal(exc: FleetError) -> Reply:
    if isinstance(exc, DeadlineError):
        reply = Reply.refusal(504, str(exc))
    else:
        wait_s = exc.retry_after_s if isinstance(exc, WorkerBusyError | NotServingError) else 1
        reply = Reply.refusal(503, str(exc), {"Retry-After": str(wait_s)})
    return msgspec.structs.replace(reply, code=exc.code)
