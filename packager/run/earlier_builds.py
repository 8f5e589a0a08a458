"""Reads results of earlier builds that this build reuses: measured figures, and schedules.

A build of the same package on another machine gives the same model files but other latencies. If it
uses the report of the first build, it gives the same bytes, which proves where they came from. The
tuning database stores the schedules that searches found, next to the cache, for later builds.

Rules:
- A figure is reused for the same files and the same number of threads. It names the machine that
  measured it.
- A build reads the database as one source. After its own searches, it adds the schedules that they
  found.
- The name of a file in the database says which kernel and target it is for, so a build adds to the
  database by adding files. A file is either complete or missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from packager.errors import BuildError
from packager.files import read_bounded
from packager.plan.steps import is_tuning
from packager.plan.values import Candidate, Plan, Step
from packager.run.cache import file_sha256
from packager.run.job import DATABASE_FOLDER
from packager.run.pipeline import Pipeline, Source
from wire.codec import from_json, sha256_hex, to_json
from wire.errors import WireFormatError
from wire.files import PUBLIC, write_atomic
from wire.measuring import ProfileFigures, is_possible
from wire.package.performance import FieldFigures, Performance

MAX_REPORT_BYTES: Final = 64 * 1024**2
SCHEMA_VERSION: Final = 1
MAX_DEVICES: Final = 1_000_000
MAX_AT_S: Final = 253_370_764_800.0
"""The year 9999: more is no time."""

WRITE_ONE: Final = (
    "write one with: fleet build --report FILE.json, or fleet measure figures --out FILE.json"
)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one candidate, as a report holds them."""

    name: str
    files_sha256: str = ""
    performance: Performance | None = None


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a report."""

    schema_version: int = SCHEMA_VERSION
    candidates: tuple[Measured, ...] = ()
    field: tuple[ProfileFigures, ...] = ()
    """What devices of the fleet measured; a file of `fleet measure figures` has nothing else."""

    here: tuple[str, ...] | None = None
    """Profiles of such devices as the machine of that build is one; None if the report does not
    tell."""

    sha256: str = ""
    """Of the file itself, whatever it says there."""

    def apply(
        self, candidates: tuple[Candidate, ...], steps: tuple[Step, ...], pipeline: Pipeline
    ) -> None:
        """Put known figures into the pipeline, so that the build does not measure them again.

        Args:
            candidates: The candidates that were built.
            steps: The steps of the plan.
            pipeline: The results so far; nothing is measured yet.
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
    """Read the figures of a report, or those of the field.

    Args:
        path: A build's JSON report, or what `fleet measure figures` wrote; None for no figures.

    Returns:
        The figures.

    Raises:
        BuildError: The file cannot be read, is no such report, has no figures, or impossible ones.
    """
    if path is None:
        return Measurements()
    content = read_bounded(path, MAX_REPORT_BYTES, BuildError)
    try:
        found = from_json(content, Measurements, limit_bytes=MAX_REPORT_BYTES)
    except WireFormatError as exc:
        raise BuildError(
            f"{path} is not a build's report: {exc.message}", remedy=WRITE_ONE
        ) from exc
    if found.schema_version != SCHEMA_VERSION:
        raise BuildError(
            f"{path} has the schema_version {found.schema_version}, and this version reads "
            f"{SCHEMA_VERSION}",
            remedy="write it again with this version of fleet",
        )
    if not found.candidates and not found.field:
        raise BuildError(f"{path} has no figures, of a build or of the field", remedy=WRITE_ONE)
    given = [(each.variant, _is_possible(each.figures)) for each in found.field]
    given += [(m.name, is_possible(m.performance)) for m in found.candidates if m.performance]
    for name, possible in given:
        if not possible:
            raise BuildError(
                f"{path}: the figures of {name[:80]!r} are not possible",
                remedy="use a file as it was written",
            )
    return msgspec.structs.replace(found, sha256=sha256_hex(content))


def _is_possible(told: FieldFigures) -> bool:
    return (
        is_possible(told.performance)
        and 1 <= told.devices <= MAX_DEVICES
        and 0.0 <= told.at_s < MAX_AT_S
    )


def stored_database(root: Path) -> Source | None:
    """Return the database as a source; None while it is empty.

    Args:
        root: Its folder.

    Returns:
        The source.

    Raises:
        BuildError: It cannot be read, or is no folder.
    """
    if root.exists() and not root.is_dir():
        raise BuildError(
            f"the tuning database {root} is not a folder", remedy="name one with --tuning-database"
        )
    files = sorted(path for path in root.rglob("*") if path.is_file())
    if not files:
        return None
    names = [(path.relative_to(root).as_posix(), file_sha256(path)) for path in files]
    return Source(path=root.resolve(), sha256=sha256_hex(to_json(names)))


def keep_schedules(pipeline: Pipeline, plan: Plan, root: Path) -> None:
    """Add the schedules that a build's searches found.

    Args:
        pipeline: The results of the plan.
        plan: The plan.
        root: The folder of the database.

    Raises:
        BuildError: It cannot be written.
    """
    for step in plan.steps:
        if not is_tuning(step) or pipeline.lost(step.name):
            continue
        found = pipeline.folder(step.name) / DATABASE_FOLDER
        try:
            for path in sorted(p for p in found.rglob("*") if p.is_file()):
                target = root / path.relative_to(found)
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(target, path.read_bytes(), mode=PUBLIC)
        except OSError as exc:
            raise BuildError(
                f"the tuning database cannot be written: {exc.strerror}",
                remedy="name another folder with --tuning-database",
            ) from exc
