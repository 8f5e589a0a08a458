"""The shadow of one model: a worker with another release, and what it makes of answered requests.

Rules:
- It gets a copy of a request after the answer, when the release that serves has nothing to do, and
  computes only a share of the time. What would have to wait longer is dropped and counted.
- Its worker stands back behind all else on the device, and tells figures alone: no answer of it
  leaves its process.
- It ends as soon as something hinders it, and rests before it begins again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from agent.errors import ShadowError, StoppedError, StorageError
from agent.packages import Package
from agent.ports import RecorderPort
from agent.select.decisions import candidate, preference
from agent.serve.frames import Asked, Compare, Compared, ModelIdentity, Reply
from agent.serve.router import Router
from agent.serve.routes import InferenceCall
from agent.serve.settings import WorkerLimits
from agent.serve.worker_process import WorkerProcess
from agent.shadow.bounds import NOTHING_SERVES, SAME, Hindrance, Word
from agent.shadow.settings import ShadowSettings
from agent.shadow.waiting import Sample, Waiting
from wire.clock import Clock
from wire.errors import FleetError, IntegrityError
from wire.package.variant import Variant
from wire.shadow import ShadowRule

REQUESTS: Final = "shadow_requests_total"
AGREEMENTS: Final = "shadow_agreements_total"
FAILURES: Final = "shadow_failures_total"
SKIPPED: Final = "shadow_skipped_total"
DIFFERENCE: Final = "shadow_differences"
LATENCY: Final = "shadow_latency_ms"
LIVE_LATENCY: Final = "shadow_live_latency_ms"

GRACE_S: Final = 0.02
"""So long after its end a request is left alone: its answer is being sent."""

PATIENCE_S: Final = 2.0
"""A request that has waited longer for the device to have time is dropped."""

POLL_S: Final = 0.02
LOOK_S: Final = 1.0
REST_S: Final = 60.0
"""Between an end and the next start: a start reads and hashes all files."""

MOST_REST_S: Final = 3600.0
HEADER_LENGTH: Final = "Inference-Header-Content-Length"


class Surroundings(Protocol):
    """What a shadow needs of its device."""

    def router(self, model: str) -> Router | None:
        """Return what answers requests for a model; None if the device has it no more."""
        ...

    def hindrance(self, *needs: Variant) -> Hindrance | None:
        """Return why no shadow may run now, if these must find room, too."""
        ...

    def bring(self, rule: ShadowRule, *, again: bool) -> tuple[Package, tuple[Variant, ...]]:
        """Bring the package of a shadow, and return it with its variants for this device.

        With `again` what is damaged of it is fetched once more.
        """
        ...


class Shadow:
    """The shadow of one model. `saw` and `put_down` are for any thread, the rest for one.

    Args:
        model: The model.
        rule: Which release, and how much it sees.
        device: The device.
        settings: How much it may compute.
        limits: What its worker may use.
        timeout_s: How long its worker may take to start, and for a request.
        recorder: Takes figures and events.
        clock: Time.
        wake: Called when there is a request for it.
        draw: Returns a random number from 0 to below 1; the system's by default.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it connects
        self,
        model: str,
        rule: ShadowRule,
        device: Surroundings,
        settings: ShadowSettings,
        *,
        limits: WorkerLimits,
        timeout_s: float,
        recorder: RecorderPort,
        clock: Clock,
        wake: Callable[[], None],
        draw: Callable[[], float] = random.random,  # noqa: S311 - a share, not a secret
    ) -> None:
        self.model = model
        self.rule = rule
        self.release = f"{rule.release.name}:{rule.release.version}"
        self._device = device
        self._settings = settings
        self._limits = msgspec.structs.replace(limits, stands_back=True)
        self._timeout_s = timeout_s
        self._recorder = recorder
        self._clock = clock
        self._wake = wake
        self._draw = draw
        self._lock = threading.Lock()
        self._waiting = Waiting()
        self._worker: WorkerProcess | None = None
        self._variant = "none"
        self._why: Word = "starting"
        """Why it does not run, while it does not."""

        self._told = ""
        self._begin_s = 0.0
        """Before this time it does not start, or takes no request."""

        self._failed_rest_s = REST_S
        self._is_damaged = False
        self._told_fault = False
        """Whether this worker's first failure has been told; the counter has all."""

        self._is_over = False

    def saw(self, call: InferenceCall, reply: Reply) -> None:
        """Take an answered request, if chance wants it; returns at once."""
        if self._draw() >= self.rule.share:
            return
        if self._worker is None:
            self._skip(self._why)
        elif call.regions:  # the client may change its memory from now on
            self._skip("form")
        elif self._waiting.add(Sample(call, reply, self._clock.monotonic_s())):
            self._wake()
        else:
            self._skip("busy")

    def step(self) -> float:
        """Do what is next: end, start, or compare a request.

        Returns:
            How long nothing needs to be done, unless there is a request.

        Raises:
            StoppedError: The agent is being stopped.
        """
        router = self._device.router(self.model)
        if router is not None:
            router.shadow = self.saw
        hindrance = self._hindrance(router)
        if hindrance is not None:
            self.put_down(hindrance)
            return LOOK_S
        worker, now_s = self._worker, self._clock.monotonic_s()
        if now_s < self._begin_s:
            return min(self._begin_s - now_s, LOOK_S)
        if worker is None:
            self._start(router)
            return 0.0
        return self._next(worker, router)

    def put_down(self, hindrance: Hindrance) -> int:
        """End the worker, if there is one.

        Args:
            hindrance: Why.

        Returns:
            The memory that it held, in bytes.
        """
        with self._lock:
            worker, self._worker = self._worker, None
            self._why = hindrance.word
            if worker is not None:
                self._begin_s = self._clock.monotonic_s() + REST_S
        if worker is None:
            return 0
        held_bytes = worker.rss_bytes()
        worker.stop(grace_s=0)
        self._skip(hindrance.word, self._waiting.clear())
        self._tell(f"the shadow {self.release} ends: {hindrance.text}")
        return held_bytes

    def end(self, why: str) -> None:
        """End for good.

        Args:
            why: For people.
        """
        with self._lock:
            self._is_over = True
        router = self._device.router(self.model)
        if router is not None:
            router.shadow = None
        self.put_down(Hindrance("nothing", why))

    @property
    def status(self) -> str:
        """What it does, for people."""
        return "runs" if self._worker is not None else f"does not run: {self._why}"

    def _hindrance(self, router: Router | None) -> Hindrance | None:
        live = router.active if router is not None else None
        if live is None:
            return NOTHING_SERVES
        if live.digest == self.rule.release.digest:
            return SAME
        return self._device.hindrance(live.variant)

    def _start(self, router: Router | None) -> None:
        live = router.active if router is not None else None
        try:
            package, variants = self._device.bring(self.rule, again=self._is_damaged)
            variant = _chosen(variants, live.variant.name if live is not None else "")
            needs = [variant] if live is None else [variant, live.variant]
            if (hindrance := self._device.hindrance(*needs)) is not None:
                self._why = hindrance.word
                self._begin_s = self._clock.monotonic_s() + REST_S
                self._tell(f"the shadow {self.release} does not start: {hindrance.text}")
                return
            worker = self._started(package, variant)
        except StoppedError:
            raise
        except FleetError as exc:
            self._is_damaged = isinstance(exc, IntegrityError | StorageError)
            self._fail(exc.message)
            return
        with self._lock:
            is_wanted = not self._is_over
            if is_wanted:
                self._worker, self._variant = worker, variant.name
                self._told_fault = False
        if not is_wanted:
            worker.stop(grace_s=0)
            return
        beside = live.release if live is not None else "nothing"
        self._tell(f"{self.release} runs as the shadow of {beside}, with variant {variant.name}")

    def _started(self, package: Package, variant: Variant) -> WorkerProcess:
        """Start a worker, and let it pass its golden test.

        Raises:
            ShadowError: It fails its test.
            FleetError: It does not start.
        """
        worker = WorkerProcess.start(
            package.directory,
            variant,
            model=ModelIdentity(name=package.index.name, version=package.index.version),
            limits=self._limits,
            timeout_s=self._timeout_s,
            clock=self._clock,
            files=package.files((variant,)),
        )
        try:
            probed = worker.probe(timeout_s=self._timeout_s)
        except FleetError:
            worker.stop(grace_s=0)
            raise
        if not probed.passed:
            worker.stop(grace_s=0)
            raise ShadowError(f"variant {variant.name} fails its golden test: {probed.detail}")
        return worker

    def _next(self, worker: WorkerProcess, router: Router | None) -> float:
        sample, now_s = self._waiting.oldest, self._clock.monotonic_s()
        if sample is None:
            return LOOK_S
        waited_s = now_s - sample.at_s
        if waited_s < GRACE_S:
            return GRACE_S - waited_s
        is_live_busy = router is not None and router.in_flight > 0
        if is_live_busy and waited_s <= PATIENCE_S:
            return POLL_S
        self._waiting.remove_oldest()
        if waited_s > PATIENCE_S:
            self._skip("late")
            return 0.0
        self._compare(worker, sample)
        rest = 1.0 / self._settings.time_share - 1.0
        self._begin_s = now_s + (self._clock.monotonic_s() - now_s) * (1.0 + rest)
        return 0.0

    def _compare(self, worker: WorkerProcess, sample: Sample) -> None:
        length = sample.reply.headers.get(HEADER_LENGTH)
        request = Compare(
            request=Asked(header_length=sample.call.header_length, body=sample.call.body),
            answer=sample.reply.body,
            answer_header_length=None if length is None else int(length),
        )
        try:
            compared = worker.compare(request, timeout_s=self._timeout_s)
        except FleetError as exc:
            if self._worker is worker:  # else somebody has ended it
                self._record(Compared(fault=exc.message), sample)
                self._fail(exc.message)
            return
        self._record(compared, sample)

    def _record(self, compared: Compared, sample: Sample) -> None:
        if compared.unlike:
            self._skip("form")
            return
        about = {"release": self.release, "variant": self._variant}
        self._recorder.add(REQUESTS, 1.0, about)
        if compared.fault:
            self._recorder.add(FAILURES, 1.0, about)
            if not self._told_fault:
                self._told_fault = True
                self._tell(f"the shadow {self.release} could not answer: {compared.fault}")
            return
        if compared.agrees:
            self._recorder.add(AGREEMENTS, 1.0, about)
        self._recorder.observe(LATENCY, compared.compute_ms, about)
        self._recorder.observe(LIVE_LATENCY, sample.reply.compute_ms, about)
        if compared.difference is not None:
            self._recorder.observe(DIFFERENCE, compared.difference, about)

    def _fail(self, message: str) -> None:
        """Rest for longer and longer after each failure."""
        self.put_down(Hindrance("failed", message))
        self._why = "failed"
        self._begin_s = self._clock.monotonic_s() + self._failed_rest_s
        self._failed_rest_s = min(2 * self._failed_rest_s, MOST_REST_S)
        self._tell(f"the shadow {self.release} does not run for now: {message}")

    def _skip(self, why: Word, count: int = 1) -> None:
        if count:
            about = {"release": self.release, "variant": self._variant, "reason": why}
            self._recorder.add(SKIPPED, float(count), about)

    def _tell(self, reason: str) -> None:
        """Record an event, unless it says the same as the last one."""
        if reason != self._told:
            self._told = reason
            self._recorder.event("shadow", reason, {"release": self.release, "model": self.model})


def _chosen(variants: tuple[Variant, ...], like: str) -> Variant:
    """Return the variant that is called as the one that serves, or else the most accurate one."""
    by_name = {variant.name: variant for variant in variants}
    return by_name.get(like) or by_name[preference(candidate(each) for each in variants)[0]]
