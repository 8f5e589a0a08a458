"""What adaptation and installs need from the part that runs the workers.

`agent.serve.model_server.ModelServer` is the implementation; tests use a simulated one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from agent.package_files import SignedFile
from wire.errors import FleetError
from wire.package.variant import Variant


class Probed(Protocol):
    """The result of a golden test."""

    @property
    def passed(self) -> bool:
        """Whether the outputs equal those of the reference, within tolerance."""
        ...

    @property
    def agreement(self) -> float:
        """Share of the samples whose first answer equals the reference's."""
        ...

    @property
    def detail(self) -> str:
        """One line for people."""
        ...

    @property
    def latency_ms(self) -> float | None:
        """Latency of one sample that runs alone; None if it was not measured."""
        ...


class ActiveVariant(Protocol):
    """The variant that answers requests now."""

    @property
    def digest(self) -> str:
        """Digest of its package."""
        ...

    @property
    def variant(self) -> Variant:
        """The variant of that package."""
        ...


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests for a model are run."""

    stream: bool = False
    """Whether one sample at a time, which saves memory."""

    joins: bool = True
    """Whether several requests may be joined into one run."""

    longest_wait_s: float | None = None
    """How long a request may wait that has no deadline of its own; None for no limit."""

    workers: int = 1
    """In how many workers, if the device has the processors."""

    keeps_previous: bool = False
    """Whether the version before may stay beside the one that serves."""


class ModelServerPort(Protocol):
    """Variants in workers, and the switch between them."""

    @property
    def active(self) -> ActiveVariant | None:
        """The variant that answers requests now; None if there is none."""
        ...

    @property
    def held_bytes(self) -> int:
        """Memory that all workers hold; 0 if unknown."""
        ...

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        ...

    def most_workers(self, asked: int) -> int:
        """How many of the workers that a policy asks for this device runs, as far as is known."""
        ...

    def switch_to(
        self, package: Path, digest: str, variant: Variant, *, stop_first: bool = False
    ) -> None:
        """Start a worker and send new requests to it; the old one finishes and ends.

        With `stop_first` the old one ends before the new one starts. Raises a FleetError if the
        new one cannot serve; the old variant then goes on serving.
        """
        ...

    def probe(self, package: Path, digest: str, variant: Variant) -> Probed:
        """Run the golden test in a new worker, and measure the latency of one sample."""
        ...

    def probe_active(self) -> Probed:
        """Run the golden test in the worker that answers requests now."""
        ...

    def withdraw(self, why: str = ..., *, keeps_previous: bool = ...) -> None:
        """Stop serving and end the worker; requests are told why.

        The version before ends too, unless it is to be kept.
        """
        ...

    def keep_only(self, digests: Collection[str | None]) -> int:
        """End the version before, unless its package is one of these.

        Returns the memory that it held, in bytes; 0 if it goes on or there is none.
        """
        ...

    def run_requests(self, running: Running) -> None:
        """Say how requests are run from now on."""
        ...

    def supervise(self) -> None:
        """Replace a worker that died; called about once a second."""
        ...


class SignedPort(Protocol):
    """What was signed of the files of variants, as `agent.packages.SignedFiles` knows it."""

    def of(self, digest: str, variant: Variant) -> Sequence[SignedFile]:
        """Return what was signed of all files that a variant needs.

        Raises a FleetError if the index or the manifest is not what was signed.
        """
        ...

    def check(self, digest: str, variant: Variant) -> None:
        """Hash these files here; raises a FleetError if one is not what was signed."""
        ...

    def note(self, digest: str, variant: Variant, fault: FleetError) -> None:
        """Remember that a worker found a file of a variant damaged."""
        ...


class RecorderPort(Protocol):
    """Where figures and events go."""

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        ...

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Add to a counter."""
        ...

    def event(self, kind: str, reason: str, data: Mapping[str, object]) -> None:
        """Record an event."""
        ...


class RequestRecorderPort(RecorderPort, Protocol):
    """Where the figures of requests go, too."""

    def request(
        self,
        attributes: Mapping[str, str],
        added: Iterable[tuple[str, float]],
        observed: Iterable[tuple[str, float]] = (),
    ) -> None:
        """Record what one request brought: growth of counters, and values of histograms."""
        ...
