"""The step that checks ONNX models, which this runtime takes unchanged."""

from __future__ import annotations

from pathlib import Path

import msgspec

from packager.plan.figures import ModelFacts
from packager.plan.recipes import MODEL_FILE, SOURCE_MODEL_FILE
from packager.run.job import Job
from packager.sources import onnx_model
from packager.sources.onnx_apart import load_apart
from packager.sources.onnx_batch import changed_interface, with_one_batch
from packager.sources.onnx_defaults import default_names, told_defaults, with_inputs


def prepare(job: Job, output: Path) -> ModelFacts:
    """Check an ONNX model, and make the clean copy that all tools start from."""
    path = Path(job.inputs["model"])
    path = path / MODEL_FILE if path.is_dir() else path
    apart = job.options.get("apart", False)
    loaded = load_apart(path, output) if apart else onnx_model.load_checked(path)
    kept = job.options.get("inputs", ())
    required = with_inputs(loaded, kept)
    model, noted = with_one_batch(required)
    cleaned, notes = onnx_model.clean(model, apart=apart)
    facts = onnx_model.facts_of(cleaned, (*noted, *notes))
    facts = msgspec.structs.replace(
        facts,
        apart=apart,
        defaults=default_names(required.graph),
        interface=(*changed_interface(required, facts), *told_defaults(loaded, kept)),
    )
    onnx_model.clamp_ir(model)
    (output / SOURCE_MODEL_FILE).write_bytes(onnx_model.model_bytes(model))
    (output / MODEL_FILE).write_bytes(onnx_model.model_bytes(cleaned))
    return facts
