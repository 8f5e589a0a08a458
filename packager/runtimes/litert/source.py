"""The step that checks TFLite models, which this runtime takes unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

from packager.plan.figures import ModelFacts
from packager.plan.recipes import TFLITE_FILE
from packager.run.job import Job
from packager.sources.tflite import facts_of


def prepare(job: Job, output: Path) -> ModelFacts:
    """Check a TFLite model and copy it unchanged."""
    model = Path(job.inputs["model"])
    facts = facts_of(model)
    shutil.copyfile(model, output / TFLITE_FILE)
    return facts
