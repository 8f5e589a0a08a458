"""A step in a process of its own, with limits of time and memory.

Rules:
- Nothing of a step survives it: its whole process group is ended.
- What it prints is kept aside; its last line is the reason when there is no better one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from packager.errors import DiskFullError, StepError
from packager.run.job import FAILED, FAILURE_FILE, Failure, Job
from wire.codec import from_json, to_json
from wire.errors import WireFormatError

MAX_REASON_BYTES: Final = 4096
MEMORY_SHARE: Final = 0.75
"""A step may use as much of the machine's memory; the rest is for everything else."""

_ENVIRONMENT: Final = {
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONWARNINGS": "ignore",
}


_RUNNING: Final[set[int]] = set()
"""Process groups of the steps that run now, of whichever thread."""

_RUNNING_LOCK: Final = threading.Lock()


class ToldError(Exception):
    """A step's process said why it failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class StepLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one step may use."""

    timeout_s: float = 1800.0
    """Quantizing a large model with full bias correction takes minutes, not hours."""

    memory_bytes: int = 0
    """0 for three quarters of the machine's memory."""


FULL_BYTES = 64 * 1024
"""A disk with less than this free counts as full: no step's result fits."""


def run_job(job: Job, workspace: Path, *, timeout_s: float) -> None:
    """Run a step in a fresh process.

    Args:
        job: What to do.
        workspace: A folder for the job's files, whose name names the step.
        timeout_s: How long it may take, in seconds.

    Raises:
        StepError: It crashed, was killed, ran out of memory or time.
        DiskFullError: The disk is full.
        ToldError: It said what is wrong.
    """
    job_file, log = workspace / "job.json", workspace / "log.txt"
    job_file.write_bytes(to_json(job))
    code = _run([sys.executable, "-m", "packager.steps", str(job_file)], log, timeout_s)
    if code == 0:
        return
    if shutil.disk_usage(workspace).free < FULL_BYTES:
        # Whatever it says, and it may have had no room to say it, this is why.
        raise DiskFullError(
            f"no space left on the device of {workspace.parent}",
            remedy="free some space, or name another cache with --cache",
        )
    if code == FAILED:
        raise ToldError(_told(Path(job.output) / FAILURE_FILE))
    if code < 0:
        name = signal.Signals(-code).name
        raise StepError(f"its process was ended by {name}")
    raise StepError(f"its process ended with status {code}: {_last_line(log)}")


def end_running_jobs() -> None:
    """End every step that runs now: the build is given up."""
    with _RUNNING_LOCK:
        for group in _RUNNING:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def machine_memory_bytes() -> int:
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
            raise StepError(f"it took longer than {timeout_s:g} s") from exc
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
