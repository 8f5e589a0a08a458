"""Steps that take a model in: from a user's function, and to a checked, clean copy."""

from __future__ import annotations

import shutil
from pathlib import Path

from packager.plan.figures import Imported, Inspection, ModelFacts
from packager.plan.recipes import MODEL_FILE
from packager.plan.steps import SOURCE_MODEL_FILE
from packager.run.job import Job
from packager.steps.common import TFLITE_FILE


def import_model(job: Job, output: Path) -> Imported:
    """Make an ONNX model of what a user's function returns."""
    from packager.sources.functions import import_function

    return import_function(
        Path(job.inputs["file"]),
        job.options["callable"],
        output / MODEL_FILE,
        prune=job.options["prune"],
        training=(Path(job.inputs["training"]), job.options["training"])
        if "training" in job.inputs
        else None,
    )


def inspect(job: Job, _output: Path) -> Inspection:
    """Find which other files an ONNX model consists of."""
    from packager.sources.onnx_model import external_files

    return Inspection(external=external_files(Path(job.inputs["model"])))


def prepare_onnx(job: Job, output: Path) -> ModelFacts:
    """Check an ONNX model, and make the clean copy that all tools start from."""
    from packager.sources import onnx_model
    from packager.sources.onnx_batch import with_batch_axis

    path = Path(job.inputs["model"])
    loaded = onnx_model.load_checked(path / MODEL_FILE if path.is_dir() else path)
    model, noted = with_batch_axis(loaded)
    cleaned, notes = onnx_model.clean(model)
    facts = onnx_model.facts_of(cleaned, (*noted, *notes))
    onnx_model.clamp_ir(model)
    (output / SOURCE_MODEL_FILE).write_bytes(onnx_model.model_bytes(model))
    (output / MODEL_FILE).write_bytes(onnx_model.model_bytes(cleaned))
    return facts


def prepare_tflite(job: Job, output: Path) -> ModelFacts:
    """Check a TFLite model; it is its own clean copy."""
    from packager.sources.tflite import facts_of

    model = Path(job.inputs["model"])
    facts = facts_of(model)
    shutil.copyfile(model, output / TFLITE_FILE)
    return facts


def prepare_stablehlo(job: Job, output: Path) -> ModelFacts:
    """Check a StableHLO module, and compile the reference for this machine."""
    from packager.sources.stablehlo import prepare

    return prepare(Path(job.inputs["model"]), output)
