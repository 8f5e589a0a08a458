"""The tuning database: schedules that searches found, kept beside the cache for later builds.

Rules:
- A build reads it as one source, and adds to it what its own searches found when they have ended.
- Files are named after what they are about, so that adding is putting a file there; it appears
  complete or not at all.
"""

from __future__ import annotations

from pathlib import Path

from packager.errors import BuildError
from packager.plan.steps import is_tuning
from packager.plan.values import Plan
from packager.run.cache import file_sha256
from packager.run.job import DATABASE_FOLDER
from packager.run.pipeline import Pipeline, Source
from wire.codec import sha256_hex, to_json
from wire.files import PUBLIC, write_atomic


def stored_database(root: Path) -> Source | None:
    """Return the database as a source; None while nothing is in it.

    Args:
        root: Its folder.

    Returns:
        The source.

    Raises:
        BuildError: It cannot be read, or is no folder.
    """
    if root.exists() and not root.is_dir():
        raise BuildError(
            f"the tuning database {root} is no folder", remedy="name one with --tuning-database"
        )
    files = sorted(path for path in root.rglob("*") if path.is_file())
    if not files:
        return None
    names = [(path.relative_to(root).as_posix(), file_sha256(path)) for path in files]
    return Source(path=root.resolve(), sha256=sha256_hex(to_json(names)))


def publish(pipeline: Pipeline, plan: Plan, root: Path) -> None:
    """Add what a build's searches found.

    Args:
        pipeline: What came of the plan.
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
