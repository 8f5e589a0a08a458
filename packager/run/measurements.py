"""The measured figures of an earlier build, taken over for files that are byte for byte the same.

Whoever rebuilds a package elsewhere gets the same model files but other latencies. With the first
build's report the second gives the first one's bytes, which proves where they came from.

Rules:
- A figure is taken over for the same files and the same number of threads, and names the machine
  that measured it, as ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from packager.errors import BuildError
from packager.files import read_bounded
from packager.plan.values import Candidate, Step
from packager.run.pipeline import Pipeline
from wire.codec import from_json
from wire.errors import WireFormatError
from wire.package.manifest import Performance

MAX_REPORT_BYTES: Final = 64 * 1024**2


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one candidate, as a report holds them."""

    name: str
    files_sha256: str = ""
    performance: Performance | None = None


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a report."""

    candidates: tuple[Measured, ...] = ()

    def apply(
        self, candidates: tuple[Candidate, ...], steps: tuple[Step, ...], pipeline: Pipeline
    ) -> None:
        """Spare a build the measurements that are known.

        Args:
            candidates: Those that were built.
            steps: The plan's.
            pipeline: What has come of them; nothing is measured yet.
        """
        known = {(m.name, m.files_sha256): m.performance for m in self.candidates}
        by_name = {step.name: step for step in steps}
        for candidate in candidates:
            if not candidate.measured or pipeline.lost(candidate.build, candidate.evaluate):
                continue
            step = by_name[candidate.measure]
            digest = pipeline.files_digest(candidate.build, candidate.files)
            found = known.get((candidate.name, digest))
            if found is not None and found.threads == step.options["threads"]:
                pipeline.seed(step, found)


def read_measurements(path: Path | None) -> Measurements:
    """Read the figures of a report.

    Args:
        path: A build's JSON report; None for no figures.

    Returns:
        The figures.

    Raises:
        BuildError: The file cannot be read or is no such report.
    """
    if path is None:
        return Measurements()
    content = read_bounded(path, MAX_REPORT_BYTES, BuildError)
    try:
        return from_json(content, Measurements, limit_bytes=MAX_REPORT_BYTES)
    except WireFormatError as exc:
        raise BuildError(
            f"{path} is not a build's report: {exc.message}",
            remedy="write one with: fleet build --report FILE.json",
        ) from exc
