"""One step, carried out wherever an executor puts it: from the shared cache or in a fresh process.

Rules:
- What goes in and comes out are plain values, so that another machine can do it. It needs the same
  packages, and sees the cache and the user's files at the same paths.
- A fault is returned and not raised: it must survive the way back whole.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import msgspec

from packager.errors import ALL_ERRORS, BuildError, DiskFullError, PackagerError, StepError
from packager.run.cache import Cache, Entry
from packager.run.job import FAILURE_FILE, RESULT_FILE, Failure, Job
from packager.run.process import MEMORY_SHARE, StepLimits, ToldError, machine_memory_bytes, run_job
from wire.clock import SystemClock
from wire.codec import to_json


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A step to carry out."""

    name: str
    key: str
    """Of its output in the cache."""

    cache: str
    kind: str
    inputs: dict[str, str]
    options: dict[str, Any]
    machine: str
    limits: StepLimits
    share: int = 1
    """How many such steps run at once on a machine."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of an order."""

    entry: Entry | None = None
    failure: Failure | None = None
    seconds: float = 0.0


def perform(order: Order) -> Outcome:
    """Carry out a step and keep its output in the cache.

    Args:
        order: The step.

    Returns:
        The cache entry, or the fault.
    """
    clock = SystemClock()
    began_s = clock.monotonic_s()
    try:
        entry = _made(order)
    except ToldError as exc:
        return Outcome(failure=exc.failure, seconds=clock.monotonic_s() - began_s)
    except PackagerError as exc:
        failure = Failure(code=exc.code, message=exc.message, remedy=exc.remedy)
        return Outcome(failure=failure, seconds=clock.monotonic_s() - began_s)
    except OSError as exc:
        failure = _failure_of(exc)
        return Outcome(failure=failure, seconds=clock.monotonic_s() - began_s)
    return Outcome(entry=entry, seconds=clock.monotonic_s() - began_s)


def error_of(failure: Failure) -> PackagerError:
    """Return the error that a failure stands for."""
    return ALL_ERRORS.get(failure.code, BuildError)(failure.message, remedy=failure.remedy)


def _made(order: Order) -> Entry:
    cache = Cache(Path(order.cache))
    memory_bytes = order.limits.memory_bytes or int(
        MEMORY_SHARE * machine_memory_bytes() / max(1, order.share)
    )
    with cache.workspace(order.name) as workspace:
        output = workspace / "output"
        output.mkdir()
        job = Job(
            kind=order.kind,
            inputs=order.inputs,
            options=order.options,
            output=str(output),
            memory_bytes=memory_bytes,
            machine=order.machine,
        )
        try:
            run_job(job, workspace, timeout_s=order.limits.timeout_s)
        except ToldError as exc:
            if exc.failure.lasting:
                cache.keep(order.key, _alone(workspace, exc.failure))
            raise
        if not (output / RESULT_FILE).is_file():
            raise StepError("its process ended well but left no result")
        return cache.keep(order.key, output)[1]


def _alone(workspace: Path, failure: Failure) -> Path:
    """Write a failure into a folder of its own, without what the step had made until then."""
    folder = workspace / "failure"
    folder.mkdir()
    (folder / FAILURE_FILE).write_bytes(to_json(failure))
    return folder


def _failure_of(exc: OSError) -> Failure:
    if exc.errno == errno.ENOSPC:
        return Failure(
            code=DiskFullError.code,
            message="no space left on the device of the build cache",
            remedy="free some space, or name another cache with --cache",
        )
    return Failure(code=StepError.code, message=f"the step could not be run: {exc}")
