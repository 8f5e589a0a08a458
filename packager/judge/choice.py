"""Settles which metric judges a build, and which output it reads.

Rules:
- What is settled names every option that the data or the model decided, so that each step reads the
  same output in the same way.
- A metric that the data do not fit is refused, with what would fit.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from packager.errors import DataError
from packager.judge.classes import TOP5
from packager.judge.detection_form import Detector, are_boxes
from packager.judge.metrics import (
    AGREEMENT,
    AUTO,
    MAP,
    METRICS,
    MIOU,
    OUTPUT,
    PERPLEXITY,
    RATES,
    Wanted,
    is_own,
    named,
    scores_classes,
    sums_of,
    wanted,
)
from packager.judge.segmentation import AXIS, NUMBERS, class_axes, settled
from runtime_adapters.protocol import Tensor, Tensors

MIN_CLASSES: Final = 2
MIN_AXES: Final = 2
"""Samples and scores."""

MAX_CLASS_AXES: Final = 3
"""Samples, places in a sequence, scores. With more axes, the last one is a place in an image,
unless the user names a metric."""

TRUTH: Final = "truth"
REFERENCE: Final = "reference"


def resolve_metric(
    text: str, reference: Tensors, labels: Tensor | None, detector: Detector | None = None
) -> str:
    """Decide which metric is used.

    Args:
        text: A metric, as `wanted` reads it. `auto` means `map` if boxes are declared; `mae` if the
            labels are targets, `top1` if they are classes, `miou` if they are masks; `agreement` if
            there are class scores without labels, else `cosine`. An image does not count as class
            scores.
        reference: The reference's answers, samples along the first axis.
        labels: The labels, if there are any.
        detector: The declared postprocessing, where it gives boxes.

    Returns:
        The metric with the options that were settled.

    Raises:
        DataError: The metric cannot be computed from these data.
    """
    if is_own(text):
        return text
    asked = wanted(text)
    if asked.options.get(OUTPUT, next(iter(reference))) not in reference:
        raise DataError(
            f"metric {asked.name}: the model has no output {asked.options[OUTPUT][:80]!r}",
            remedy=f"its outputs are {', '.join(reference)[:200]}",
        )
    if asked.name == AUTO:
        asked = _automatic(asked, reference, labels, detector)
    return _checked(asked, reference, labels, detector).text()


def reason_of(metric: str, reference: Tensors, labels: Tensor | None) -> str:
    """Say why `auto` chose a metric.

    Args:
        metric: What `resolve_metric` returned for `auto`.
        reference: The reference's answers.
        labels: The labels, if there are any.

    Returns:
        A clause for a person.
    """
    output = scored_output(metric, reference)
    shape = list(reference[output].shape[1:])
    kind, unused = "there are no labels", ""
    if labels is not None:
        kind = f"the labels are {labels.dtype} of shape {list(labels.shape[1:])} for each sample"
        unused = ", so they are not used"
    match named(metric):
        case "map" if labels is not None and TRUTH not in wanted(metric).options:
            text = f"the postprocessing declares boxes, and {kind}, which are boxes"
        case "map":
            text = (
                f"the postprocessing declares boxes; {kind}{unused}: the boxes that the reference "
                "finds are the truth"
            )
        case "mae":
            text = f"{kind}, which are targets for the output {output!r}"
        case "miou":
            axis = wanted(metric).options[AXIS]
            where = "holds class numbers" if axis == NUMBERS else f"has its classes on axis {axis}"
            text = f"{kind}, which are masks for the output {output!r}, which {where}"
        case "top1":
            text = f"{kind}, and the output {output!r} scores {shape[-1]} classes"
        case "agreement":
            missing = kind if labels is None else f"{kind}, which name no classes{unused}"
            text = f"{missing}; the output {output!r} scores {shape[-1]} classes"
        case _:
            text = f"the output {output!r} of shape {shape} scores no classes; {kind}{unused}"
    return text


def scored_output(metric: str, reference: Tensors) -> str:
    """Return the output that a metric reads.

    Args:
        metric: The metric, with its options.
        reference: The reference's answers.

    Returns:
        The output that the metric names; else the first one with class scores if it needs those,
        else the first one.
    """
    if not is_own(metric):
        output = wanted(metric).options.get(OUTPUT)
        if output is not None:
            return output
    if scores_classes(metric):
        for name, tensor in reference.items():
            if has_classes(tensor):
                return name
    return next(iter(reference))


def reading(metric: str, output: str) -> str:
    """Return a metric that names the output which it reads; a user's function as it is."""
    if is_own(metric):
        return metric
    asked = wanted(metric)
    return Wanted(asked.name, {OUTPUT: output, **asked.options}).text()


def has_classes(scores: Tensor) -> bool:
    """Tell whether the last axis of an output may hold scores of classes."""
    # A model that computes in integers may give 8-bit scores; wider integers are labels.
    kind = scores.dtype
    scored = kind.kind == "f" or (kind.kind in "iu" and kind.itemsize == 1)
    return scored and scores.ndim >= MIN_AXES and scores.shape[-1] >= MIN_CLASSES


def _automatic(
    asked: Wanted, reference: Tensors, labels: Tensor | None, detector: Detector | None
) -> Wanted:
    if detector is not None and not asked.options:
        other = labels is not None and not are_boxes(labels)
        return Wanted(MAP, {TRUTH: REFERENCE} if other else {})
    output = scored_output(asked.text(), reference)
    scores = reference[output]
    if labels is not None:
        _refuse_one_hot(scores, labels)
    if labels is not None and labels.dtype.kind == "f" and _are_targets(scores, labels):
        return Wanted("mae", asked.options)
    classes = reference[scored_output(Wanted("top1", asked.options).text(), reference)]
    labelled = labels is not None and labels.dtype.kind in "iu"
    if labels is not None and labelled:
        if has_classes(classes) and classes.ndim <= MAX_CLASS_AXES:
            if labels.shape == classes.shape[:-1]:
                return Wanted("top1", asked.options)
        else:
            for name in [asked.options[OUTPUT]] if asked.options else list(reference):
                if class_axes(reference[name], labels):
                    return Wanted(MIOU, {} if name == output else {OUTPUT: name})
    if not has_classes(classes) or classes.ndim > MAX_CLASS_AXES:
        one = _holds_one_number(reference[output])
        return Wanted("r2" if one else "cosine", asked.options)
    return Wanted(AGREEMENT, asked.options)


def _checked(
    metric: Wanted, reference: Tensors, labels: Tensor | None, detector: Detector | None
) -> Wanted:
    """Refuse a metric that these data do not fit, and settle its options.

    Raises:
        DataError: It does not fit.
    """
    name, row = metric.name, METRICS[metric.name]
    output = scored_output(metric.text(), reference)
    scores = reference[output]
    if row.class_scores and not has_classes(scores):
        raise DataError(
            f"metric {name}: no output holds class scores; {output!r} is {list(scores.shape[1:])}",
            remedy="use --metric cosine",
        )
    if name == "cosine" and _holds_one_number(scores):
        raise DataError(
            f"metric cosine: the output {output!r} is one number, and its angle is its sign",
            remedy="use --metric r2, mae or rmse",
        )
    if name == "top5" and scores.shape[-1] <= TOP5:
        raise DataError(f"metric top5: the model has only {scores.shape[-1]} classes")
    if row.truth == "classes":
        _check_classes(name, scores, labels)
    elif row.truth == "targets" and labels is not None and not _are_targets(scores, labels):
        raise DataError(
            f"metric {name}: a label has shape {list(labels.shape[1:])}, or is not finite; "
            f"the output has {list(scores.shape[1:])}",
            remedy="remove the labels; then the answers of the reference model are the labels",
        )
    if name == MIOU:
        axis = settled(output, scores, labels, metric.options)
        return metric._replace(options={**metric.options, AXIS: axis})
    if name == MAP:
        from packager.judge.detection import check_boxes

        known = None if metric.options.get(TRUTH) == REFERENCE else labels
        check_boxes(reference, known, metric.options, detector)
    if name in RATES or name == PERPLEXITY:
        return _checked_text(metric, output, scores, labels)
    return metric


def _checked_text(metric: Wanted, output: str, scores: Tensor, labels: Tensor | None) -> Wanted:
    from packager.judge.text import are_probabilities, check_next_tokens, check_tokens

    if metric.name in RATES:
        check_tokens(metric.name, output, scores, labels)
        return metric
    check_next_tokens(output, scores, labels)
    if "scores" in metric.options:
        return metric
    found = "probabilities" if are_probabilities(scores) else "logits"
    return metric._replace(options={**metric.options, "scores": found})


def _check_classes(metric: str, scores: Tensor, labels: Tensor | None) -> None:
    """Refuse labels that are not classes of these scores.

    Raises:
        DataError: There are none, they have another shape or type, or are not within the classes.
    """
    if labels is None:
        raise DataError(
            f"metric {metric}: the evaluation data have no labels",
            remedy="add an array `label`, or use --metric agreement",
        )
    if labels.dtype.kind not in "iu" or labels.shape != scores.shape[:-1]:
        raise DataError(
            f"metric {metric}: labels are {labels.dtype} of shape {list(labels.shape)}, "
            f"integers of shape {list(scores.shape[:-1])} are needed",
            remedy="give the class number of each sample, or use --metric agreement",
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= scores.shape[-1]:
        raise DataError(
            f"metric {metric}: labels go from {low} to {high}, but the model's classes go from 0 "
            f"to {scores.shape[-1] - 1}"
        )


def doubtful_labels(metric: str, reference: Tensors, labels: Tensor | None) -> str:
    """Say that the unchanged model is right less often than by chance; empty where it is not.

    Args:
        metric: What `resolve_metric` returned.
        reference: The reference's answers.
        labels: The labels, if there are any.

    Returns:
        A line for a person.
    """
    if named(metric) != "top1" or labels is None:
        return ""
    scores = reference[scored_output(metric, reference)]
    right = float(sums_of(wanted(metric), scores, scores, labels).value())
    if right * scores.shape[-1] >= 1.0:
        return ""
    return (
        f"warning: the unchanged model gives the label of {right:.1%} of the samples, which is "
        f"less than chance among {scores.shape[-1]} classes: check that the labels are the model's "
        "numbers of the classes, from 0"
    )


def _holds_one_number(tensor: Tensor) -> bool:
    return tensor.dtype.kind == "f" and tensor[:1].size == 1


def _refuse_one_hot(scores: Tensor, labels: Tensor) -> None:
    """Refuse labels that mark a class with a 1 among zeros.

    Raises:
        DataError: They do.
    """
    if not has_classes(scores) or labels.shape != scores.shape:
        return
    marks = np.asarray(labels)
    if bool(np.isin(marks, (0, 1)).all() and (marks.sum(axis=-1) == 1).all()):
        raise DataError(
            "the labels are one-hot: each marks its class with a 1 among zeros",
            remedy="give the class number of each sample, such as labels.argmax(axis=-1); if they "
            "are targets for numbers, name --metric mae",
        )


def _are_targets(scores: Tensor, labels: Tensor) -> bool:
    return labels.size == scores.size and bool(np.isfinite(labels).all())
