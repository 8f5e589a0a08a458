"""Starts workers, replaces those that crashed, and counts crashes.

Rules:
- Each worker compares its files with the signed digests before it loads them, the first one and
  every other. What it finds damaged is remembered, so that it is repaired.
- Three crashes within a minute bench a variant for five minutes. A bench ends, because the device
  may be the cause (low memory, heat). A request with too many samples causes no crash.
- The pool records an event for each crash, bench and fallback.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.errors import StorageError
from agent.package_files import SignedFile
from agent.ports import RecorderPort, SignedPort
from agent.serve.benches import Benches
from agent.serve.frames import ModelIdentity
from agent.serve.scheduler import Scheduler
from agent.serve.settings import ServingSettings
from agent.serve.worker_process import END_GRACE_S, WorkerProcess
from wire.clock import Clock
from wire.errors import FleetError, IntegrityError
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes
from wire.package.variant import Variant


class Prepared(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A variant in a worker that is ready for requests."""

    digest: str
    package_dir: Path
    variant: Variant
    model: ModelIdentity
    worker: WorkerProcess
    scheduler: Scheduler
    """Lets requests take turns with the worker."""

    @property
    def memory_bytes(self) -> int:
        """Resident size of the worker."""
        return self.worker.rss_bytes()

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn with the worker."""
        return self.scheduler.waiting

    @property
    def fell_back(self) -> bool:
        """Whether the variant runs elsewhere than it promises."""
        return bool(self.worker.description.get("fallback"))

    @property
    def release(self) -> str:
        """Name and version of the package."""
        return f"{self.model.name}:{self.model.version}"

    def hang_up(self) -> None:
        """Let the worker end by itself, without waiting for it; `stop` must follow."""
        self.scheduler.close(self.worker.why_ended)
        self.worker.hang_up()

    def stop(self, *, grace_s: float = END_GRACE_S) -> None:
        """End the worker; a request that it is working on fails. Calling it twice is safe.

        Args:
            grace_s: How long it may take to end by itself.
        """
        self.scheduler.close(self.worker.why_ended)
        self.worker.stop(grace_s=grace_s)


class WorkerPool:
    """Starts workers and counts their crashes. For any thread.

    Args:
        recorder: Records crashes and fallbacks.
        clock: For durations.
        settings: Bounds.
        device: Identifier of this device, put into every response.
        benches: Counts the crashes and knows which variants are benched.
        signed: What was signed of the files; None to load them as they are.
    """

    def __init__(
        self,
        recorder: RecorderPort,
        clock: Clock,
        settings: ServingSettings,
        *,
        device: str = "",
        benches: Benches,
        signed: SignedPort | None = None,
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._device = device
        self._signed = signed
        self.benches = benches
        self.threads = settings.limits.threads
        """Threads of the workers that start from now on."""

    def identify(self, package: Path, variant: Variant) -> ModelIdentity:
        """Return the name and version under which a worker serves its model.

        Args:
            package: The package's directory.
            variant: One of its variants.

        Returns:
            The identity, whose parameters name variant, release and device.

        Raises:
            StorageError: The manifest cannot be read.
            WireFormatError: The manifest is malformed.
        """
        try:
            manifest = manifest_from_bytes((package / MANIFEST_FILE).read_bytes())
        except OSError as exc:
            raise StorageError(f"cannot read the manifest: {exc.strerror}") from exc
        release = f"{manifest.name}:{manifest.version}"
        parameters = {"variant": variant.name, "release": release, "device": self._device}
        return ModelIdentity(
            name=manifest.name,
            version=manifest.version,
            parameters=parameters,
            names_answers=self._settings.names_answers,
        )

    def start(self, package: Path, digest: str, variant: Variant, model: ModelIdentity) -> Prepared:
        """Start a worker, with as many threads as workers have now.

        Args:
            package: The package's directory.
            digest: Digest of the package.
            variant: One of its variants.
            model: The identity that the worker puts into its answers.

        Returns:
            The variant in a worker that is ready.

        Raises:
            IntegrityError: A file differs from what was signed.
            StorageError: A file cannot be read.
            FleetError: The index of the package is not what was signed.
            WorkerError: The worker does not load the variant, crashes or takes too long.
        """
        limits = msgspec.structs.replace(self._settings.limits, threads=self.threads)
        files: Sequence[SignedFile] = self._signed.of(digest, variant) if self._signed else ()
        try:
            worker = WorkerProcess.start(
                package,
                variant,
                model=model,
                limits=limits,
                timeout_s=self._settings.start_timeout_s,
                clock=self._clock,
                files=files,
            )
        except (IntegrityError, StorageError) as exc:
            # A package that was moved or removed meanwhile is not damaged.
            if self._signed is not None and package.is_dir():
                self._signed.note(digest, variant, exc)
            raise
        prepared = Prepared(
            digest=digest,
            package_dir=package,
            variant=variant,
            model=model,
            worker=worker,
            scheduler=Scheduler(worker, limits.waiting, self._clock),
        )
        if fallback := worker.description.get("fallback"):
            self.tell("fallback", str(fallback), prepared)
        return prepared

    def check(self, digest: str, variant: Variant) -> None:
        """Hash the files of a variant here; raises FleetError if one differs from what was signed.

        Args:
            digest: Digest of the package.
            variant: One of its variants.
        """
        if self._signed is not None:
            self._signed.check(digest, variant)

    def start_again(self, before: Prepared) -> Prepared:
        """Start a new worker for a variant that served before.

        Args:
            before: The variant; its worker has ended.

        Returns:
            The same variant in a worker that is ready.

        Raises:
            FleetError: The files differ from what was signed, or the worker does not start.
        """
        return self.start(before.package_dir, before.digest, before.variant, before.model)

    def after_crash(self, crashed: Prepared, reason: str) -> Prepared | None:
        """Replace a worker that crashed, or that was ended for a request with too many samples.

        Args:
            crashed: The variant in the worker that crashed.
            reason: Why it crashed.

        Returns:
            The variant in a new worker; None if the variant is benched or does not start.
        """
        self.note_end(crashed, reason)
        if self.is_benched(crashed):
            return None
        try:
            return self.start_again(crashed)
        except FleetError as exc:
            self._count_crash(crashed, exc.message)
            return None

    def note_end(self, crashed: Prepared, reason: str) -> None:
        """Count the end of a worker, and tell of it.

        Args:
            crashed: The variant in the worker that crashed, or that was ended for a request with
                too many samples: that is no crash.
            reason: Why it ended.
        """
        if crashed.scheduler.ended_by_request:
            self.tell("worker", f"ended for a large request: {reason}", crashed)
        else:
            self._count_crash(crashed, reason)

    def is_benched(self, prepared: Prepared) -> bool:
        """Tell whether a variant crashed too often to go on."""
        return prepared.variant.name in self.benches.of(prepared.digest)

    def tell(self, kind: str, reason: str, prepared: Prepared, **data: object) -> None:
        """Record an event about a variant."""
        about = {"variant": prepared.variant.name, "release": prepared.release}
        self._recorder.event(kind, reason, about | data)

    def _count_crash(self, crashed: Prepared, reason: str) -> None:
        """Count a crash, record an event, and bench the variant if it crashed too often."""
        name = crashed.variant.name
        benched = self.benches.crashed(crashed.digest, name, reason)
        self.tell("worker", reason, crashed)
        about = {"variant": name, "release": crashed.release}
        self._recorder.add("worker_crashes_total", 1.0, about)
        if benched:
            self.tell("worker", f"variant {name} is benched: {reason}", crashed)
