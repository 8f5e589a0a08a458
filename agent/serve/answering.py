"""How a client's request is answered: through the active lane, again after a crash, and counted.

Rules:
- A request is answered by one worker alone, with one variant, and says which.
- A request that met a crash or a hang is tried once more, by itself: inference has no effects, so
  doing it twice is safe, and it must not take others with it twice.
- 503 means: not now, ask again after `Retry-After`. 504 means: the time that the client gave it
  passed before it was begun. A request that surely would come too late is a 503 at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.ports import RecorderPort
from agent.serve.active_lane import ActiveLane
from agent.serve.benches import CRASHES_TO_BENCH
from agent.serve.desk import Waiter
from agent.serve.errors import (
    DeadlineError,
    NotServingError,
    UnknownModelError,
    WorkerBusyError,
    WorkerCrashedError,
    WorkerError,
    WorkerGoneError,
    WorkerTimeoutError,
)
from agent.serve.frames import Asked, Reply
from agent.serve.lanes import Lane
from agent.serve.modes import Mode, Turn
from agent.serve.replacements import Replacements
from agent.serve.request_queue import level_of
from wire.clock import Clock
from wire.errors import FleetError
from wire.package.manifest import Variant

MAX_TRIES: Final = CRASHES_TO_BENCH + 2
"""A bench or a switch ends the crashes sooner."""

OK: Final = 200
INTERNAL_ERROR: Final = 500
_NOTHING: Final = {"variant": "none", "release": "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCall:
    """What a client asks."""

    model: str
    version: str | None
    """None for whichever version serves."""

    header_length: int | None
    body: memoryview
    priority: int = 0
    """1 is the most urgent; 0 is the default, which is 2."""

    timeout_s: float | None = None
    """How long the client gives it from now; None for as long as it takes."""


class Answering:
    """Answers requests through the active lane. For any thread.

    Args:
        active: The way of new requests.
        replacements: Gives a new worker for one that crashed.
        recorder: Where figures go.
        clock: For deadlines.
        infer_timeout_s: A worker that does not answer for so long is taken to hang.
        mode: How requests are run.
    """

    def __init__(
        self,
        active: ActiveLane,
        replacements: Replacements,
        recorder: RecorderPort,
        clock: Clock,
        *,
        infer_timeout_s: float,
        mode: Mode,
    ) -> None:
        self.mode = mode
        self._active = active
        self._replacements = replacements
        self._recorder = recorder
        self._clock = clock
        self._infer_timeout_s = infer_timeout_s

    def handle(self, call: InferenceCall) -> Reply:
        """Answer a client.

        Args:
            call: What it asks.

        Returns:
            The answer; 404 for another model than the one that serves, 503 with Retry-After when
            none can answer now, 504 when its time passed before it was begun.
        """
        start_s = self._clock.monotonic_s()
        lane = self._active.lane
        attributes: Mapping[str, str] = lane.attributes if lane is not None else _NOTHING
        record = self._recorder
        try:
            reply, attributes = self._answer(call, start_s)
        except UnknownModelError as exc:
            return Reply.refusal(404, str(exc))
        except (NotServingError, DeadlineError, WorkerError) as exc:
            reply = _refusal(exc)
            record.add("inference_refusals_total", 1.0, {**attributes, "code": exc.code})
        record.add("inference_requests_total", 1.0, attributes)
        if reply.status >= INTERNAL_ERROR:
            record.add("inference_failures_total", 1.0, attributes)
        elif reply.status == OK:
            latency_ms = (self._clock.monotonic_s() - start_s) * 1000
            record.observe("inference_latency_ms", latency_ms, attributes)
            record.add("worker_compute_seconds_total", reply.compute_ms / 1000, attributes)
            if reply.joined > 1:
                record.add("inference_joined_total", 1.0, attributes)
            if reply.apart:
                record.event("worker", f"requests cannot be joined: {reply.apart}", attributes)
        return reply

    def _answer(self, call: InferenceCall, start_s: float) -> tuple[Reply, Mapping[str, str]]:
        """Ask the active worker, and the one that replaces it when it crashes or hangs.

        One that was only waiting is innocent of the crash and waits for the next worker.

        Raises:
            UnknownModelError: Another model serves.
            NotServingError: Nothing serves.
            DeadlineError: Its time passed before it was begun.
            WorkerBusyError: Too many requests wait.
            WorkerCrashedError: A second worker crashed on this request.
            WorkerTimeoutError: A second worker hung on this request.
        """
        second = False
        for _ in range(MAX_TRIES):
            try:
                return self._ask(call, start_s, alone=second)
            except WorkerGoneError:
                continue
            except (WorkerCrashedError, WorkerTimeoutError):
                if second:
                    raise
                second = True
        raise NotServingError("the model crashed again and again")

    def _ask(
        self, call: InferenceCall, start_s: float, *, alone: bool
    ) -> tuple[Reply, Mapping[str, str]]:
        deadline_s = math.inf if call.timeout_s is None else start_s + call.timeout_s
        waiter = Waiter(
            asked=Asked(header_length=call.header_length, body=call.body),
            arrived_s=start_s,
            priority=level_of(call.priority),
            deadline_s=deadline_s,
            size_bytes=len(call.body),
            alone=alone,
        )
        with self._active.entered(deadline_s) as lane:
            self._check(lane, call)
            worker = lane.target.worker
            try:
                reply = worker.infer(waiter, self._turn(lane.target.variant))
            except (WorkerCrashedError, WorkerTimeoutError) as exc:
                reason = exc.message
                lane.replace(worker, lambda: self._replacements.after_crash(lane.target, reason))
                raise
            return reply, lane.attributes

    def _check(self, lane: Lane, call: InferenceCall) -> None:
        """Refuse what this lane does not serve.

        Raises:
            NotServingError: Its variant is benched.
            UnknownModelError: Another model is asked for.
        """
        if self._replacements.is_benched(lane.target):
            raise NotServingError("the model crashed too often and is given a rest")
        model = lane.target.model
        if call.model != model.name or call.version not in {None, model.version}:
            asked = f"{call.model}:{call.version}" if call.version else call.model
            raise UnknownModelError(f"no model {asked[:140]!r} is served here")

    def _turn(self, variant: Variant) -> Turn:
        mode = self.mode
        if mode.stream or not has_batch(variant):
            return Turn(timeout_s=self._infer_timeout_s, stream=mode.stream)
        return Turn(
            timeout_s=self._infer_timeout_s,
            most=mode.max_batch,
            company_s=mode.company_ms / 1000 if mode.max_batch > 1 else 0.0,
        )


def has_batch(variant: Variant) -> bool:
    """Tell whether all inputs and outputs of a variant are batches of any size."""
    specs = (*variant.info.inputs, *variant.info.outputs)
    return all(spec.shape[:1] == (-1,) for spec in specs)


def _refusal(exc: FleetError) -> Reply:
    if isinstance(exc, DeadlineError):
        return Reply.refusal(504, str(exc))
    wait_s = exc.retry_after_s if isinstance(exc, WorkerBusyError | NotServingError) else 1
    return Reply.refusal(503, str(exc), {"Retry-After": str(wait_s)})
