"""The mean intersection over union of masks, and which axis of an output scores the classes.

Rules:
- An output is scores of classes along some axis, or whole numbers: the classes themselves.
- With masks as labels, the class axis is the one without which the shapes are equal. Without, it is
  the first or the last axis of a sample, if that is shorter than all others.
- Where more than one axis fits, the user is asked: a guess would give a figure of nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.judge.sums import Options, Rows, Sums
from packager.samples.store import blocks
from runtime_adapters.protocol import Tensor

IGNORE: Final = 255
"""Marks places that have no class, as in the masks of PASCAL VOC and Cityscapes."""

MAX_CLASSES: Final = 1024
MIN_CLASSES: Final = 2
MIN_PLACE_AXES: Final = 2
"""Height and width; with fewer, an output is a sequence."""

AXIS: Final = "axis"
NUMBERS: Final = "numbers"
"""In place of an axis: the output holds the classes themselves."""


def masks_of(labels: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Return masks in the shape of an output's places, which may lack an axis of 1; else None."""
    if labels.shape == shape:
        return labels
    wide = labels.ndim == len(shape) + 1
    if wide and labels.shape[1] == 1 and (labels.shape[0], *labels.shape[2:]) == shape:
        return labels[:, 0]
    return labels[..., 0] if wide and labels.shape[-1] == 1 and labels.shape[:-1] == shape else None


def class_axes(scores: Tensor, labels: Tensor | None) -> list[str]:
    """Return the axes that may hold the classes, as `miou` names them.

    Args:
        scores: An output, samples along the first axis.
        labels: Masks of class numbers, if there are any.

    Returns:
        Numbers of axes, or `numbers` for an output of class numbers.
    """
    if labels is not None and labels.dtype.kind not in "iu":
        return []
    if scores.dtype.kind in "iu" and (scores.dtype.itemsize > 1 or labels is not None):
        fits = scores.ndim > MIN_PLACE_AXES and (
            labels is None or masks_of(labels, scores.shape) is not None
        )
        if fits:
            return [NUMBERS]
    if scores.dtype.kind == "b" or scores.ndim <= MIN_PLACE_AXES + 1:
        return []
    sizes = scores.shape
    inner = range(1, scores.ndim)
    if labels is not None:
        return [
            str(axis)
            for axis in inner
            if sizes[axis] >= MIN_CLASSES
            and masks_of(labels, (*sizes[:axis], *sizes[axis + 1 :])) is not None
        ]
    return [
        str(axis)
        for axis in (1, scores.ndim - 1)
        if sizes[axis] >= MIN_CLASSES and all(sizes[axis] < sizes[o] for o in inner if o != axis)
    ]


def settled(output: str, scores: Tensor, labels: Tensor | None, options: Options) -> str:
    """Return the class axis of an output, as the user named it or as its shape shows.

    Args:
        output: Its name.
        scores: The output.
        labels: Masks of class numbers, if there are any.
        options: `axis` and `ignore`, as the user gave them.

    Returns:
        A number of an axis that is not negative, or `numbers`.

    Raises:
        DataError: It is not clear, or does not fit the masks.
    """
    shape = list(scores.shape[1:])
    if options.get(AXIS) == NUMBERS:
        found = [NUMBERS] if scores.dtype.kind in "iu" else []
    elif AXIS in options:
        axis = int(options[AXIS]) % scores.ndim if abs(int(options[AXIS])) < scores.ndim else 0
        found = [str(axis)] if axis else []
    else:
        found = class_axes(scores, labels)
    masks = "no labels" if labels is None else f"labels of {list(labels.shape[1:])} {labels.dtype}"
    if len(found) != 1:
        many = "more than one axis" if found else "no axis"
        raise DataError(
            f"metric miou: in the output {output!r}, {shape} for each sample, {many} fits as the "
            f"axis of the classes, with {masks}",
            remedy="name it: --metric miou,axis=1 for (class, height, width), axis=-1 for "
            "(height, width, class); labels are masks of class numbers, integers (height, width)",
        )
    _check_masks(output, scores, labels, found[0], options)
    return found[0]


def miou(answers: Tensor, reference: Tensor, labels: Tensor | None, options: Options) -> Sums:
    """Return the intersection and the union of each class in each sample.

    The intersection over union of a class is that of all its places in all samples; the metric is
    the mean over the classes that occur in the truth or in the answers. Without masks, the classes
    that the reference finds are the truth.

    Source:
        M. Everingham et al., "The PASCAL Visual Object Classes challenge: a retrospective", IJCV
        111 (2015), 98-136, section 4.1.4: true positives over true positives, false positives and
        false negatives, over all pixels of all images, and void pixels left out.
    """
    axis = options[AXIS]
    ignore = _ignored(options)
    count = _classes(answers, reference, labels, axis, ignore)
    found = np.zeros((len(reference), 2 * count), np.float64)
    for block in blocks(reference):
        ours, theirs = _numbers(answers[block], axis), _numbers(reference[block], axis)
        truth = theirs
        if labels is not None:
            masks = masks_of(np.asarray(labels[block]), ours.shape)
            truth = theirs if masks is None else masks
        for row, (own, known) in enumerate(zip(ours, truth, strict=True), start=block.start):
            counted = np.ones(known.shape, np.bool_) if labels is None else known != ignore
            own, known = own[counted].astype(np.intp), known[counted].astype(np.intp)  # noqa: PLW2901
            same = np.bincount(known[own == known], minlength=count)
            either = np.bincount(own, minlength=count) + np.bincount(known, minlength=count)
            found[row] = np.concatenate([same, either - same])
    return Sums(found, _mean_iou, _shares)


def _mean_iou(row: Rows) -> float:
    same, either = row.reshape(2, -1)
    occurring = either > 0
    return float((same[occurring] / either[occurring]).mean()) if occurring.any() else 1.0


def _shares(table: Rows) -> Rows:
    """Return each sample's share of a class's places, as a mean over the classes.

    A class that few samples show makes these few weigh much.
    """
    either = table[:, table.shape[1] // 2 :]
    whole = either.sum(axis=0)
    occurring = whole > 0
    if not occurring.any():
        return np.ones(len(table))
    found: Rows = (either[:, occurring] / whole[occurring]).mean(axis=1)
    return found


def _numbers(scores: Tensor, axis: str) -> NDArray[np.intp]:
    """Return the class of each place."""
    if axis == NUMBERS:
        return np.asarray(scores).astype(np.intp)
    found: NDArray[np.intp] = np.asarray(scores).argmax(axis=int(axis))
    return found


def _classes(
    answers: Tensor, reference: Tensor, labels: Tensor | None, axis: str, ignore: int
) -> int:
    """Return the number of classes.

    Raises:
        DataError: An output of class numbers holds a number that is none.
    """
    if axis != NUMBERS:
        return int(reference.shape[int(axis)])
    parts = [answers, reference]
    least = min(int(part.min()) for part in parts)
    most = max(int(part.max()) for part in parts)
    if labels is not None:
        known = np.asarray(labels)
        most = max(most, int(known[known != ignore].max(initial=0)))
    if least < 0 or most >= MAX_CLASSES:
        raise DataError(
            f"metric miou: the output holds numbers from {least} to {most}, but classes go from 0 "
            f"to {MAX_CLASSES - 1} at most"
        )
    return most + 1


def _check_masks(
    output: str, scores: Tensor, labels: Tensor | None, axis: str, options: Options
) -> None:
    """Refuse masks that do not name classes of this output.

    Raises:
        DataError: They have another shape or type, or other numbers.
    """
    count = MAX_CLASSES if axis == NUMBERS else scores.shape[int(axis)]
    if not MIN_CLASSES <= count <= MAX_CLASSES:
        raise DataError(
            f"metric miou: axis {axis} of the output {output!r} has {count} places, but "
            f"{MIN_CLASSES} to {MAX_CLASSES} classes are needed"
        )
    if labels is None:
        return
    places = scores.shape
    if axis != NUMBERS:
        places = (*places[: int(axis)], *places[int(axis) + 1 :])
    masks = masks_of(labels, places)
    if masks is None or labels.dtype.kind not in "iu":
        raise DataError(
            f"metric miou: labels are {labels.dtype} of shape {list(labels.shape)}, but masks of "
            f"class numbers, integers of shape {list(places)}, are needed"
        )
    ignore = _ignored(options)
    known = np.unique(masks)
    known = known[known != ignore]
    if not len(known):
        raise DataError(f"metric miou: every place of the masks is {ignore}, which is ignored")
    if known[0] < 0 or known[-1] >= count:
        raise DataError(
            f"metric miou: the masks hold class numbers from {known[0]} to {known[-1]}, but the "
            f"classes go from 0 to {count - 1}, and {ignore} is ignored",
            remedy="name the number that marks places without a class: --metric miou,ignore=N",
        )


def _ignored(options: Options) -> int:
    return int(options.get("ignore", IGNORE))
