"""Runs the process that checks metadata, and ends it when it takes too long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from agent.errors import StorageError, storage_faults
from agent.serve.spawning import environment, kill_group
from agent.trust.job import MAX_BYTES, Job, Outcome
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.files import PRIVATE, write_atomic

TIMEOUT_S: Final = 14.0
"""Its imports take a second on a slow board; beyond this it hangs. The thread that waits for it
feeds the watchdog, which waits twice as long."""


def run_check(job: Job, folder: Path, *, now_s: float, grace_s: float) -> Outcome:
    """Check metadata in a process of its own.

    Args:
        job: What to check.
        folder: Where the job is put, and what came of it.
        now_s: Wall time.
        grace_s: How long after its end metadata may still be believed.

    Returns:
        What came of it.

    Raises:
        StorageError: The storage failed, or the process cannot be started.
    """
    job_file, result_file = folder / "job.json", folder / "job.result"
    with storage_faults("cannot write which metadata is to be checked"):
        result_file.unlink(missing_ok=True)
        write_atomic(job_file, to_json(job), mode=PRIVATE)
    reading, writing = os.pipe()
    command = [sys.executable, "-P", "-m", "agent.trust.child"]
    arguments = [str(job_file), str(result_file), str(reading), repr(now_s), repr(grace_s)]
    try:
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment(1),
            pass_fds=(reading,),
            start_new_session=True,
        )
    except OSError as exc:
        os.close(writing)
        raise StorageError(f"cannot start a process that checks: {exc.strerror}") from exc
    finally:
        os.close(reading)
    try:
        process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Outcome(floors=job.floors, code="slow", fault="the check of metadata did not end")
    finally:
        kill_group(process.pid)
        process.wait()
        os.close(writing)
    try:
        with result_file.open("rb") as stream:
            return from_json(stream.read(MAX_BYTES + 1), Outcome, limit_bytes=MAX_BYTES)
    except (OSError, WireFormatError) as exc:
        raise StorageError(
            f"the check of metadata ended with status {process.returncode}: is the storage full?"
        ) from exc
