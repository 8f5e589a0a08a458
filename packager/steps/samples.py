"""The step that reads all samples and makes three disjoint sets of them."""

from __future__ import annotations

from pathlib import Path

from packager.plan.figures import DataResult, ModelFacts
from packager.plan.steps import CALIBRATION, EVALUATION, PREPROCESSING, TUNING
from packager.run.job import RESULT_FILE, Job
from wire.codec import from_json


def read(job: Job, output: Path) -> DataResult:
    """Read, prepare and divide the samples: a folder per part."""
    from packager.samples.declarations import read_preprocessing
    from packager.samples.parts import make_parts
    from packager.samples.readers import Source

    facts = from_json((Path(job.inputs["model"]) / RESULT_FILE).read_bytes(), ModelFacts)
    callables = job.options["callables"]
    sources: dict[str, Source] = {
        name: Source(path=Path(job.inputs[name]), function=callables.get(name, ""))
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
    )
