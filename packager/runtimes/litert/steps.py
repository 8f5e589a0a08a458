"""Steps that make variants for LiteRT."""

from __future__ import annotations

from pathlib import Path

from packager.errors import StepError
from packager.plan.recipes import TFLITE_FILE
from packager.run.job import Job
from packager.runtimes.common.job_inputs import facts_of, onnx_model, samples
from packager.runtimes.litert import models, parity
from packager.runtimes.litert import quantize as quantizer
from packager.samples.store import load_inputs
from packager.tools.environments import default_root, environment_python


def convert(job: Job, output: Path) -> None:
    """Convert to TFLite, and check that it computes the same.

    Raises:
        StepError: The converter is not installed or failed, or its model differs.
    """
    python = environment_python("onnx2tf", default_root())
    if python is None:
        raise StepError("onnx2tf is not installed here", remedy="fleet tool install onnx2tf")
    target = output / TFLITE_FILE
    models.convert(onnx_model(job), target, python=python)
    data = Path(job.inputs["data"])
    part = next(p for p in ("calibration", "gate") if (data / p).is_dir())
    parity.check_parity(onnx_model(job), target, load_inputs(data / part, facts_of(job).inputs))


def quantize(job: Job, output: Path) -> None:
    """Quantize a float model."""
    calibrated = "data" in job.inputs
    quantizer.quantize(
        Path(job.inputs["model"]) / TFLITE_FILE,
        samples(job) if calibrated else {},
        job.options,
        output / TFLITE_FILE,
    )
