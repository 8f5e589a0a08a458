"""Starting workers, also in the place of those that crashed, and telling of it.

Rules:
- A worker is started again only from files that are still what was signed.
- A variant that crashed too often is benched, and not started again until it has had its rest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agent.ports import RecorderPort
from agent.serve.benches import Benches
from agent.serve.lanes import Prepared
from agent.serve.settings import ServingSettings
from agent.serve.workers import ModelIdentity, WorkerProcess
from wire.clock import Clock
from wire.errors import FleetError
from wire.package.manifest import Variant


class Replacements:
    """Starts workers and counts their crashes. For any thread.

    Args:
        recorder: Hears of crashes and fallbacks.
        clock: For durations.
        settings: Bounds.
        verify: Called with the package's digest and the variant before a worker is started again.
    """

    def __init__(
        self,
        recorder: RecorderPort,
        clock: Clock,
        settings: ServingSettings,
        verify: Callable[[str, Variant], None] | None,
    ) -> None:
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._verify = verify
        self.benches = Benches(clock)

    def start(self, package: Path, variant: Variant, model: ModelIdentity) -> WorkerProcess:
        """Start a worker.

        Args:
            package: The package's directory, whose files have been verified.
            variant: One of its variants.
            model: What the worker calls its model.

        Returns:
            A worker that is ready.

        Raises:
            WorkerError: It does not load, crashes or takes too long.
        """
        worker = WorkerProcess.start(
            package,
            variant,
            model=model,
            limits=self._settings.limits,
            timeout_s=self._settings.start_timeout_s,
            clock=self._clock,
        )
        if fallback := worker.description.get("fallback"):
            self.tell("fallback", str(fallback), variant, model)
        return worker

    def again(self, target: Prepared) -> WorkerProcess:
        """Start a worker for what served before.

        Args:
            target: What it is to serve.

        Returns:
            A worker that is ready.

        Raises:
            FleetError: The files are not what was signed, or the worker does not start.
        """
        if self._verify is not None:
            self._verify(target.digest, target.variant)
        return self.start(target.package_dir, target.variant, target.model)

    def after_crash(self, target: Prepared, reason: str) -> WorkerProcess | None:
        """Start a worker in the place of one that crashed.

        Args:
            target: What it served.
            reason: Of the crash.

        Returns:
            A worker that is ready; None when there must not or cannot be one.
        """
        self._count_crash(target, reason)
        if self.is_benched(target):
            return None
        try:
            return self.again(target)
        except FleetError as exc:
            self._count_crash(target, exc.message)
            return None

    def is_benched(self, target: Prepared) -> bool:
        """Tell whether a variant crashed too often to go on."""
        return self.benches.reason(target.digest, target.variant.name) is not None

    def tell(
        self, kind: str, reason: str, variant: Variant, model: ModelIdentity, **data: object
    ) -> None:
        """Make an event of something that happened to a variant."""
        about = {"variant": variant.name, "release": model.parameters["release"]}
        self._recorder.event(kind, reason, about | data)

    def _count_crash(self, target: Prepared, reason: str) -> None:
        """Remember a crash, tell of it, and bench the variant when it was one too many."""
        name = target.variant.name
        benched = self.benches.crashed(target.digest, name, reason)
        self.tell("worker", reason, target.variant, target.model)
        if benched:
            text = f"variant {name} is benched: {reason}"
            self.tell("worker", text, target.variant, target.model)
