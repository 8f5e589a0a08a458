"""Runs the process that measures a variant, and ends it when it must not go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.errors import MeasureError, StorageError, storage_faults
from agent.measure.job import EXIT_STORAGE, MAX_BYTES, Job, Outcome
from agent.serve.spawning import environment, kill_group
from wire.clock import Clock
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.files import PRIVATE, write_atomic

SLICE_S: Final = 0.2
"""Longest time without a look whether it must end."""


def run_job(job: Job, job_file: Path, check: Callable[[], None], clock: Clock) -> Outcome:
    """Measure a variant in a process of its own.

    Args:
        job: What to measure.
        job_file: Where the job is put; what came of it is put beside it.
        check: Called often; raises to end the process.
        clock: For waiting.

    Returns:
        The figures, or why there are none.

    Raises:
        MeasureError: The process cannot be started.
        StorageError: The storage failed.
        FleetError: `check` raised it.
    """
    result_file = job_file.with_suffix(".result")
    with storage_faults("cannot write what is to be measured"):
        result_file.unlink(missing_ok=True)
        write_atomic(job_file, to_json(job), mode=PRIVATE)
    reading, writing = os.pipe()
    command = [sys.executable, "-P", "-m", "agent.measure.child"]
    try:
        process = subprocess.Popen(
            [*command, str(job_file), str(result_file), str(reading)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment(job.threads),
            pass_fds=(reading,),
            start_new_session=True,
        )
    except OSError as exc:
        os.close(writing)
        raise MeasureError(f"cannot start a process that measures: {exc.strerror}") from exc
    finally:
        os.close(reading)
    try:
        while process.poll() is None:
            check()
            clock.sleep(SLICE_S)
    finally:
        kill_group(process.pid)
        process.wait()
        os.close(writing)
    if process.returncode == EXIT_STORAGE:
        raise StorageError("the storage failed while it was measured: is it full?")
    return _outcome(result_file, process.returncode)


def _outcome(file: Path, status: int) -> Outcome:
    try:
        with file.open("rb") as stream:
            return from_json(stream.read(MAX_BYTES + 1), Outcome, limit_bytes=MAX_BYTES)
    except (OSError, WireFormatError):
        return Outcome(fault=f"the process that measured it ended early, with status {status}")
