"""Steps that read what the user gave: a function that returns a model, other files, samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from packager.plan.figures import DataResult, Imported, Inspection, ModelFacts
from packager.plan.recipes import MODEL_FILE
from packager.plan.step_names import CALIBRATION, EVALUATION, PREPROCESSING, TUNING
from packager.run.job import RESULT_FILE, Job
from wire.codec import convert, from_json
from wire.package.variant import VariantInfo

if TYPE_CHECKING:
    from packager.samples.parts import Sequences


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


def read_samples(job: Job, output: Path) -> DataResult:
    """Read, prepare and divide the samples: a folder per part."""
    from packager.samples.declarations import read_preprocessing
    from packager.samples.parts import make_parts
    from packager.samples.readers import SampleSource

    facts = from_json((Path(job.inputs["model"]) / RESULT_FILE).read_bytes(), ModelFacts)
    callables = job.options["callables"]
    sources: dict[str, SampleSource] = {
        name: SampleSource(path=Path(job.inputs[name]), function=callables.get(name, ""))
        for name in (CALIBRATION, TUNING, EVALUATION)
        if name in job.inputs
    }
    declared = job.inputs.get(PREPROCESSING)
    return make_parts(
        sources,
        facts.inputs,
        output,
        preprocessing=read_preprocessing(Path(declared), facts.inputs) if declared else None,
        calibrated=job.options["calibrated"],
        sequences=_sequences(job),
        named=tuple(job.options.get("labels", ())),
    )


def _sequences(job: Job) -> Sequences | None:
    """Return how the states are recorded; None for a model without state."""
    if "info" not in job.options:
        return None
    from packager.samples.parts import Sequences
    from runtime_adapters.protocol import Limits
    from runtime_adapters.registry import open_session

    info = convert(job.options["info"], VariantInfo)
    return Sequences(
        states=info.states or {},
        open_reference=lambda: open_session(Path(job.inputs["model"]), info, Limits(threads=1)),
    )
