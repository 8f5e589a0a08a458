"""Finds boxes and their scores in a model's outputs, as a `Suppression` declares.

Rules:
- Shapes are checked where they are known: those that a model declares, and those of real outputs.
- A fault names the output, its shape, how it is read, and the setting that would fit if one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from runtime_adapters.processing import kernels
from runtime_adapters.processing.errors import DeclarationError
from runtime_adapters.processing.numpy_forms import Floats
from runtime_adapters.protocol import Tensor
from runtime_adapters.tensors import ANY
from wire.package.processing import Suppression

FIRST: Final = "classes_first"
LAST: Final = "classes_last"
BOX: Final = 4
"""Numbers of a box."""

SCORE_MARGIN: Final = 0.02
"""How far beyond 0 to 1 the probabilities of a quantized output may lie."""

_RANK: Final = 3


class Detections(NamedTuple):
    """Boxes and their scores, before any is dropped."""

    boxes: Tensor
    """Shape (batch, boxes, 4)."""

    scores: Tensor
    """Shape (batch, classes, boxes), without the background."""

    first_class: int
    """The model's number of the first of these classes."""


def detections(
    name: str, how: Suppression, boxes: Tensor, scores: Tensor, anchors: Floats | None
) -> Detections:
    """Find boxes and scores in outputs whose shapes have been checked.

    Args:
        name: The output of the boxes.
        how: Its declaration.
        boxes: That output, as real numbers.
        scores: The output of the scores, as real numbers; the same one where it holds both.
        anchors: One for each box, where they are declared.

    Returns:
        The boxes, in the form that is declared, and their scores.
    """
    rows = scores.swapaxes(1, 2) if how.layout == LAST else scores
    chance = None
    if how.scores == name:
        boxes, rows = rows[:, :BOX].swapaxes(1, 2), rows[:, BOX:]
        if how.objectness:
            chance, rows = rows[:, :1], rows[:, 1:]
    if how.activation:
        rows = kernels.softmax(rows, 1) if how.activation == "softmax" else kernels.sigmoid(rows)
        chance = None if chance is None else kernels.sigmoid(chance)
    if chance is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            rows = rows * chance
    if how.background:
        rows = rows[:, 1:] if how.background == "first" else rows[:, :-1]
    if anchors is not None:
        variances = how.variances or (0.1, 0.2)
        boxes = kernels.from_anchors(boxes, anchors, variances, centre=how.boxes == "centre")
    return Detections(boxes, rows, 1 if how.background == "first" else 0)


def check_shapes(
    name: str,
    how: Suppression,
    boxes: Sequence[int],
    scores: Sequence[int],
    *,
    labels: int = 0,
    anchors: int | None = None,
    declared: bool = False,
) -> None:
    """Refuse shapes that are not boxes with scores.

    Args:
        name: The output of the boxes.
        how: Its declaration.
        boxes: Shape of that output; -1 is a size that is not known.
        scores: Shape of the output of the scores; the same where one output holds both.
        labels: How many labels are declared; 0 for none.
        anchors: How many anchors there are; None where none are declared.
        declared: Whether these are shapes that a model declares for all its outputs. Then fewer
            boxes than classes mean that the layout is wrong.

    Raises:
        DeclarationError: The shapes do not fit.
    """
    where = f"postprocessing of {name[:80]!r}"
    if how.scores == name:
        count = _check_together(where, name, how, boxes, labels)
        if declared and not labels:
            _check_plausible(where, name, how, boxes)
    else:
        count = _check_apart(where, name, how, boxes, scores)
    if anchors is not None and count not in {ANY, anchors}:
        raise DeclarationError(
            f"{where}: there are {anchors} anchors, but the output of {list(boxes)} has {count} "
            "boxes",
            remedy="give one anchor for each box, in the model's order",
        )


def check_values(name: str, how: Suppression, found: Detections) -> None:
    """Refuse values that no boxes and scores have; they show a layout that is declared wrongly.

    Args:
        name: The output of the boxes.
        how: Its declaration.
        found: What the declaration finds in real outputs.

    Raises:
        DeclarationError: A score is NaN, or no probability where an output holds both.
    """
    where = f"postprocessing of {name[:80]!r}"
    if np.isnan(found.scores).any():
        raise DeclarationError(f"{where}: a score in the output {how.scores[:80]!r} is NaN")
    if how.scores != name or not found.scores.size:
        return
    least, most = float(found.scores.min()), float(found.scores.max())
    if least < -SCORE_MARGIN or most > 1 + SCORE_MARGIN:
        raise DeclarationError(
            f"{where}: the scores in this output are {least:.3g} to {most:.3g}, but probabilities "
            "are 0 to 1",
            remedy='use activation = "sigmoid" if the model gives logits; else check layout and '
            "objectness",
        )


def order(how: Suppression, *, together: bool) -> str:
    """Say how the axes of the output of the scores are read."""
    inner = "number" if together else "class"
    return f"(batch, box, {inner})" if how.layout == LAST else f"(batch, {inner}, box)"


def _check_apart(
    where: str, name: str, how: Suppression, boxes: Sequence[int], scores: Sequence[int]
) -> int:
    read = order(how, together=False)
    if len(boxes) != _RANK or len(scores) != _RANK or boxes[2] not in {ANY, BOX}:
        raise DeclarationError(
            f"{where}: boxes must be (batch, box, 4) and scores {read}, but they are "
            f"{list(boxes)} and {list(scores)}"
        )
    kinds, count = _sizes(how, scores)
    if ANY not in {count, boxes[1]} and count != boxes[1]:
        raise DeclarationError(
            f"{where}: the output {how.scores[:80]!r} of {list(scores)} is read as {read}, the "
            f"scores of {count} boxes, but {name[:80]!r} of {list(boxes)} has {boxes[1]} boxes",
            remedy=f'use layout = "{_other(how)}"'
            if kinds == boxes[1]
            else "name the output with the scores of these boxes",
        )
    if ANY not in {scores[0], boxes[0]} and scores[0] != boxes[0]:
        raise DeclarationError(
            f"{where}: the outputs of {list(boxes)} and {list(scores)} have different batches"
        )
    if how.background and kinds in {0, 1}:
        raise DeclarationError(
            f"{where}: the output {how.scores[:80]!r} of {list(scores)} is read as {read}, and "
            "its only class cannot be the background",
            remedy="leave out background",
        )
    return boxes[1] if count == ANY else count


def _check_together(
    where: str, name: str, how: Suppression, shape: Sequence[int], labels: int
) -> int:
    read = order(how, together=True)
    said = f"{where}: the output {name[:80]!r} of {list(shape)} is read as {read}"
    if len(shape) != _RANK:
        raise DeclarationError(f"{said}, which needs three axes")
    numbers, count = _sizes(how, shape)
    if numbers == ANY:
        return count
    before = BOX + bool(how.objectness)
    classes = numbers - before
    if classes < 1 + bool(how.background):
        raise DeclarationError(
            f"{said}: a box then has {numbers} numbers, but it needs {before} and its scores",
            remedy=f'use layout = "{_other(how)}"' if count > before else "",
        )
    if labels and labels != classes:
        raise DeclarationError(
            f"{said}: a box then has {before} numbers and {classes} scores, but there are "
            f"{labels} labels",
            remedy=_fitting(how, numbers, count, labels),
        )
    return count


def _check_plausible(where: str, name: str, how: Suppression, shape: Sequence[int]) -> None:
    numbers, count = _sizes(how, shape)
    if ANY in {numbers, count} or numbers <= count:
        return
    classes = numbers - BOX - bool(how.objectness)
    raise DeclarationError(
        f"{where}: the output {name[:80]!r} of {list(shape)} is read as "
        f"{order(how, together=True)}: {count} boxes with {classes} classes each",
        remedy=f'use layout = "{_other(how)}"; or give the labels of all {classes} classes',
    )


def _fitting(how: Suppression, numbers: int, count: int, labels: int) -> str:
    """Return the settings with which there is a score for each label."""
    for layout, size in ((how.layout or FIRST, numbers), (_other(how), count)):
        for objectness in (False, True):
            if size - BOX - objectness == labels:
                return f'use layout = "{layout}" and objectness = {str(objectness).lower()}'
    return "give a label for each class, the background included"


def _sizes(how: Suppression, shape: Sequence[int]) -> tuple[int, int]:
    """Return the sizes of the axes of the classes and of the boxes."""
    return (shape[2], shape[1]) if how.layout == LAST else (shape[1], shape[2])


def _other(how: Suppression) -> str:
    return FIRST if how.layout == LAST else LAST
