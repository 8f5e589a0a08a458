"""Applies the declared postprocessing to answers, with the code that a device runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from packager.errors import DataError
from packager.judge.detection_form import Detector, Found
from packager.judge.metrics import MAP, OUTPUT, named, wanted
from packager.run.job import Job
from packager.samples.declarations import as_data_errors
from packager.samples.store import sample
from runtime_adapters.batches import ranks_of
from runtime_adapters.processing.anchors import read_anchors
from runtime_adapters.processing.answers import Answers
from runtime_adapters.protocol import Tensors
from wire.codec import convert
from wire.package.processing import Postprocessing
from wire.package.tensors import TensorSpec

POSTPROCESSING = "postprocessing"


def declared_answers(job: Job, outputs: tuple[TensorSpec, ...]) -> Answers:
    """Return the postprocessing that a step was given.

    Args:
        job: The step; its options hold the declarations, its inputs the anchors if there are any.
        outputs: The model's outputs.

    Returns:
        The postprocessing.

    Raises:
        DataError: The declarations do not fit the outputs.
    """
    declared = convert(job.options[POSTPROCESSING], dict[str, Postprocessing])
    with as_data_errors():
        anchors = {
            name: read_anchors(Path(job.inputs["anchors"]))
            for name, how in declared.items()
            if how.suppression and how.suppression.anchors
        }
        return Answers(outputs, declared, anchors)


def detector_of(job: Job, metric: str, outputs: tuple[TensorSpec, ...]) -> Detector | None:
    """Return what finds the boxes in the answers to some samples.

    Args:
        job: The step, as for `declared_answers`.
        metric: The metric; it may name the output of the boxes.
        outputs: The model's outputs.

    Returns:
        The function; None where no output is declared to hold boxes.

    Raises:
        DataError: The declarations do not fit, or the metric names an output without boxes.
    """
    declared = convert(job.options.get(POSTPROCESSING, {}), dict[str, Postprocessing])
    names = [s.name for s in outputs if s.name in declared and declared[s.name].suppression]
    if not names:
        return None
    name = names[0]
    if named(metric) == MAP and (asked := wanted(metric).options.get(OUTPUT)) is not None:
        if asked not in names:
            raise DataError(
                f"metric map: the postprocessing of {asked[:80]!r} declares no boxes",
                remedy=f"name one of {', '.join(names)[:200]}",
            )
        name = asked
    how = declared[name].suppression
    answers, ranks = declared_answers(job, outputs), ranks_of(outputs)

    def found(tensors: Tensors) -> list[Found]:
        return [
            _in_one(name, answers.answer(name, sample(tensors, index, ranks)))
            for index in range(len(tensors[name]))
        ]

    def _in_one(name: str, answer: Tensors) -> Found:
        boxes = answer[name].astype(np.float64)
        if how and how.boxes == "centre":
            half = boxes[:, 2:] / 2
            boxes = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
        index = answer[f"{name}.index"]
        if index[:, 0].any():
            raise DataError(
                "metric map: one answer holds the boxes of several pictures",
                remedy="export the model with a batch of 1 or of any size",
            )
        scores = answer[f"{name}.score"].astype(np.float64)
        return Found(boxes, index[:, 1].astype(np.intp), scores)

    return found
