"""What the steps of several runtimes read from their job: the model, its facts, the samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from packager.callables import load_callable
from packager.judge.comparison import OwnMetric, compare
from packager.plan.figures import ModelFacts, ReferenceResult
from packager.plan.recipes import MODEL_FILE
from packager.plan.step_names import METRIC
from packager.run.job import RESULT_FILE, Job
from packager.runtimes.common.detector import detector_of
from packager.samples.store import load_inputs, load_labels
from runtime_adapters.protocol import Tensors
from wire.codec import from_json


class Tuning(NamedTuple):
    """The data that a repair works with."""

    calibration: Tensors
    tuning: Tensors
    retention: Callable[[Tensors, list[int]], float]
    """Retention of the answers to the tuning samples at these indices; 1.0 for the float model."""


def facts_of(job: Job) -> ModelFacts:
    """Return the facts about the prepared model."""
    return from_json((Path(job.inputs["prepared"]) / RESULT_FILE).read_bytes(), ModelFacts)


def onnx_model(job: Job) -> Path:
    """Return the ONNX model to start from."""
    return Path(job.inputs["model"]) / MODEL_FILE


def samples(job: Job, part: str = "calibration") -> Tensors:
    """Map the samples of a part."""
    return load_inputs(Path(job.inputs["data"]) / part, facts_of(job).inputs)


def tuning_of(job: Job) -> Tuning:
    """Return the data that a repair works with; it holds no samples of the gate."""
    from packager.runtimes.common.float_answers import float_answers

    facts = facts_of(job)
    tuning = samples(job, "tuning")
    reference = float_answers(onnx_model(job), tuning, [spec.name for spec in facts.outputs])
    labels = load_labels(Path(job.inputs["data"]) / "tuning")
    path = Path(job.inputs["reference"]) / RESULT_FILE
    metric = from_json(path.read_bytes(), ReferenceResult).metric
    function = own_metric(job, metric)
    detector = detector_of(job, metric, facts.outputs)

    def retention(answers: Tensors, indices: list[int]) -> float:
        found = compare(
            answers,
            reference,
            labels,
            metric,
            indices=indices,
            function=function,
            detector=detector,
        )
        return found.accuracy.retention

    return Tuning(samples(job), tuning, retention)


def own_metric(job: Job, metric: str) -> OwnMetric | None:
    """Return the user's metric, where the build has one."""
    path = job.inputs.get(METRIC)
    return load_callable(Path(path), metric) if path else None
