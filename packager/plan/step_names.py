"""The names of a plan's steps and of what they are given, and what those need that judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from packager.plan.values import PlanSettings
from wire.codec import to_builtins
from wire.package.processing import Postprocessing

SOURCE: Final = "source"
CALIBRATION: Final = "calibration"
TUNING: Final = "tuning"
EVALUATION: Final = "evaluation"
PREPROCESSING: Final = "preprocessing"
POSTPROCESSING: Final = "postprocessing"
ANCHORS: Final = "anchors"
METRIC: Final = "metric"
TRAINING: Final = "training"
TUNING_DATABASE: Final = "tuning-database"
"""Names of what a user gives; every other input of a step is an earlier step."""

IMPORT: Final = "import"
INSPECT: Final = "inspect"
DATA: Final = "data"
REFERENCE: Final = "reference"
LAYERS: Final = "layers"
PROCESSING: Final = "processing"
GOLDEN: Final = "golden"
ANSWERS_ROLE: Final = "answers-"
OTHERS_ROLE: Final = "other-answers-"
"""Before a variant's name: what it answered, with the usual kernels and with the other ones."""


def anchors_input(declared: Mapping[str, Postprocessing]) -> dict[str, str]:
    """Return what a step needs that applies declared postprocessing, by output."""
    named = any(how.suppression and how.suppression.anchors for how in declared.values())
    return {"anchors": ANCHORS} if named else {}


def metric_input(settings: PlanSettings) -> dict[str, str]:
    """Return what a step needs that computes the metric."""
    own = {"metric": METRIC} if settings.own_metric else {}
    return {**own, **anchors_input(settings.boxes)}


def boxes_option(settings: PlanSettings) -> dict[str, Any]:
    """Return what a step is told of boxes in the outputs that the metric reads."""
    return {"postprocessing": to_builtins(settings.boxes)} if settings.boxes else {}
