"""What came of a build: every candidate with its figures, what each profile got, and why."""

from __future__ import annotations

import msgspec

from packager.judge.gates import Verdict
from packager.plan.values import Impossible
from packager.run.pipeline import StepRecord
from wire.package.manifest import Accuracy, Performance


class CandidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a candidate, in the package or not."""

    name: str
    runtime: str
    precision: str
    planned: tuple[str, ...] = ()
    """Profiles that it was planned for."""

    size_bytes: int | None = None
    accuracy: Accuracy | None = None
    performance: Performance | None = None
    """None where it cannot run on the building machine."""

    files_sha256: str = ""
    """Digest of its files, by which a later build knows that these figures are about them."""

    lost: str = ""
    """Why it could not be built, evaluated or measured; empty when it could."""

    profiles: dict[str, Verdict] = {}
    """Profile to what was decided, for those that it was planned for."""

    @property
    def kept(self) -> bool:
        """Whether it is in the package."""
        return any(verdict.kept for verdict in self.profiles.values())


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was built, what was not, and why."""

    name: str
    version: str
    package: str
    """The directory."""

    digest: str
    size_bytes: int
    signed: bool
    machine: str
    """Where all figures were measured."""

    metric: str
    samples: int
    """Of the evaluation data."""

    candidates: tuple[CandidateReport, ...]
    impossible: tuple[Impossible, ...]
    notes: tuple[str, ...]
    steps: tuple[StepRecord, ...]

    @property
    def cached(self) -> bool:
        """Whether every step came from the cache."""
        return all(step.state == "cached" for step in self.steps)
