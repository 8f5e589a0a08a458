"""What adaptation and installs need of the part that runs the workers.

`agent.serve.model_server.ModelServer` is the implementation; a simulated one stands in for it in
tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from wire.package.manifest import Variant


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


class ActiveVariant(Protocol):
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


class ModelServerPort(Protocol):
    """Variants in workers, and the switch between them."""

    @property
    def active(self) -> ActiveVariant | None:
        """What answers requests now; None when nothing does."""
        ...

    def switch_to(
        self, package: Path, digest: str, variant: Variant, *, stop_first: bool = False
    ) -> None:
        """Start a worker and send new requests to it; the old one finishes and ends.

        With `stop_first` the old one ends before the new one starts. Raises a FleetError when the
        new one cannot serve; the old one then serves on.
        """
        ...

    def probe(self, package: Path, digest: str, variant: Variant) -> Probed:
        """Run the golden test in a worker of its own, and measure what a sample takes."""
        ...

    def probe_active(self) -> Probed:
        """Run the golden test in the worker that answers requests now."""
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
