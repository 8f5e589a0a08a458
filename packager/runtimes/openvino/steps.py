"""Steps that make variants for OpenVINO."""

from __future__ import annotations

from pathlib import Path

from packager.plan.figures import ModelFacts, RepairResult
from packager.plan.recipes import MODEL_FILE, TFLITE_FILE
from packager.run.job import Job
from packager.runtimes.common.job_inputs import facts_of, onnx_model, samples, tuning_of
from packager.runtimes.openvino import models

IR_FILE = "model.xml"


def convert(job: Job, output: Path) -> None:
    """Convert, with weights in half precision."""
    models.convert(_model(job, facts_of(job)), output / IR_FILE)


def quantize(job: Job, output: Path) -> None:
    """Quantize to int8 with ranges from the calibration samples."""
    models.quantize(_model(job, facts_of(job)), samples(job), job.options, output / IR_FILE)


def quantize_with_accuracy(job: Job, output: Path) -> RepairResult:
    """Quantize to int8, and put back into float what the tuning samples show to cost most."""
    tuning = tuning_of(job)
    options = {
        **job.options,
        "max_drop": 1.0 - job.options["min_retention"],
        "iterations": job.options["trials"],
    }
    found = models.quantize_with_accuracy_control(
        onnx_model(job),
        tuning.calibration,
        tuning.tuning,
        tuning.retention,
        options,
        output / IR_FILE,
    )
    return RepairResult(
        text=f"accuracy control; {found.evaluations} evaluations; retention on the tuning samples "
        f"{found.quality_before:.4f} to {found.quality_after:.4f}"
    )


def compress(job: Job, output: Path) -> None:
    """Store weights in few bits."""
    models.compress_weights(_model(job, facts_of(job)), job.options, output / IR_FILE)


def _model(job: Job, facts: ModelFacts) -> Path:
    return Path(job.inputs["model"]) / (TFLITE_FILE if facts.kind == "tflite" else MODEL_FILE)
