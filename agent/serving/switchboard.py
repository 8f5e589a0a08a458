"""The switchboard: which worker answers, and what happens when it does not.

Rules:
- A request is answered by one worker alone, with one variant, and says which.
- A switch loses nothing: new requests go to the new worker, the old one ends when it has answered
  those that it has, or when its time is over.
- A worker that crashes or hangs is replaced and the request that met it is tried once more:
  inference has no effects, so doing it twice is safe.
- Nothing here imports NumPy or a runtime.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from agent.serving.benches import CRASHES_TO_BENCH, Benches
from agent.serving.errors import (
    NotServingError,
    UnknownModelError,
    WorkerCrashedError,
    WorkerError,
    WorkerGoneError,
    WorkerTimeoutError,
)
from agent.serving.frames import RETRY_AFTER, Infer, ProbeResult, Reply
from agent.serving.lanes import Lane, Prepared, identify
from agent.serving.workers import ModelIdentity, WorkerLimits, WorkerProcess
from wire.clock import Clock
from wire.errors import FleetError
from wire.manifest import Variant

__all__ = ["Active", "InferenceCall", "Measures", "Prepared", "Serving", "ServingSettings"]

STOP_DRAIN_S: Final = 1.0
"""The endpoint has waited for its requests when serving is stopped."""

MAX_TRIES: Final = CRASHES_TO_BENCH + 2
"""A bench or a switch ends the crashes sooner."""

OK: Final = 200
INTERNAL_ERROR: Final = 500
_NOTHING: Final = {"variant": "none", "release": "none"}


class Measures(Protocol):
    """Where figures and events go."""

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        ...

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Let a counter grow."""
        ...

    def event(self, kind: str, reason: str, data: Mapping[str, Any]) -> None:
        """Keep something that happened once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Bounds on the workers and on waiting for them."""

    limits: WorkerLimits = field(default_factory=WorkerLimits)
    start_timeout_s: float = 20.0
    """Less than systemd's watchdog allows, because the daemon may be waiting for it."""

    probe_timeout_s: float = 20.0
    infer_timeout_s: float = 30.0
    """A worker that does not answer for so long is taken to hang."""

    drain_s: float = 5.0
    """How long a worker may go on answering after a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCall:
    """What a client asks."""

    model: str
    version: str | None
    """None for whichever version serves."""

    header_length: int | None
    body: memoryview


Active: TypeAlias = Prepared
"""A prepared variant becomes the active one as it is."""


class Serving:
    """Prepares workers, switches between them and answers requests through the active one.

    Args:
        recorder: Where figures and events go.
        clock: For durations.
        device: Identifier of this device, put into every response.
        settings: Bounds.
        verify: Called with the package's digest and the variant before a crashed worker is started
            again: raises a FleetError when the files are not what was signed. Who calls `prepare`
            has verified them before.
    """

    def __init__(
        self,
        recorder: Measures,
        clock: Clock,
        *,
        device: str = "",
        settings: ServingSettings | None = None,
        verify: Callable[[str, Variant], None] | None = None,
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._device = device
        self._settings = settings or ServingSettings()
        self._verify = verify
        self._lock = threading.Lock()
        self._lane: Lane | None = None
        self._idle: set[WorkerProcess] = set()
        self._benches = Benches(clock)
        self._stopped = False

    @property
    def active(self) -> Active | None:
        """What answers requests now; None when nothing does."""
        lane = self._lane
        return lane.target if lane is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered now."""
        lane = self._lane
        return lane is not None and lane.target.worker.is_alive

    @property
    def benched(self) -> dict[str, str]:
        """Variants of the active package that crashed too often, and why."""
        lane = self._lane
        return self._benches.of(lane.target.digest) if lane is not None else {}

    def prepare(self, package: Path, digest: str, variant: Variant) -> Prepared:
        """Start a worker for a variant and warm it up; requests do not reach it yet.

        Args:
            package: The package's directory; its files have been verified.
            digest: Of the package.
            variant: One of its variants.

        Returns:
            What `activate` or `discard` takes.

        Raises:
            WorkerError: It does not load, crashes or takes too long.
            StorageError: The manifest cannot be read.
            WireFormatError: The manifest is malformed.
            NotServingError: Serving has been stopped.
        """
        model = identify(package, variant, self._device)
        worker = self._start(package, variant, model)
        with self._lock:
            self._idle.add(worker)
            stopped = self._stopped
        prepared = Prepared(
            digest=digest, package_dir=package, variant=variant, model=model, worker=worker
        )
        if stopped:
            self.discard(prepared)
            raise NotServingError("serving has been stopped")
        return prepared

    def probe(self, prepared: Prepared) -> ProbeResult:
        """Run the golden samples in a prepared worker.

        Args:
            prepared: As `prepare` gave it.

        Returns:
            The verdict.

        Raises:
            WorkerError: The worker crashed or hung; it has been ended.
        """
        return prepared.worker.probe(timeout_s=self._settings.probe_timeout_s)

    def probe_active(self) -> ProbeResult:
        """Run the golden samples in the worker that answers requests, between two of them.

        Returns:
            The verdict.

        Raises:
            NotServingError: Nothing serves.
            WorkerError: The worker crashed or hung; `supervise` replaces it.
        """
        with self._entered() as lane:
            return lane.target.worker.probe(timeout_s=self._settings.probe_timeout_s)

    def activate(self, prepared: Prepared) -> None:
        """Send new requests to a prepared worker; let the old one finish and end it.

        Args:
            prepared: As `prepare` gave it.

        Raises:
            WorkerCrashedError: The worker has ended meanwhile; the old one goes on.
            NotServingError: Serving has been stopped.
        """
        lane = Lane(prepared)
        with self._lock:
            if self._stopped:
                raise NotServingError("serving has been stopped")
            if not prepared.worker.is_alive:
                raise WorkerCrashedError("the worker ended before it was activated")
            self._idle.discard(prepared.worker)
            self._benches.forgive(prepared.digest, prepared.variant.name)
            old, self._lane = self._lane, lane
        self._retire(old)

    def discard(self, prepared: Prepared) -> None:
        """End a worker that was not activated.

        Args:
            prepared: As `prepare` gave it; nothing is done when it is the active one.
        """
        with self._lock:
            if self._lane is not None and self._lane.target.worker is prepared.worker:
                return
            self._idle.discard(prepared.worker)
        prepared.worker.stop()

    def withdraw(self) -> None:
        """Let nothing answer any more: finish what was begun and end the worker."""
        with self._lock:
            old, self._lane = self._lane, None
        self._retire(old)

    def supervise(self) -> None:
        """Replace a worker that has died while nobody asked it; called about once a second."""
        lane = self._lane
        if lane is None or self._is_benched(lane.target):
            return
        target = lane.target
        if not target.worker.is_alive:
            reason = "the worker died while it was idle"
            lane.replace(target.worker, lambda: self._restart(target, reason))

    def stop(self) -> None:
        """Finish what was begun and end all workers; nothing can be prepared any more."""
        with self._lock:
            self._stopped = True
            idle = tuple(self._idle)
            self._idle.clear()
            old, self._lane = self._lane, None
        if old is not None:
            old.retire(min(self._settings.drain_s, STOP_DRAIN_S))
        for worker in idle:
            worker.stop()

    def handle(self, call: InferenceCall) -> Reply:
        """Answer a client.

        Args:
            call: What it asks.

        Returns:
            The answer; 404 for another model than the one that serves, 503 with Retry-After when
            none can answer now.
        """
        start_s = self._clock.monotonic_s()
        lane = self._lane
        attributes: Mapping[str, str] = lane.attributes if lane is not None else _NOTHING
        try:
            reply, attributes = self._answer(call)
        except UnknownModelError as exc:
            return Reply.refusal(404, str(exc))
        except (NotServingError, WorkerError) as exc:
            reply = Reply.refusal(503, str(exc), RETRY_AFTER)
        record = self._recorder
        record.add("inference_requests_total", 1.0, attributes)
        if reply.status >= INTERNAL_ERROR:
            record.add("inference_failures_total", 1.0, attributes)
        elif reply.status == OK:
            latency_ms = (self._clock.monotonic_s() - start_s) * 1000
            record.observe("inference_latency_ms", latency_ms, attributes)
            record.add("worker_compute_seconds_total", reply.compute_ms / 1000, attributes)
        return reply

    def _answer(self, call: InferenceCall) -> tuple[Reply, Mapping[str, str]]:
        """Ask the active worker, and the one that replaces it when it crashes or hangs.

        A request that a worker died of is tried once more. One that was only waiting is innocent
        of the crash and goes on waiting for the next worker.

        Raises:
            UnknownModelError: Another model serves.
            NotServingError: Nothing serves.
            WorkerBusyError: Too many requests wait.
            WorkerCrashedError: A second worker crashed on this request.
            WorkerTimeoutError: A second worker hung on this request.
        """
        second = False
        for _ in range(MAX_TRIES):
            try:
                return self._ask(call)
            except WorkerGoneError:
                continue
            except (WorkerCrashedError, WorkerTimeoutError):
                if second:
                    raise
                second = True
        raise NotServingError("the model crashed again and again")

    def _ask(self, call: InferenceCall) -> tuple[Reply, Mapping[str, str]]:
        request = Infer(header_length=call.header_length, body=call.body)
        with self._entered() as lane:
            worker, model = lane.target.worker, lane.target.model
            if call.model != model.name or call.version not in {None, model.version}:
                asked = f"{call.model}:{call.version}" if call.version else call.model
                raise UnknownModelError(f"no model {asked[:140]!r} is served here")
            try:
                reply = worker.infer(request, timeout_s=self._settings.infer_timeout_s)
            except (WorkerCrashedError, WorkerTimeoutError) as exc:
                reason = exc.message
                lane.replace(worker, lambda: self._restart(lane.target, reason))
                raise
            return reply, lane.attributes

    @contextlib.contextmanager
    def _entered(self) -> Iterator[Lane]:
        """Be in the active lane: its worker is not retired meanwhile.

        Raises:
            NotServingError: There is none, or its variant is benched.
        """
        lane = self._lane
        while lane is not None and not lane.enter():
            lane = self._lane  # a switch came between
        if lane is None:
            raise NotServingError("no model is loaded")
        try:
            if self._is_benched(lane.target):
                raise NotServingError("the model crashed too often and is given a rest")
            yield lane
        finally:
            lane.leave()

    def _retire(self, lane: Lane | None) -> None:
        if lane is not None:
            lane.retire(self._settings.drain_s)

    def _restart(self, target: Prepared, reason: str) -> WorkerProcess | None:
        """Start a worker in the place of one that crashed; None when it must not or cannot."""
        self._count_crash(target, reason)
        if self._is_benched(target):
            return None
        try:
            if self._verify is not None:
                self._verify(target.digest, target.variant)
            return self._start(target.package_dir, target.variant, target.model)
        except FleetError as exc:
            self._count_crash(target, exc.message)
            return None

    def _start(self, package: Path, variant: Variant, model: ModelIdentity) -> WorkerProcess:
        worker = WorkerProcess.start(
            package,
            variant,
            model=model,
            limits=self._settings.limits,
            timeout_s=self._settings.start_timeout_s,
            clock=self._clock,
        )
        if fallback := worker.description.get("fallback"):
            self._tell("fallback", str(fallback), variant.name, model)
        return worker

    def _count_crash(self, target: Prepared, reason: str) -> None:
        """Remember a crash, tell of it, and bench the variant when it was one too many."""
        name = target.variant.name
        benched = self._benches.crashed(target.digest, name, reason)
        self._tell("worker", reason, name, target.model)
        if benched:
            self._tell("worker", f"variant {name} is benched: {reason}", name, target.model)

    def _is_benched(self, target: Prepared) -> bool:
        return self._benches.reason(target.digest, target.variant.name) is not None

    def _tell(self, kind: str, reason: str, variant: str, model: ModelIdentity) -> None:
        release = model.parameters["release"]
        self._recorder.event(kind, reason, {"variant": variant, "release": release})
