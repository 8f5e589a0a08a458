"""What an application says of an answer, and what that means for the classes of its model. Pure.

Rules:
- A label is checked against what the package declares: a misspelt one must not count as wrong.
- A score is a number from 0 on, because telemetry has no negative values in its histograms.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

import msgspec

from agent.serve.errors import FeedbackError
from agent.serve.feedback.answers import Answer, Truth
from telemetry.histogram import VALUE_MAX
from wire.package.scores import Classes

MAX_ID_CHARACTERS: Final = 1024
"""As of a request for inference."""

MOST_NAMED: Final = 8
"""Labels that a fault names."""

Label = int | str


class FeedbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to `.../feedback`: an id, and either labels or a score."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARACTERS)]
    label: Label | tuple[Label, ...] | None = None
    """The index or the label of the right class; of several samples a list."""

    score: float | None = None


def truth_of(said: FeedbackRequest, answer: Answer) -> Truth:
    """Return the truth that an application states.

    Args:
        said: What it says.
        answer: The answer that it is about.

    Returns:
        The right class of each sample, or a score.

    Raises:
        FeedbackError: It says nothing, too much, or what cannot be of this answer.
    """
    if said.label is not None and said.score is None:
        return _classes(said.label, answer)
    if said.score is not None and said.label is None:
        return score_of(said.score)
    raise FeedbackError(
        "say either which class is right or how good the answer was",
        remedy='send {"id": ..., "label": ...} or {"id": ..., "score": ...}',
    )


def score_of(score: float) -> float:
    """Return a score that telemetry can hold.

    Raises:
        FeedbackError: It is negative, too great or no number.
    """
    if not math.isfinite(score) or not 0 <= score <= VALUE_MAX:
        raise FeedbackError(
            f"score is not a number within 0 and {VALUE_MAX:.1e}",
            remedy="of an error send its size",
        )
    return score


def _classes(label: Label | tuple[Label, ...], answer: Answer) -> tuple[int, ...]:
    """Return the classes that labels stand for.

    Raises:
        FeedbackError: There is no such class, or no class to compare, or not as many samples.
    """
    labels = label if isinstance(label, tuple) else (label,)
    classes = answer.group.classes
    if classes is None:
        raise FeedbackError("this model tells no classes apart", remedy="send a score")
    if not answer.classes:
        raise FeedbackError(
            "of a request with so many samples no classes are kept",
            remedy="send a score, or fewer samples in a request",
        )
    if len(labels) != len(answer.classes):
        raise FeedbackError(
            f"the request had {len(answer.classes)} samples, and this is about {len(labels)}",
            remedy="send a list with the label of each sample",
        )
    return tuple(_class(each, classes) for each in labels)


def _class(label: Label, classes: Classes) -> int:
    """Return the class that a label stands for.

    Raises:
        FeedbackError: There is no such class.
    """
    if isinstance(label, int):
        if 0 <= label < classes.number:
            return label
        raise FeedbackError(
            f"there is no class {str(label)[:20]}",
            remedy=f"the model's are 0 to {classes.number - 1}",
        )
    if label in classes.labels:
        return classes.labels.index(label)
    if not classes.labels:
        raise FeedbackError(
            "this model declares no labels", remedy="send the index of the right class"
        )
    more = len(classes.labels) - MOST_NAMED
    named = ", ".join(classes.labels[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    raise FeedbackError(f"there is no label {label[:80]!r}", remedy=f"the model has {named}")
