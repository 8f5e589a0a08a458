"""The switchboard: workers are prepared, switched, looked after and ended.

Rules:
- A switch loses nothing: new requests go to the new worker, the old one ends when it has answered
  those that it has, or when its time is over.
- Where there is no room for both, the old worker ends first, requests wait, and the gap is told.
- A worker that crashes or hangs is replaced.
- Nothing here imports NumPy or a runtime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from agent.ports import RecorderPort
from agent.serve.active_lane import ActiveLane, Gap
from agent.serve.answering import Answering, InferenceCall
from agent.serve.errors import NotServingError, WorkerCrashedError
from agent.serve.frames import ProbeResult, Reply
from agent.serve.lanes import Lane, Prepared, identify
from agent.serve.modes import Mode
from agent.serve.replacements import Replacements
from agent.serve.settings import ServingSettings
from agent.serve.workers import WorkerProcess
from wire.clock import Clock
from wire.errors import FleetError
from wire.package.manifest import Variant

__all__ = ["Active", "InferenceCall", "Mode", "Prepared", "Serving", "ServingSettings"]

STOP_DRAIN_S: Final = 1.0
"""The endpoint has waited for its requests when serving is stopped."""

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
        recorder: RecorderPort,
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
        self._lock = threading.Lock()
        self._active = ActiveLane(clock, self._settings.limits.waiting, self._settings.gap_wait_s)
        self._replacements = Replacements(recorder, clock, self._settings, verify)
        self._answering = Answering(
            self._active,
            self._replacements,
            recorder,
            clock,
            infer_timeout_s=self._settings.infer_timeout_s,
            mode=self._settings.mode,
        )
        self._idle: set[WorkerProcess] = set()
        self._stopped = False

    @property
    def active(self) -> Active | None:
        """What answers requests now; None when nothing does."""
        lane = self._active.lane
        return lane.target if lane is not None else None

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered now."""
        lane = self._active.lane
        return lane is not None and lane.target.worker.is_alive

    @property
    def benched(self) -> dict[str, str]:
        """Variants of the active package that crashed too often, and why."""
        lane = self._active.lane
        return self._replacements.benches.of(lane.target.digest) if lane is not None else {}

    @property
    def waiting(self) -> int:
        """Requests that wait for the active worker now."""
        lane = self._active.lane
        return lane.target.worker.waiting if lane is not None else 0

    @property
    def mode(self) -> Mode:
        """How requests are run; a change holds from the next run of the model on."""
        return self._answering.mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._answering.mode = mode

    def stream(self, *, on: bool) -> None:
        """Run one sample at a time from now on, to save memory, or no longer.

        Args:
            on: Which of the two.
        """
        if self.mode.stream is not on:
            self.mode = replace(self.mode, stream=on)

    def prepare(
        self, package: Path, digest: str, variant: Variant, *, alone: bool = False
    ) -> Prepared:
        """Start a worker for a variant and warm it up; requests do not reach it yet.

        Args:
            package: The package's directory; its files have been verified.
            digest: Of the package.
            variant: One of its variants.
            alone: Whether the active worker has to end first, because there is no memory for both.
                From then until `activate` or `discard`, requests wait or are told to come later.
                `discard` brings back what served before, and so does a failure.

        Returns:
            What `activate` or `discard` takes.

        Raises:
            WorkerError: It does not load, crashes or takes too long.
            StorageError: The manifest cannot be read.
            WireFormatError: The manifest is malformed.
            NotServingError: Serving has been stopped.
        """
        model = identify(package, variant, self._device)
        if alone:
            self._clear()
        try:
            worker = self._replacements.start(package, variant, model)
        except BaseException:
            if alone:
                self._restore()
            raise
        gap = self._active.gap
        if alone and gap is not None:
            gap.follower = worker
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
        """Run the golden samples in a prepared worker, and measure what one takes.

        Args:
            prepared: As `prepare` gave it.

        Returns:
            The verdict.

        Raises:
            WorkerError: The worker crashed or hung; it has been ended.
        """
        return prepared.worker.probe(timeout_s=self._settings.probe_timeout_s, measure=True)

    def probe_active(self) -> ProbeResult:
        """Run the golden samples in the worker that answers requests, between two of them.

        Returns:
            The verdict.

        Raises:
            NotServingError: Nothing serves.
            WorkerError: The worker crashed or hung; `supervise` replaces it.
        """
        if self._active.lane is None:  # who probes does not wait through a gap
            raise NotServingError("no model is loaded")
        with self._active.entered() as lane:
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
            self._replacements.benches.forgive(prepared.digest, prepared.variant.name)
            old, gap = self._active.put(lane)
        if gap is not None:
            self._tell_of(gap, prepared)
        self._retire(old)

    def discard(self, prepared: Prepared) -> None:
        """End a worker that was not activated.

        Args:
            prepared: As `prepare` gave it; nothing is done when it is the active one.
        """
        with self._lock:
            active = self.active
            if active is not None and active.worker is prepared.worker:
                return
            self._idle.discard(prepared.worker)
        prepared.worker.stop()
        gap = self._active.gap
        if gap is not None and gap.follower is prepared.worker:
            self._restore()

    def withdraw(self) -> None:
        """Let nothing answer any more: finish what was begun and end the worker."""
        old, _ = self._active.put(None)
        self._retire(old)

    def supervise(self) -> None:
        """Replace a worker that has died while nobody asked it; called about once a second."""
        lane = self._active.lane
        if lane is None or self._replacements.is_benched(lane.target):
            return
        target = lane.target
        if not target.worker.is_alive:
            reason = "the worker died while it was idle"
            lane.replace(target.worker, lambda: self._replacements.after_crash(target, reason))

    def stop(self) -> None:
        """Finish what was begun and end all workers; nothing can be prepared any more."""
        with self._lock:
            self._stopped = True
            idle = tuple(self._idle)
            self._idle.clear()
            old, _ = self._active.put(None)
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
        return self._answering.handle(call)

    def _retire(self, lane: Lane | None) -> None:
        if lane is not None:
            lane.retire(self._settings.drain_s)

    def _clear(self) -> None:
        """Let requests wait, and end the active worker when it has answered what it has."""
        lane = self._active.lane
        self._retire(self._active.open_gap(lane.target.worker.start_s if lane else 0.0))

    def _restore(self) -> None:
        """End a gap with what served before it."""
        gap = self._active.gap
        if gap is None:
            return
        previous = gap.previous
        if previous is None:
            self._active.put(None)
            return
        try:
            worker = self._replacements.again(previous)
        except FleetError as exc:
            self._active.put(None)
            self._replacements.tell("worker", exc.message, previous.variant, previous.model)
            return
        restored = replace(previous, worker=worker)
        with self._lock:
            wanted = not self._stopped and self._active.gap is gap
            if wanted:
                self._active.put(Lane(restored))
        if wanted:
            self._tell_of(gap, restored)
        else:
            worker.stop()

    def _tell_of(self, gap: Gap, follower: Prepared) -> None:
        """Say how long nothing answered, and how many requests waited for it."""
        gap_ms = (self._clock.monotonic_s() - gap.began_s) * 1000
        attributes = {"variant": follower.variant.name, "release": follower.release}
        self._recorder.observe("switch_gap_ms", gap_ms, attributes)
        self._replacements.tell(
            "gap",
            f"the old worker ended before {follower.variant.name} started: no room for both",
            follower.variant,
            follower.model,
            gap_ms=round(gap_ms, 1),
            waited=gap.waited,
        )
