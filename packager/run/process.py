"""Runs one step in a fresh process with limits, on the machine that the executor chooses.

Its output goes to the cache that all machines of a build share.

Rules:
- A step's arguments and its result are plain values, so that another machine can run it. That
  machine needs the same packages, and sees the cache and the user's files at the same paths.
- A fault is returned and not raised, so that it comes back complete from another machine.
- No part of a step continues after its end: the build kills its whole process group.
- The output of the process goes to a log; its last line is the reason if the step reported none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import msgspec

from packager.errors import ALL_ERRORS, BuildError, DiskFullError, PackagerError, StepError
from packager.run.cache import Cache
from packager.run.job import FAILED, FAILURE_FILE, RESULT_FILE, Failure, Job
from wire.clock import SystemClock
from wire.codec import from_json, to_json
from wire.errors import WireFormatError

MAX_REASON_BYTES: Final = 4096
MEMORY_SHARE: Final = 0.75
"""The share of the machine's memory that steps may use; the rest is for everything else."""

FULL_BYTES: Final = 64 * 1024
"""A disk with less free space than this counts as full: no step's result fits."""

_ENVIRONMENT: Final = {
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONWARNINGS": "ignore",
}


_RUNNING: Final[set[int]] = set()
"""Process groups of the steps that run now, in all threads."""

_RUNNING_LOCK: Final = threading.Lock()


class ToldError(Exception):
    """A step's process reported why it failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one step."""

    timeout_s: float = 1800.0
    """Quantizing a large model with full bias correction takes minutes, not hours."""

    memory_bytes: int = 0
    """0 for three quarters of the machine's memory."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A step to carry out."""

    name: str
    key: str
    """The key of its output in the cache."""

    cache: str
    kind: str
    inputs: dict[str, str]
    options: dict[str, Any]
    machine: str
    limits: StepLimits
    share: int = 1
    """How many such steps run at once on a machine."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a task."""

    failure: Failure | None = None
    """None when its output is in the cache."""

    seconds: float = 0.0


def carry_out(task: Task) -> Outcome:
    """Run a step and keep its output in the cache.

    Args:
        task: The step.

    Returns:
        The fault, if there was one, and how long it took.
    """
    clock = SystemClock()
    began_s = clock.monotonic_s()
    failure: Failure | None = None
    try:
        _make(task)
    except ToldError as exc:
        failure = exc.failure
    except PackagerError as exc:
        failure = Failure(code=exc.code, message=exc.message, remedy=exc.remedy)
    except OSError as exc:
        failure = _failure_of(exc)
    return Outcome(failure=failure, seconds=clock.monotonic_s() - began_s)


def error_of(failure: Failure) -> PackagerError:
    """Return the error for a failure."""
    return ALL_ERRORS.get(failure.code, BuildError)(failure.message, remedy=failure.remedy)


def end_running_jobs() -> None:
    """Kill every step that runs now, because the build stops."""
    with _RUNNING_LOCK:
        for group in _RUNNING:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def _make(task: Task) -> None:
    cache = Cache(Path(task.cache))
    memory_bytes = task.limits.memory_bytes or int(
        MEMORY_SHARE * _machine_memory_bytes() / max(1, task.share)
    )
    with cache.workspace(task.name) as workspace:
        output = workspace / "output"
        output.mkdir()
        job = Job(
            kind=task.kind,
            inputs=task.inputs,
            options=task.options,
            output=str(output),
            memory_bytes=memory_bytes,
            machine=task.machine,
        )
        try:
            _run_job(job, workspace, timeout_s=task.limits.timeout_s)
        except ToldError as exc:
            if exc.failure.lasting:
                cache.keep(task.key, _failure_folder(workspace, exc.failure))
            raise
        if not (output / RESULT_FILE).is_file():
            raise StepError("the process of this step ended without an error, but wrote no result")
        cache.keep(task.key, output)


def _failure_folder(workspace: Path, failure: Failure) -> Path:
    """Write a failure into a folder of its own, without the files that the step made before it."""
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


def _run_job(job: Job, workspace: Path, *, timeout_s: float) -> None:
    """Run a step in a fresh process.

    Args:
        job: What to do.
        workspace: A folder for the job's files; its name contains the step's.
        timeout_s: How long it may take, in seconds.

    Raises:
        StepError: It crashed, was killed, ran out of memory or time.
        DiskFullError: The disk is full.
        ToldError: It reported what is wrong.
    """
    job_file, log = workspace / "job.json", workspace / "log.txt"
    job_file.write_bytes(to_json(job))
    code = _run([sys.executable, "-m", "packager.steps", str(job_file)], log, timeout_s)
    if code == 0:
        return
    if shutil.disk_usage(workspace).free < FULL_BYTES:
        # The full disk is the reason, whatever the step reported, if it had room to report at all.
        raise DiskFullError(
            f"no space left on the device of {workspace.parent}",
            remedy="free some space, or name another cache with --cache",
        )
    if code == FAILED:
        raise ToldError(_told(Path(job.output) / FAILURE_FILE))
    if code < 0:
        name = signal.Signals(-code).name
        raise StepError(f"the process of this step was ended by {name}")
    raise StepError(f"the process of this step ended with status {code}: {_last_line(log)}")


def _machine_memory_bytes() -> int:
    """Return the memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _run(command: list[str], log: Path, timeout_s: float) -> int:
    source = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([source, inherited] if inherited else [source])
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": path},
            start_new_session=True,
        )
        with _RUNNING_LOCK:
            _RUNNING.add(process.pid)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            raise StepError(f"this step took longer than {timeout_s:g} s") from exc
        finally:
            with _RUNNING_LOCK:
                _RUNNING.discard(process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _told(path: Path) -> Failure:
    try:
        return from_json(path.read_bytes(), Failure)
    except (OSError, WireFormatError):
        return Failure(code=StepError.code, message="its process failed without a reason")


def _last_line(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - MAX_REASON_BYTES))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "it said nothing"
