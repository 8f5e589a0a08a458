"""A lane: the way of requests to one variant, through one worker after another.

Rules:
- A lane is closed once and for ever: then nobody enters it, and it gets no new worker.
- Its worker is ended when those who had entered have left, or when their time is over.
- Whoever meets a dead worker has it replaced; who comes second waits for who was first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from agent.errors import StorageError
from agent.serve.workers import ModelIdentity, WorkerProcess
from wire.package.manifest import MANIFEST_FILE, Variant, manifest_from_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A variant in a worker that is ready for requests."""

    digest: str
    package_dir: Path
    variant: Variant
    model: ModelIdentity
    worker: WorkerProcess

    @property
    def memory_bytes(self) -> int:
        """Resident size of the worker."""
        return self.worker.rss_bytes()

    @property
    def release(self) -> str:
        """Name and version of the package."""
        return f"{self.model.name}:{self.model.version}"


def identify(package: Path, variant: Variant, device: str) -> ModelIdentity:
    """Return what a worker is to call its model.

    Args:
        package: The package's directory.
        variant: One of its variants.
        device: Identifier of this device.

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
    parameters = {"variant": variant.name, "release": release, "device": device}
    return ModelIdentity(
        name=manifest.name, version=manifest.version, parameters=MappingProxyType(parameters)
    )


class Lane:
    """The way of requests to one variant.

    Args:
        target: The variant in its first worker.
    """

    def __init__(self, target: Prepared) -> None:
        self.target = target
        """The variant in its present worker."""

        self.attributes = {"variant": target.variant.name, "release": target.release}
        """Of the figures of its requests."""

        self._changed = threading.Condition()
        self._in_flight = 0
        self._closed = False
        self._replacing = threading.Lock()

    def enter(self) -> bool:
        """Begin a request; False when the lane is closed. Who has entered must leave."""
        with self._changed:
            if self._closed:
                return False
            self._in_flight += 1
            return True

    def leave(self) -> None:
        """End a request."""
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    def replace(self, dead: WorkerProcess, start: Callable[[], WorkerProcess | None]) -> None:
        """Put a new worker in the place of a dead one, unless that has been done.

        Args:
            dead: The worker that failed.
            start: Starts another; None when there is none to be had.
        """
        with self._replacing:
            if self._closed or self.target.worker is not dead:
                return
            dead.stop(grace_s=0)
            worker = start()
            if worker is None:
                return
            with self._changed:
                wanted = not self._closed
                if wanted:
                    self.target = replace(self.target, worker=worker)
            if not wanted:
                worker.stop()

    def retire(self, drain_s: float) -> None:
        """Close the lane, let those in it finish, and end the worker.

        Args:
            drain_s: How long they may take.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._in_flight == 0, timeout=drain_s)
        self.target.worker.stop()
