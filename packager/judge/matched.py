"""Compares models that answer as many boxes as they find, by matching the boxes of each sample.

A detector with its suppression inside answers arrays whose size differs between samples, so that
they cannot be put side by side. The metric names where boxes, scores and classes are, as in
`map,output=boxes,scores=scores,classes=labels`, and boxes are matched by overlap and class.

Rules:
- A set of answers is an array of objects for each output: one array for each sample, in the shape
  in which the runtime gave it.
- Boxes with a score of 0 or less pad; they do not count.
- Golden samples are compared element by element on a device. So they come from the samples that
  every variant answers with the same boxes in the same order, and the tolerances follow from these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.judge.choice import REFERENCE, TRUTH
from packager.judge.comparison import Pair
from packager.judge.detection import Matches, check_boxes, labelled
from packager.judge.detection_form import Found
from packager.judge.evidence import evidence_of
from packager.judge.metrics import CLASSES, OUTPUT, SCORES, Wanted, named, retention, wanted
from packager.judge.shapes import OneShape
from packager.plan.figures import Comparison
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.accuracy import Accuracy, ShapeAccuracy

CORNERS: Final = 4
SAME: Final = 0.5
"""Least overlap of two boxes in the same place of two answers; the least that COCO counts."""

MOST_GOLDEN: Final = 16
"""Samples among which the golden ones are chosen: those whose scores are furthest apart, so that
the rounding of another processor changes no order."""


def settled(text: str, reference: Tensors, labels: Tensor | None) -> str:
    """Return the metric with what the model decided, after all that can be checked.

    Args:
        text: The metric, which names the scores.
        reference: The reference's answers.
        labels: The labels, if there are any.

    Returns:
        The metric, which names the output of the boxes.

    Raises:
        DataError: The model has no such outputs, they hold no boxes, or the labels do not fit.
    """
    asked = wanted(text)
    options = {OUTPUT: next(iter(reference)), **asked.options}
    names = [options[OUTPUT], *(options[key] for key in (SCORES, CLASSES) if key in options)]
    for name in names[:1] + [name for name in names[1:] if not _is_column(name)]:
        if name not in reference:
            raise DataError(
                f"metric map: the model has no output {name[:80]!r}",
                remedy=f"its outputs are {', '.join(reference)[:200]}",
            )
    metric = Wanted(asked.name, options)
    used = None if options.get(TRUTH) == REFERENCE else labels
    check_boxes(reference, used, options, lambda answers: found_in(answers, metric))
    return metric.text()


def found_in(answers: Tensors, metric: Wanted) -> list[Found]:
    """Return the boxes in each sample.

    Args:
        answers: A set of answers.
        metric: The metric, which names the outputs.

    Returns:
        The boxes, with the score of each above 0.

    Raises:
        DataError: An output has another form than the metric says.
    """
    names = (metric.options[OUTPUT], metric.options[SCORES], metric.options.get(CLASSES, ""))
    used = {name: answers[name] for name in names if name in answers}
    return [
        _found({name: tensor[index] for name, tensor in used.items()}, names, metric)
        for index in range(len(answers[names[0]]))
    ]


def compare_matched(sets: Sequence[OneShape], metric: str) -> Comparison:
    """Compare a variant's boxes with the reference's.

    Args:
        sets: The samples of each shape, each with sets of answers; the first gives golden samples.
        metric: What `settled` returned.

    Returns:
        The comparison, with the figures of each shape where there are several.

    Raises:
        DataError: The answers hold no boxes, or on no sample those of the reference.
    """
    asked = wanted(metric)
    ours: list[Found] = []
    theirs: list[Found] = []
    truth: list[Found] = []
    for one in sets:
        mine, ideal = found_in(one.answers, asked), found_in(one.reference, asked)
        labels = None if asked.options.get(TRUTH) == REFERENCE else one.labels
        ours, theirs = ours + mine, theirs + ideal
        truth = truth + (ideal if labels is None else labelled(labels, asked.options))
    pair = Pair(Matches(ours, truth), Matches(theirs, truth), None)
    value, best = pair.ours.value(), pair.theirs.value()
    errors = [_worst_errors(one, asked) for one in sets]
    if not any(alike(sets[0].answers, sets[0].reference, asked)):
        raise DataError(
            "on no sample does the variant answer the reference's boxes in the reference's order, "
            "so no golden sample could tell whether a device computes it rightly"
        )
    accuracy = Accuracy(
        metric=named(metric),
        value=value,
        reference=best,
        retention=retention(named(metric), value, best),
        agreement=None,
        sqnr_db=None,
        worst_error=max(max(worst.values()) for worst in errors),
        samples=len(ours),
    )
    if len(sets) > 1:
        accuracy = _with_shapes(accuracy, sets, pair, errors)
    return Comparison(
        accuracy=accuracy,
        worst_errors=errors[0],
        greatest={name: _greatest(tensor) for name, tensor in sets[0].reference.items()},
        integers=tuple(
            name for name, tensor in sets[0].reference.items() if tensor[0].dtype.kind in "iu"
        ),
        evidence=evidence_of(metric, pair, len(ours), None),
    )


def alike(answers: Tensors, reference: Tensors, metric: Wanted) -> NDArray[np.bool_]:
    """Tell on which samples a variant answers the reference's boxes in the reference's order.

    Args:
        answers: The variant's answers.
        reference: The reference's, to the same samples.
        metric: The metric.

    Returns:
        One flag for each sample.
    """
    pairs = zip(found_in(answers, metric), found_in(reference, metric), strict=True)
    return np.array(
        [
            all(tensor[i].shape == answers[name][i].shape for name, tensor in reference.items())
            and _same(ours, theirs)
            for i, (ours, theirs) in enumerate(pairs)
        ],
        np.bool_,
    )


def golden_group(reference: Tensors, variants: Sequence[Tensors], metric: Wanted) -> list[int]:
    """Return the samples of one size of answers among which golden samples are chosen.

    Args:
        reference: The reference's answers.
        variants: Those of each variant.
        metric: The metric.

    Returns:
        Samples that all variants answer with the reference's boxes in its order; those of the most
        frequent sizes with boxes, and of these the ones whose scores are furthest apart. Ascending.

    Raises:
        DataError: There is none.
    """
    good = np.logical_and.reduce([alike(one, reference, metric) for one in variants])
    boxes = found_in(reference, metric)
    shapes = {
        int(i): tuple(tensor[i].shape for tensor in reference.values())
        for i in np.flatnonzero(good)
    }
    filled = [i for i in shapes if len(boxes[i].scores)] or list(shapes)
    if not filled:
        raise DataError(
            "there is no sample on which all variants answer the same boxes in the same order, so "
            "none can be a golden sample",
            remedy="build fewer variants, or raise the threshold of scores in the model",
        )
    (most, _), *_ = Counter(shapes[i] for i in filled).most_common(1)
    group = sorted((i for i in filled if shapes[i] == most), key=lambda i: -_gap(boxes[i]))
    return sorted(group[:MOST_GOLDEN])


def _is_column(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _found(row: Tensors, names: tuple[str, str, str], metric: Wanted) -> Found:
    output, scored, classed = names
    table = _rows(output, row[output])
    first = int(metric.options.get("first", "0"))
    if table.shape[1] < first + CORNERS or (not _is_column(scored) and table.shape[1] != CORNERS):
        raise DataError(
            f"metric map: output {output!r} of one sample has shape {list(row[output].shape)}, but "
            "boxes have four numbers each",
            remedy="where it holds scores and classes too, give their columns, as in "
            "scores=4,classes=5",
        )
    corners = table[:, first : first + CORNERS]
    scores = _values(row, scored, table)
    kept = ~(scores <= 0)
    classes = _values(row, classed, table) if classed else np.zeros(len(table))
    corners, scores, classes = corners[kept], scores[kept], classes[kept]
    if not all(np.isfinite(array).all() for array in (corners, scores, classes)):
        raise DataError(f"output {output!r} holds a box that is NaN or infinite")
    if metric.options.get("boxes") == "centre":
        half = corners[:, 2:] / 2
        corners = np.concatenate([corners[:, :2] - half, corners[:, :2] + half], axis=1)
    return Found(corners, np.rint(classes).astype(np.intp), scores)


def _rows(output: str, tensor: Tensor) -> NDArray[np.float64]:
    """Return an output of one sample as rows of numbers.

    Raises:
        DataError: It has no rows, or those of several pictures.
    """
    if tensor.size == 0:
        return np.empty((0, max(tensor.shape[-1] if tensor.ndim > 1 else 0, CORNERS)))
    if tensor.ndim < 2 or any(size != 1 for size in tensor.shape[:-2]):  # noqa: PLR2004 - rows of numbers
        raise DataError(
            f"metric map: output {output!r} of one sample has shape {list(tensor.shape)}, but "
            "boxes are rows of numbers, with at most axes of 1 before them",
            remedy="export the model with a batch of 1 or of any size",
        )
    return np.asarray(tensor, np.float64).reshape(-1, tensor.shape[-1])


def _values(row: Tensors, name: str, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a number for each box: of an output, or of a column.

    Raises:
        DataError: There are more or fewer than boxes.
    """
    if _is_column(name):
        if int(name) >= table.shape[1] and len(table):
            raise DataError(
                f"metric map: a box has {table.shape[1]} numbers, so there is no column {name}",
                remedy="columns are counted from 0",
            )
        return table[:, int(name)] if len(table) else np.empty(0)
    values = np.asarray(row[name], np.float64).reshape(-1)
    if len(values) != len(table):
        raise DataError(
            f"metric map: output {name!r} of one sample has shape {list(row[name].shape)} for "
            f"{len(table)} boxes",
            remedy="name outputs with one number for each box",
        )
    return values


def _same(ours: Found, theirs: Found) -> bool:
    """Tell whether two answers hold the same boxes in the same order."""
    if not np.array_equal(ours.classes, theirs.classes):
        return False
    one, other = _ordered(ours.boxes), _ordered(theirs.boxes)
    low, high = np.maximum(one[:, :2], other[:, :2]), np.minimum(one[:, 2:], other[:, 2:])
    shared = np.prod(np.maximum(high - low, 0.0), axis=1)
    areas = (np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (one, other))
    return bool(np.all(shared >= SAME * (sum(areas) - shared)))


def _ordered(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    pairs = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(*pairs), np.maximum(*pairs)], axis=1)


def _gap(found: Found) -> float:
    """Return the smallest difference of two scores that follow each other."""
    return float(np.abs(np.diff(found.scores)).min(initial=1.0))


def _worst_errors(one: OneShape, metric: Wanted) -> dict[str, float]:
    """Return the greatest difference of any element on the samples that are alike, by output."""
    rows = np.flatnonzero(alike(one.answers, one.reference, metric))
    return {
        name: max(
            (
                float(
                    np.max(np.abs(one.answers[name][i].astype(np.float64) - tensor[i]), initial=0.0)
                )
                for i in rows
            ),
            default=0.0,
        )
        for name, tensor in one.reference.items()
    }


def _greatest(tensor: Tensor) -> float:
    found = [np.max(np.abs(part.astype(np.float64)), initial=0.0) for part in tensor]
    return float(max(value for value in found if np.isfinite(value)))


def _with_shapes(
    accuracy: Accuracy, sets: Sequence[OneShape], pair: Pair, errors: Sequence[dict[str, float]]
) -> Accuracy:
    shapes, start = [], 0
    for one, worst in zip(sets, errors, strict=True):
        count = len(next(iter(one.reference.values())))
        rows = np.arange(start, start + count)
        start += count
        try:
            value, best = (
                side.value_of(rows)
                for side in (pair.ours, pair.theirs)
                if isinstance(side, Matches)
            )
        except DataError:  # no sample of this shape has a box
            continue
        shapes.append(
            ShapeAccuracy(
                sizes=dict(one.sizes),
                samples=count,
                value=value,
                reference=best,
                retention=retention(accuracy.metric, value, best),
                worst_error=max(worst.values()),
            )
        )
    return msgspec.structs.replace(accuracy, shapes=tuple(shapes))
