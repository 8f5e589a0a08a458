"""The router: it sends each request to a worker of the model and answers the client.

Rules:
- One worker with one variant answers a request, and the answer names the variant.
- After a crash or a hang the router tries a request once more, apart from others: inference has no
  side effects, so a repeat is safe, and the request must not make other requests fail again.
- A request that takes too long because it has many samples is not repeated, and gets a 413. Its
  worker is replaced, but that counts as no crash: a client must not bench a variant.
- 503 means: not now, ask again after `Retry-After`. 504 means: the client's
  deadline passed before the request began. A request that would surely be late gets a 503 at once.
- `agent.serve.routing` knows the workers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from agent.ports import RequestRecorderPort
from agent.serve.answered import Answered, Listener, Outcome, record
from agent.serve.benches import CRASHES_TO_BENCH
from agent.serve.capture import Capture
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
from agent.serve.routes import InferenceCall
from agent.serve.routing import Routes
from agent.serve.settings import Mode, ServingSettings, Turn
from wire.clock import Clock
from wire.errors import FleetError
from wire.package.variant import Variant
from wire.policy import MAX_WORKERS

MAX_TRIES: Final = CRASHES_TO_BENCH + 2 + MAX_WORKERS
"""A bench or a switch normally ends the crashes before this limit; every worker may be dead."""

OK: Final = 200
INTERNAL_ERROR: Final = 500
Shadow: TypeAlias = Callable[[InferenceCall, Reply], None]

TOO_LATE: Final = "too many requests come: this one would have been answered too late"


class Router:
    """Answers requests through the active route. For any thread.

    Args:
        pool: Gives a new worker for one that crashed.
        recorder: Where figures go.
        clock: For deadlines.
        settings: Bounds, and how requests are run at first.
    """

    def __init__(
        self,
        pool: WorkerPool,
        recorder: RequestRecorderPort,
        clock: Clock,
        settings: ServingSettings,
    ) -> None:
        self.mode = settings.mode
        """How requests are run; a change takes effect with the next run of the model."""

        self.capture: Capture | None = None
        """Which requests the operator wants; a change takes effect with the next run."""

        self.shadow: Shadow | None = None
        """Takes requests that have been answered, with their answers, and must return at once."""

        self.routes = Routes(pool, clock, settings)
        """Knows the workers."""

        self._clock = clock
        self._settings = settings
        self._listeners: list[Listener] = [partial(record, recorder)]
        self._greeters: list[Callable[[], None]] = []
        self._last_turn: tuple[Variant, Mode, Turn] | None = None

    @property
    def active(self) -> Prepared | None:
        """The variant that answers requests now; None while requests wait or are refused."""
        return self.routes.active

    @property
    def kept(self) -> Prepared | None:
        """The version before, if it answers requests that name it."""
        return self.routes.kept

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered now."""
        return self.routes.is_ready

    @property
    def is_idle(self) -> bool:
        """Whether a variant serves and has no request."""
        return self.routes.is_idle

    @property
    def in_flight(self) -> int:
        """Requests that have come and have no answer yet, those in a handover included."""
        return self.routes.in_flight

    @property
    def waiting(self) -> int:
        """Those of them that wait for their turn, or for the end of a handover."""
        return self.routes.waiting

    @property
    def workers(self) -> int:
        """In how many workers the variant runs that serves."""
        return self.routes.workers

    @property
    def switches(self) -> Counter[str]:
        """How often requests were sent to another worker by a switch, by the model's name."""
        return self.routes.switches

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
        named, code, queue_s = self._named(call), "", 0.0
        target = named or self.active
        # What asks for the version before is no demand on the one that serves.
        for greeter in () if call.deferrable or named is not None else self._greeters:
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
        active = named or self.active
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
            seen=reply.seen,
            captured=reply.captured,
            missed=reply.missed,
            given=reply.given,
            info=target.variant.info if target is not None else None,
            deferred=call.deferrable,
            fell_back=target is not None and target.fell_back,
            is_before=named is not None,
        )
        for listener in self._listeners:
            listener(answered)
        if self.shadow is not None and outcome is Outcome.OK and named is None:
            self.shadow(call, reply)
        return reply

    def _named(self, call: InferenceCall) -> Prepared | None:
        """Return the version before, if the request is for that; None otherwise."""
        if call.version is None:
            return None
        kept = self.kept
        return kept if kept is not None and kept.model.version == call.version else None

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
        place = self.routes.enter(own_s, call.version)
        try:
            target = place.lane.target
            _check(target, call)
            try:
                reply = target.scheduler.answer(request, self._turn(target.variant))
            except DeadlineError as exc:
                if is_bounded:
                    raise
                raise WorkerBusyError(TOO_LATE) from exc
            except (WorkerCrashedError, WorkerGoneError, WorkerTimeoutError) as exc:
                self.routes.replace(place.route, target, exc.message)
                raise
        finally:
            self.routes.leave(place)
        return reply, target, (request.began_s or start_s) - start_s

    def _turn(self, variant: Variant) -> Turn:
        """Return how requests for a variant are run now; mostly as the one before."""
        mode, capture, last = self.mode, self.capture, self._last_turn
        if last is None or last[0] is not variant or last[1] is not mode:
            last = self._last_turn = (variant, mode, self._turn_of(variant, mode))
        if last[2].capture is not capture:
            turn = msgspec.structs.replace(last[2], capture=capture)
            last = self._last_turn = (variant, mode, turn)
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


def _check(target: Prepared, call: InferenceCall) -> None:
    """Refuse a request for another model, or another version.

    Raises:
        UnknownModelError: It is for another one.
    """
    model = target.model
    if call.model != model.name or call.version not in {None, model.version}:
        raise UnknownModelError(call.model, call.version)


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
