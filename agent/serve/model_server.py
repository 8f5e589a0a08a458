"""The model server prepares variants in workers, switches between them, tests and ends them.

Rules:
- A switch loses no request: new requests go to the new worker; the old one ends when it has
  answered its requests, or when its time is over.
- If there is no memory for both, the old worker ends first, requests wait, and an event records
  the gap.
- The model server replaces a worker that crashes or hangs.
- `agent.serve.further_workers` starts and ends all workers of the variant that serves but one.
- The version before is kept only as long as the policy allows it, and ends before anything else
  that needs memory has to.
- Nothing here imports NumPy or a runtime.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from agent.ports import RequestRecorderPort, Running, SignedPort
from agent.serve.benches import Benches
from agent.serve.errors import NotServingError, WorkerCrashedError
from agent.serve.frames import ProbeResult
from agent.serve.further_workers import FurtherWorkers
from agent.serve.pool import Prepared, WorkerPool
from agent.serve.router import Router
from agent.serve.routes import Handover, Route
from agent.serve.routing import NOT_LOADED
from agent.serve.settings import ServingSettings
from wire.clock import Clock
from wire.errors import FleetError
from wire.package.variant import Variant

STOP_DRAIN_S: Final = 0.5
"""Short, because the endpoint has waited for its requests before the model server stops."""


class ModelServer:
    """Prepares workers and switches between them; its router answers requests.

    Args:
        recorder: Where figures and events go.
        clock: For durations.
        device: Identifier of this device, put into every response.
        settings: Bounds.
        benches: Knows which variants are benched; None for a new one.
        signed: What was signed of the files, which each worker compares before it loads them; None
            to load them as they are.
    """

    def __init__(
        self,
        recorder: RequestRecorderPort,
        clock: Clock,
        *,
        device: str = "",
        settings: ServingSettings | None = None,
        benches: Benches | None = None,
        signed: SignedPort | None = None,
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._settings = settings or ServingSettings()
        self._lock = threading.Lock()
        self.benches = benches or Benches(clock)
        self._pool = WorkerPool(
            recorder, clock, self._settings, device=device, benches=self.benches, signed=signed
        )
        self.router = Router(self._pool, recorder, clock, self._settings)
        self._routes = self.router.routes
        self._further = FurtherWorkers(self._pool, self._routes, clock, self._settings)
        self._idle: set[Prepared] = set()
        self._stopped = False

    @property
    def active(self) -> Prepared | None:
        """The variant that answers requests now; None if there is none."""
        return self.router.active

    @property
    def held_bytes(self) -> int:
        """Memory that all workers hold."""
        return self._routes.memory_bytes

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn with the variant that serves."""
        route = self._routes.route
        return sum(lane.target.waiting for lane in route.lanes) if route is not None else 0

    @property
    def is_settled(self) -> bool:
        """Whether as many workers serve as should, as far as they can, and nothing changes that."""
        return self._further.is_settled

    def most_workers(self, asked: int) -> int:
        """Return how many workers a variant gets.

        Args:
            asked: How many the policy asks for.

        Returns:
            As many as the device has processors for, or as could start.
        """
        return self._further.most(asked)

    def run_requests(self, running: Running) -> None:
        """Say how requests are run from now on; `supervise` starts and ends workers for it."""
        self._further.want(running.workers, keeps_previous=running.keeps_previous)
        wait_s = math.inf if running.longest_wait_s is None else running.longest_wait_s
        self.router.mode = msgspec.structs.replace(
            self.router.mode, stream=running.stream, joins=running.joins, longest_wait_s=wait_s
        )

    def switch_to(
        self, package: Path, digest: str, variant: Variant, *, stop_first: bool = False
    ) -> None:
        """Start a worker for a variant, send new requests to it, and end the old worker.

        Args:
            package: The package's directory.
            digest: Digest of the package.
            variant: One of its variants.
            stop_first: Whether the active worker has to end first, because there is no memory for
                both. If the new worker cannot serve, the old variant is started again.

        Raises:
            FleetError: The errors of `prepare` and `activate`.
        """
        prepared = self.prepare(package, digest, variant, stop_first=stop_first)
        try:
            self.activate(prepared)
        except FleetError:
            self.discard(prepared)
            raise

    def probe(self, package: Path, digest: str, variant: Variant) -> ProbeResult:
        """Run the golden samples and their processing in a new worker; measure the latency of one.

        Args:
            package: The package's directory.
            digest: Digest of the package.
            variant: One of its variants.

        Returns:
            The verdict.

        Raises:
            IntegrityError: A file differs from what was signed.
            WorkerError: The worker does not load the variant, crashes or hangs.
            StorageError: The manifest cannot be read.
            WireFormatError: The manifest is malformed.
            NotServingError: The model server has been stopped.
        """
        prepared = self.prepare(package, digest, variant)
        try:
            return prepared.worker.probe(timeout_s=self._settings.start_timeout_s, measure=True)
        finally:
            self.discard(prepared)

    def probe_active(self) -> ProbeResult:
        """Run the golden samples in the worker that answers requests now.

        Returns:
            The verdict.

        Raises:
            NotServingError: No variant serves.
            WorkerError: The worker crashes or hangs; `supervise` replaces it.
        """
        if self.active is None:  # a probe does not wait during a handover
            raise NotServingError("no model is loaded")
        with self._routes.entered() as place:
            return place.lane.target.worker.probe(timeout_s=self._settings.start_timeout_s)

    def prepare(
        self, package: Path, digest: str, variant: Variant, *, stop_first: bool = False
    ) -> Prepared:
        """Start a worker for a variant and warm it up; requests do not reach it yet.

        If it is the version before, which is still loaded, that is ready at once.

        Args:
            package: The package's directory.
            digest: Digest of the package.
            variant: One of its variants.
            stop_first: Whether the active worker has to end first, because there is no memory for
                both. From then until `activate` or `discard`, requests wait or get a 503. `discard`
                starts the old variant again, and so does a failure.

        Returns:
            The variant in its worker, for `activate` or `discard`.

        Raises:
            IntegrityError: A file differs from what was signed.
            WorkerError: The worker does not load the variant, crashes or takes too long.
            StorageError: The manifest cannot be read.
            WireFormatError: The manifest is malformed.
            NotServingError: The model server has been stopped.
        """
        model = self._pool.identify(package, variant)
        kept = self._kept(package, digest, variant)
        if stop_first:
            if kept is None:
                self._pool.check(digest, variant)  # what serves must not end for a damaged file
                self._retire(self._routes.forget_kept())
            self._retire(self._routes.begin_handover())
        try:
            prepared = kept or self._pool.start(package, digest, variant, model)
        except BaseException:
            if stop_first:
                self._restore()
            raise
        handover = self._routes.handover
        if stop_first and handover is not None:
            handover.follower = prepared
        with self._lock:
            self._idle.add(prepared)
            stopped = self._stopped
        if stopped:
            self.discard(prepared)
            raise NotServingError("serving has been stopped")
        return prepared

    def activate(self, prepared: Prepared) -> None:
        """Send new requests to a prepared worker; let the old one finish and end it.

        Args:
            prepared: The result of `prepare`.

        Raises:
            WorkerCrashedError: The worker has ended meanwhile; the old one goes on.
            NotServingError: The model server has been stopped.
        """
        with self._lock:
            if self._stopped:
                raise NotServingError("serving has been stopped")
            if not prepared.worker.is_alive:
                raise WorkerCrashedError("the worker ended before it was activated")
            self._idle.discard(prepared)
            self.benches.forgive(prepared.digest, prepared.variant.name)
            ended, handover = self._routes.put(prepared, keeps=self._further.keeps_previous)
        if handover is not None:
            self._tell_of(handover, prepared)
        self._routes.retire_all(ended, self._settings.drain_s)
        self._routes.lighten_kept(self._settings.drain_s)

    def discard(self, prepared: Prepared) -> None:
        """End a worker that was not activated.

        Args:
            prepared: The result of `prepare`; if it answers requests already, nothing is done.
        """
        with self._lock:
            self._idle.discard(prepared)
            if prepared in {self.active, self._routes.kept}:
                return
        prepared.stop()
        handover = self._routes.handover
        if handover is not None and handover.follower is prepared:
            self._restore()

    def withdraw(self, why: str = NOT_LOADED, *, keeps_previous: bool = False) -> None:
        """Stop serving: finish the requests that have begun and end the worker.

        Args:
            why: What requests are told that come from now on.
            keeps_previous: Whether the version before goes on, if it is kept.
        """
        ended, _ = self._routes.put(None, why)
        self._routes.retire_all(ended, self._settings.drain_s)
        if not keeps_previous:
            self._retire(self._routes.forget_kept())

    def keep_only(self, digests: Collection[str | None]) -> int:
        """End the version before, unless its package is one of these.

        Args:
            digests: Digests of the packages whose files stay on the device.

        Returns:
            The memory that it held, in bytes; 0 if it goes on or there is none.
        """
        kept = self._routes.kept
        if kept is None or kept.digest in digests:
            return 0
        held_bytes = kept.memory_bytes
        self._retire(self._routes.forget_kept())
        return held_bytes

    def supervise(self) -> None:
        """Replace a worker that died while it had no request, and see to the further ones.

        Called about once a second.
        """
        self._routes.supervise()
        self._further.supervise()

    def stop(self) -> None:
        """Finish the requests that have begun and end all workers; `prepare` fails from now on."""
        with self._lock:
            self._stopped = True
            idle = tuple(self._idle)
            self._idle.clear()
            ended, _ = self._routes.put(None)
        kept = self._routes.forget_kept()
        self._routes.retire_all(
            [*ended, *([kept] if kept is not None else [])],
            min(self._settings.drain_s, STOP_DRAIN_S),
        )
        for prepared in idle:
            prepared.stop()

    def _retire(self, old: Route | None) -> None:
        self._routes.retire(old, self._settings.drain_s)

    def _kept(self, package: Path, digest: str, variant: Variant) -> Prepared | None:
        """Return a variant of the version before that is still loaded; None if it is not."""
        kept = self._routes.kept
        if kept is None or not kept.worker.is_alive or kept.package_dir != package:
            return None
        is_it = (kept.digest, kept.variant.name) == (digest, variant.name)
        return kept if is_it else None

    def _restore(self) -> None:
        """End a handover by starting again the variant that served before it."""
        handover = self._routes.handover
        if handover is None:
            return
        previous = handover.previous
        if previous is None:
            self._routes.put(None)
            return
        try:
            restored = self._pool.start_again(previous)
        except FleetError as exc:
            self._routes.put(None)
            self._pool.tell("worker", exc.message, previous)
            return
        with self._lock:
            wanted = not self._stopped and self._routes.handover is handover
            if wanted:
                self._routes.put(restored)
        if wanted:
            self._tell_of(handover, restored)
        else:
            restored.stop()

    def _tell_of(self, handover: Handover, follower: Prepared) -> None:
        """Record how long no worker answered, and how many requests waited."""
        gap_ms = (self._clock.monotonic_s() - handover.began_s) * 1000
        attributes = {"variant": follower.variant.name, "release": follower.release}
        self._recorder.observe("switch_gap_ms", gap_ms, attributes)
        self._pool.tell(
            "gap",
            f"the old worker ended before {follower.variant.name} started: {handover.cause}",
            follower,
            gap_ms=round(gap_ms, 1),
            waited=handover.waited,
        )
