"""The process of one step: `python -m packager.run.step JOB.json`.

Quantizers, compilers and runtimes crash, hang and eat memory; here they can only hurt themselves.

Rules:
- Results go to the job's output folder: files, and `result.json`. A fault goes to `failure.json`.
- The memory limit is set before anything heavy is imported.
- The process ends with its parent.
- Nothing reports to anybody: the telemetry of the tools is off before they are imported.
"""

from __future__ import annotations

import ctypes
import importlib
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

from packager.errors import StepError
from packager.fault_text import typed_line
from packager.plan.steps import METRIC
from packager.run.job import FAILED, FAILURE_FILE, RESULT_FILE, Failure, Job
from wire.codec import from_json, to_json
from wire.errors import FleetError, WireFormatError

_PR_SET_PDEATHSIG: Final = 1

_KINDS: Final = {
    "import": "steps.models:import_model",
    "inspect": "steps.models:inspect",
    "prepare-onnx": "steps.models:prepare_onnx",
    "prepare-tflite": "steps.models:prepare_tflite",
    "prepare-stablehlo": "steps.models:prepare_stablehlo",
    "data": "steps.samples:read",
    "halve-onnx": "runtimes.onnxruntime.steps:halve",
    "quantize-onnx": "runtimes.onnxruntime.steps:quantize",
    "quantize-onnx-dynamic": "runtimes.onnxruntime.steps:quantize_dynamic",
    "quantize-onnx-int4": "runtimes.onnxruntime.steps:quantize_int4",
    "optimize-onnx": "runtimes.onnxruntime.steps:optimize",
    "repair-onnx": "runtimes.onnxruntime.steps:repair",
    "convert-openvino": "runtimes.openvino.steps:convert",
    "quantize-openvino": "runtimes.openvino.steps:quantize",
    "quantize-openvino-accuracy": "runtimes.openvino.steps:quantize_with_accuracy",
    "compress-openvino": "runtimes.openvino.steps:compress",
    "convert-litert": "runtimes.litert.steps:convert",
    "quantize-litert": "runtimes.litert.steps:quantize",
    "compile-tvm": "runtimes.tvm.steps:build",
    "tune-tvm": "runtimes.tvm.steps:tune",
    "compile-iree": "runtimes.iree.steps:build",
    "reference": "steps.checks:reference",
    "evaluate": "steps.checks:evaluate",
    "emulate-tvm": "steps.checks:emulate_tvm",
    "emulate-iree": "steps.checks:emulate_iree",
    "measure": "steps.checks:measure",
    "golden": "steps.checks:golden",
}
"""Kind of a step to the function below `packager` that does it."""


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
    for module in _unwanted(job):
        sys.modules[module] = None  # type: ignore[assignment]  # makes its import fail
    output = Path(job.output)
    try:
        module, _, name = _KINDS[job.kind].partition(":")
        result = getattr(importlib.import_module(f"packager.{module}"), name)(job, output)
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
    telemetry = ("openvino_telemetry",)
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
