"""The tuning database: one file per kernel and target, with what a search found.

A file is named after both, so that copying files merges what several builds found.

Rules:
- A file holds the best schedule found, or none where no schedule was faster than the plain one.
  Neither case needs a second search.
- Schedules of another version of TVM are not used: its kernels differ.
- A file appears complete or not at all; an invalid file counts as missing.

Source:
    Apache TVM 0.27, `tvm.s_tir.meta_schedule.database.JSONDatabase`: the two files that
    `MetaScheduleApplyDatabase` reads, one JSON value per line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from packager.plan.targets import Target
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.files import PUBLIC, write_atomic

MAX_FILES: Final = 100_000
MAX_FILE_BYTES: Final = 16 << 20
_WORKLOADS: Final = "database_workload.json"
_RECORDS: Final = "database_tuning_record.json"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found for a kernel."""

    tvm: str
    """The version of TVM."""

    workload: Any
    """The kernel, as TVM writes it."""

    record: Any = None
    """The schedule, as TVM writes it; None where none was faster than the plain one."""

    seconds: float
    """How long a call takes with it, or with the plain one."""

    plain_seconds: float
    trials: int


def holds(database: Path, target: Target, kernel: str, tvm: str) -> bool:
    """Tell whether a search was made for a kernel.

    Args:
        database: The folder.
        target: What the kernel is for.
        kernel: The kernel's key.
        tvm: The version of TVM.

    Returns:
        True when no other search is needed.
    """
    found = _read(_path(database, target, kernel))
    return found is not None and found.tvm == tvm


def store(database: Path, target: Target, kernel: str, found: Found) -> None:
    """Keep what a search found.

    Args:
        database: The folder, made when needed.
        target: What the kernel is for.
        kernel: The kernel's key.
        found: What was found.
    """
    path = _path(database, target, kernel)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, to_json(found) + b"\n", mode=PUBLIC)


def schedules(database: Path, target: Target, folder: Path, tvm: str) -> int:
    """Put a target's schedules together in the form that TVM applies.

    Args:
        database: The folder.
        target: What is compiled for.
        folder: An empty folder, which gets a MetaSchedule database.
        tvm: The version of TVM.

    Returns:
        How many there are.
    """
    files = sorted((database / target.name).glob("*.json"))[:MAX_FILES]
    all_found = [found for path in files if (found := _read(path)) is not None]
    usable = [found for found in all_found if found.record is not None and found.tvm == tvm]
    with (folder / _WORKLOADS).open("wb") as workloads, (folder / _RECORDS).open("wb") as records:
        for index, found in enumerate(usable):
            workloads.write(to_json(found.workload) + b"\n")
            records.write(to_json([index, found.record]) + b"\n")
    return len(usable)


def _path(database: Path, target: Target, kernel: str) -> Path:
    return database / target.name / f"{kernel}.json"


def _read(path: Path) -> Found | None:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        return from_json(content, Found, limit_bytes=MAX_FILE_BYTES)
    except (OSError, WireFormatError):
        return None
