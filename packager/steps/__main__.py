"""The process of one step: `python -m packager.steps JOB.json`.

Quantizers, compilers and runtimes may crash, hang or use too much memory. In a separate process
they cannot harm the build.

Rules:
- The process writes its results to the job's output folder: files, and `result.json`. It writes a
  fault to `failure.json`.
- The memory limit is set before any large package is imported.
- The process ends when its parent ends.
- The telemetry of the tools is switched off before they are imported.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

from packager.errors import StepError
from packager.fault_text import typed_line
from packager.plan.step_names import METRIC
from packager.run.job import FAILED, FAILURE_FILE, RESULT_FILE, Failure, Job
from packager.runtimes.table import RUNTIMES
from packager.steps.functions import step_function
from wire.codec import from_json, to_json
from wire.errors import FleetError, WireFormatError

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> int:
    """Do one job.

    Args:
        arguments: The path of the job's file.

    Returns:
        The exit status.
    """
    job = from_json(Path(arguments[0]).read_bytes(), Job)
    _end_with_parent()
    _limit_memory(job.memory_bytes)
    for runtime in RUNTIMES.rows:
        os.environ.update(runtime.environment)
    for module in _unwanted(job):
        sys.modules[module] = None  # type: ignore[assignment]  # makes its import fail
    output = Path(job.output)
    try:
        result = step_function(job.kind)(job, output)
    except FleetError as exc:
        failure = Failure(
            code=exc.code, message=exc.message, remedy=exc.remedy, lasting=not exc.retryable
        )
    except MemoryError:
        failure = Failure(
            code=StepError.code, message=f"ran out of its {job.memory_bytes >> 20} MiB of memory"
        )
    except Exception as exc:  # noqa: BLE001 - whatever a tool raises ends this step alone
        traceback.print_exc()
        failure = Failure(code=StepError.code, message=typed_line(exc))
    else:
        (output / RESULT_FILE).write_bytes(to_json({} if result is None else result))
        return 0
    (output / FAILURE_FILE).write_bytes(to_json(failure))
    return FAILED


def _unwanted(job: Job) -> tuple[str, ...]:
    """Return modules that a tool would import for nothing: telemetry, and seconds of PyTorch.

    What the user wrote may need PyTorch, or a package that looks for it among the modules.
    """
    telemetry = tuple(module for runtime in RUNTIMES.rows for module in runtime.blocked)
    users = job.kind in {"import", "data"} or METRIC in job.inputs
    return telemetry if users else (*telemetry, "torch")


def _end_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _limit_memory(limit_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except WireFormatError as exc:
        sys.exit(str(exc))
