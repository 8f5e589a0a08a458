"""ONNX Runtime's and NNCF's quantizers by default: `python -m ... TOOL MODEL SAMPLES FILE`.

Rules:
- Each runs in a fresh process, and what it takes is the whole life of that process, as with ours.
- The calls are those of the tools' own documentation, and every option that these leave out is the
  tool's default.

Source:
    ONNX Runtime, "Quantize ONNX models" (pre-processing, then `quantize_static`); OpenVINO, "Basic
    quantization flow" (`nncf.quantize`, then `save_model`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.quantizers.task import LABEL, ROOT, Task

TIMEOUT_S: Final = 420.0
QUIET: Final = {
    "CI": "true",  # OpenVINO's converter reports usage otherwise
    "NNCF_CI": "1",
    "OLIVE_DISABLE_TELEMETRY": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "PYTHONPATH": str(ROOT),
    "PYTHONSAFEPATH": "1",
}


class Made(NamedTuple):
    """A model that a tool made."""

    tool: str
    runtime: str
    file: Path
    options: dict[str, str]
    """Of the runtime; empty for its defaults."""

    seconds: float
    """That making it took, together with the others of `models`."""

    models: int = 1
    """So many were made to choose this one."""


def onnxruntime_defaults(task: Task, folder: Path) -> Made:
    """Quantize with ONNX Runtime's defaults."""
    return _made(task, folder, "onnxruntime", "quantize_static", "model.onnx")


def nncf_defaults(task: Task, folder: Path) -> Made:
    """Quantize with NNCF's defaults for OpenVINO."""
    return _made(task, folder, "openvino", "NNCF", "model.xml")


def run(command: list[str], folder: Path, *, timeout_s: float = TIMEOUT_S) -> float:
    """Run a tool and return how long it took.

    Args:
        command: The fixed argument list.
        folder: The working directory, and the place of `log.txt`.
        timeout_s: How long it may take.

    Returns:
        Its duration in seconds.

    Raises:
        RuntimeError: It failed; its last line is in the message.
    """
    began_s = time.perf_counter()
    with (folder / "log.txt").open("wb") as log:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, **QUIET},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise RuntimeError(f"not done within {timeout_s / 60:.0f} minutes") from exc
    seconds = time.perf_counter() - began_s
    if done.returncode != 0:
        told = (folder / "log.txt").read_text(errors="replace").strip().splitlines()
        raise RuntimeError(f"it failed: {told[-1][:200] if told else done.returncode}")
    return seconds


def _made(task: Task, folder: Path, runtime: str, tool: str, file: str) -> Made:
    folder.mkdir(parents=True)
    seconds = run(
        [
            sys.executable, "-m", "benchmarks.quantizers.tools",
            runtime, str(task.model), str(task.float_calibration), str(folder / file),
        ],
        folder,
    )  # fmt: skip
    return Made(tool=tool, runtime=runtime, file=folder / file, options={}, seconds=seconds)


def _samples(path: Path) -> list[dict[str, Any]]:
    with np.load(path) as file:
        (name,) = {*file.files} - {LABEL}
        samples = file[name]
    return [{name: samples[index : index + 1]} for index in range(len(samples))]


def _quantize_onnxruntime(model: Path, samples: Path, target: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime is untyped
        def __init__(self) -> None:
            self._samples = iter(_samples(samples))

        def get_next(self) -> dict[str, Any] | None:
            return next(self._samples, None)

    prepared = target.with_name("prepared.onnx")
    quant_pre_process(str(model), str(prepared))
    quantize_static(str(prepared), str(target), Reader())


def _quantize_nncf(model: Path, samples: Path, target: Path) -> None:
    import nncf
    import openvino

    quantized = nncf.quantize(openvino.convert_model(str(model)), nncf.Dataset(_samples(samples)))
    openvino.save_model(quantized, str(target))


_TOOLS: Final[dict[str, Callable[[Path, Path, Path], None]]] = {
    "onnxruntime": _quantize_onnxruntime,
    "openvino": _quantize_nncf,
}


if __name__ == "__main__":
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # makes its import fail
    _TOOLS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
