"""What adaptation and installs need of the part that runs the workers.

`agent.serve.switchboard.Serving` is the implementation; simulated ones stand in for it in tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from wire.package.manifest import Variant

P = TypeVar("P")
"""A worker that is ready and gets no requests yet, as the implementation holds it."""


class Probed(Protocol):
    """What a golden test came to."""

    @property
    def passed(self) -> bool:
        """Whether the outputs are those of the reference, within tolerance."""
        ...

    @property
    def detail(self) -> str:
        """One line for people."""
        ...

    @property
    def latency_ms(self) -> float | None:
        """Of one sample with nothing beside it; None where it was not measured."""
        ...


class Serves(Protocol):
    """What answers requests now."""

    @property
    def digest(self) -> str:
        """Of its package."""
        ...

    @property
    def variant(self) -> Variant:
        """Which variant of it."""
        ...

    @property
    def memory_bytes(self) -> int:
        """That its worker holds; 0 where that is not known."""
        ...


class ServingPort(Protocol[P]):
    """Workers and the switch between them."""

    @property
    def active(self) -> Serves | None:
        """What answers requests now; None when nothing does."""
        ...

    @property
    def benched(self) -> Mapping[str, str]:
        """Variants of the active package that crashed too often, and why."""
        ...

    def prepare(self, package: Path, digest: str, variant: Variant, *, alone: bool = False) -> P:
        """Start and warm up a worker, after the active one has ended where it has to be alone.

        Raises a FleetError when it cannot.
        """
        ...

    def probe(self, prepared: P) -> Probed:
        """Run the golden test in a worker, and measure what a sample takes."""
        ...

    def probe_active(self) -> Probed:
        """Run the golden test in the worker that answers requests now."""
        ...

    def activate(self, prepared: P) -> None:
        """Send new requests to a worker, let the old one finish and end it."""
        ...

    def discard(self, prepared: P) -> None:
        """End a worker that was not activated."""
        ...

    def withdraw(self) -> None:
        """Let nothing answer any more and end the worker."""
        ...

    def stream(self, *, on: bool) -> None:
        """Run one sample at a time from now on, or no longer."""
        ...

    def supervise(self) -> None:
        """Look after the workers; called about once a second."""
        ...

    def stop(self) -> None:
        """End all workers."""
        ...


class RecorderPort(Protocol):
    """Where figures and events go."""

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        ...

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Count."""
        ...

    def event(self, kind: str, reason: str, data: Mapping[str, object]) -> None:
        """Note something that happened once."""
        ...
