"""Measures how good a variant is: compares its answers with those of the float reference.

Rules:
- This module works on arrays only. Other steps make the answers, one sample at a time as on a
  device.
- If a variant answered only some samples, it is compared with the reference on those samples.
- A variant with NaN in any answer fails; a mean never contains NaN.
- Arrays are read in blocks, because answers may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.fault_text import typed_line
from packager.judge.metrics import AUTO, METRICS, TOP5, is_own, retention, scores_classes
from packager.plan.figures import Comparison
from packager.samples.store import blocks
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.manifest import Accuracy

MIN_CLASSES: Final = 2
MIN_AXES: Final = 2
"""Samples and scores."""

MAX_CLASS_AXES: Final = 3
"""Samples, places in a sequence, scores. With more axes, the last one is a place in an image,
unless the user names a metric."""

OwnMetric = Callable[[Tensors, Tensor | None], float]


def resolve_metric(wanted: str, reference: Tensors, labels: Tensor | None) -> str:
    """Decide which metric is used.

    Args:
        wanted: A metric's name. `auto` means `mae` if the labels are targets, `top1` if they are
            classes, `agreement` if there are class scores without labels, else `cosine`. An image
            does not count as class scores.
        reference: The reference's answers, samples along the first axis.
        labels: The labels, if there are any.

    Returns:
        The name of the metric.

    Raises:
        DataError: The metric cannot be computed from these data.
    """
    if is_own(wanted):
        return wanted
    name = _automatic(reference, labels) if wanted == AUTO else wanted
    metric = METRICS.get(name)
    if metric is None:
        raise DataError(
            f"there is no metric {name[:80]!r}",
            remedy=f"use {', '.join(METRICS)}, or module:callable",
        )
    output = scored_output(name, reference)
    scores = reference[output]
    if metric.class_scores and not _has_classes(scores):
        raise DataError(
            f"metric {name}: no output holds class scores; {output!r} is {list(scores.shape[1:])}",
            remedy="use --metric cosine",
        )
    if name == "top5" and scores.shape[-1] <= TOP5:
        raise DataError(f"metric top5: the model has only {scores.shape[-1]} classes")
    if metric.labels == "needed":
        _check_classes(name, scores, labels)
    elif metric.labels == "used" and labels is not None and not _are_targets(scores, labels):
        raise DataError(
            f"metric {name}: a label has shape {list(labels.shape[1:])}, or is not finite; "
            f"the output has {list(scores.shape[1:])}",
            remedy="remove the labels; then the answers of the reference model are the labels",
        )
    return name


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
    scores = reference[output]
    kind = "there are no labels"
    if labels is not None:
        kind = f"the labels are {labels.dtype} of shape {list(labels.shape[1:])} for each sample"
    unused = "" if labels is None else ", so they are not used"
    match metric:
        case "mae":
            return f"{kind}, which are targets for the output {output!r}"
        case "top1":
            return f"{kind}, and the output {output!r} scores {scores.shape[-1]} classes"
        case "agreement":
            missing = kind if labels is None else f"{kind}, which name no classes{unused}"
            return f"{missing}; the output {output!r} scores {scores.shape[-1]} classes"
        case _:
            shape = list(scores.shape[1:])
            return f"the output {output!r} of shape {shape} scores no classes; {kind}{unused}"


def scored_output(metric: str, reference: Tensors) -> str:
    """Return the output that a metric reads.

    Args:
        metric: Its name.
        reference: The reference's answers.

    Returns:
        The first output with class scores if the metric needs those, else the first output.
    """
    if scores_classes(metric):
        for name, tensor in reference.items():
            if _has_classes(tensor):
                return name
    return next(iter(reference))


def check_answers(name: str, answers: Tensor) -> None:
    """Refuse a reference with which no variant can be compared.

    Args:
        name: The output.
        answers: The reference's answers, samples along the first axis.

    Raises:
        DataError: The answers are text, or contain NaN.
    """
    if answers.dtype.kind not in "biuf":
        raise DataError(
            f"output {name!r} is {answers.dtype}, which cannot be compared",
            remedy="leave it out of the model's outputs",
        )
    if answers.dtype.kind != "f":
        return
    broken = sum(
        int(np.isnan(answers[block]).reshape(block.stop - block.start, -1).any(axis=1).sum())
        for block in blocks(answers)
    )
    if broken:
        raise DataError(
            f"output {name!r} of the original model is NaN for {broken} of {len(answers)} "
            "evaluation samples",
            remedy="check how the samples are scaled, or the model",
        )


def compare(
    answers: Tensors,
    reference: Tensors,
    labels: Tensor | None,
    metric: str,
    *,
    indices: Sequence[int] | None = None,
    function: OwnMetric | None = None,
) -> Comparison:
    """Compare a variant's answers with the reference's.

    Args:
        answers: By output name, samples along the first axis.
        reference: The same outputs of the reference, for all samples.
        labels: The labels of all samples, if there are any.
        metric: What `resolve_metric` returned.
        indices: The samples that the variant got, in that order; it may have answered only the
            first ones. None when it answered all.
        function: The user's function, if the metric is one.

    Returns:
        The comparison.

    Raises:
        DataError: Answers are missing, differ in shape, or contain NaN, or the user's function
            failed.
    """
    ideal, known = restrict(reference, labels, answers, indices)
    _check_comparable(answers, ideal)
    magnitude = None
    if function is not None:
        best = own_value(metric, function, ideal, known)
        value = own_value(metric, function, answers, known)
    else:
        best = float(np.mean(per_sample(metric, ideal, ideal, known)))
        value = float(np.mean(per_sample(metric, answers, ideal, known)))
        if known is None and not METRICS[metric].larger_is_better:
            magnitude = _magnitude(ideal[scored_output(metric, ideal)])
    errors = {name: _worst_error(answers[name], ideal[name]) for name in ideal}
    accuracy = Accuracy(
        metric=metric,
        value=value,
        reference=best,
        retention=retention(metric, value, best, magnitude=magnitude),
        agreement=float(np.mean(agreeing(answers, ideal))),
        sqnr_db=_sqnr_db(answers, ideal),
        worst_error=max(errors.values()),
        samples=len(next(iter(ideal.values()))),
    )
    integers = tuple(name for name, tensor in ideal.items() if tensor.dtype.kind in "iu")
    return Comparison(
        accuracy=accuracy,
        worst_errors=errors,
        greatest={name: _greatest(tensor) for name, tensor in ideal.items()},
        integers=integers,
    )


def restrict(
    reference: Tensors, labels: Tensor | None, answers: Tensors, indices: Sequence[int] | None
) -> tuple[Tensors, Tensor | None]:
    """Return the reference's answers and the labels of the samples that a variant answered.

    Args:
        reference: By output name, for all samples.
        labels: The labels of all samples, if there are any.
        answers: The variant's answers.
        indices: The samples that it got, in order; None for all.

    Returns:
        The reference and the labels, in the rows of the answers.

    Raises:
        DataError: There are no answers, or more than samples.
    """
    if indices is None:
        return reference, labels
    rows = len(next(iter(answers.values()), ()))
    if not 0 < rows <= len(indices):
        raise DataError(f"{rows} of {len(indices)} samples were answered")
    asked = np.asarray(indices[:rows])
    taken = {name: tensor[asked] for name, tensor in reference.items()}
    return taken, None if labels is None else labels[asked]


def per_sample(
    metric: str, answers: Tensors, reference: Tensors, labels: Tensor | None
) -> NDArray[np.float64]:
    """Return a metric's number for each sample; for `top1`, whether the answer is correct.

    Args:
        metric: A name in `METRICS`.
        answers: By output name.
        reference: The reference's answers, in the same rows.
        labels: The labels in the same rows, if there are any.

    Returns:
        One number per sample.
    """
    name, row = scored_output(metric, reference), METRICS[metric]
    found = np.empty(len(reference[name]), np.float64)
    for block in blocks(reference[name]):
        known = None if labels is None else labels[block]
        found[block] = row.score(answers[name][block], reference[name][block], known)
    return found


def agreeing(answers: Tensors, reference: Tensors) -> NDArray[np.bool_]:
    """Tell for each sample whether the top answer is the reference's, in every output."""
    agreed = np.ones(len(next(iter(reference.values()))), np.bool_)
    for name, tensor in reference.items():
        for block in blocks(tensor):
            same = first_answers(answers[name][block]) == first_answers(tensor[block])
            agreed[block] &= same.reshape(len(same), -1).all(axis=1)
    return agreed


def first_answers(scores: Tensor) -> NDArray[np.intp]:
    """Return the index of the greatest element along the last axis of each sample."""
    wide = scores if scores.ndim > 1 else scores[:, None]
    answers: NDArray[np.intp] = np.argmax(wide, axis=-1)
    return answers


def _automatic(reference: Tensors, labels: Tensor | None) -> str:
    scores = next(iter(reference.values()))
    if labels is not None and labels.dtype.kind == "f" and _are_targets(scores, labels):
        return "mae"
    classes = reference[scored_output("top1", reference)]
    if not _has_classes(classes) or classes.ndim > MAX_CLASS_AXES:
        return "cosine"
    labelled = labels is not None and labels.dtype.kind in "iu"
    return "top1" if labelled and _shape(labels) == classes.shape[:-1] else "agreement"


def _shape(labels: Tensor | None) -> tuple[int, ...]:
    return () if labels is None else labels.shape


def _has_classes(scores: Tensor) -> bool:
    # A model that computes in integers may give 8-bit scores; wider integers are labels.
    kind = scores.dtype
    scored = kind.kind == "f" or (kind.kind in "iu" and kind.itemsize == 1)
    return scored and scores.ndim >= MIN_AXES and scores.shape[-1] >= MIN_CLASSES


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


def _are_targets(scores: Tensor, labels: Tensor) -> bool:
    return labels.size == scores.size and bool(np.isfinite(labels).all())


def _check_comparable(answers: Tensors, reference: Tensors) -> None:
    """Refuse answers that cannot be compared.

    Raises:
        DataError: They differ in shape, or contain NaN or infinity.
    """
    for name, tensor in reference.items():
        if name not in answers or answers[name].shape != tensor.shape:
            raise DataError(f"output {name!r} has another shape than the reference's")
        for block in blocks(tensor):
            ours = answers[name][block]
            if np.isnan(ours).any() or not np.isfinite(ours[np.isfinite(tensor[block])]).all():
                raise DataError(
                    f"output {name!r} holds NaN or infinity where the reference does not"
                )


def own_value(metric: str, function: OwnMetric, answers: Tensors, labels: Tensor | None) -> float:
    """Call a user's function; it cannot change its arguments.

    Args:
        metric: Its name.
        function: The function.
        answers: By output name.
        labels: The labels in the same rows, if there are any.

    Returns:
        What it returned.

    Raises:
        DataError: It fails, or does not return a finite number.
    """
    try:
        known = None if labels is None else _locked(labels)
        found = function({name: _locked(tensor) for name, tensor in answers.items()}, known)
        value = float(found)
    except (Exception, SystemExit) as exc:
        raise DataError(f"metric {metric} failed: {typed_line(exc)}") from exc
    if not np.isfinite(value):
        raise DataError(f"metric {metric} gives {value}, which is not a finite number")
    return value


def _locked(tensor: Tensor) -> Tensor:
    view = np.asarray(tensor).view()
    view.flags.writeable = False
    return view


def _pairs(ours: Tensor, theirs: Tensor) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the elements that are finite in the reference, as float64."""
    for block in blocks(theirs):
        usable = np.isfinite(theirs[block])
        yield ours[block][usable].astype(np.float64), theirs[block][usable].astype(np.float64)


def _magnitude(tensor: Tensor) -> float:
    pairs = [theirs for theirs, _ in _pairs(tensor, tensor)]
    count = sum(theirs.size for theirs in pairs)
    return float(sum(np.abs(theirs).sum() for theirs in pairs)) / max(count, 1)


def _greatest(tensor: Tensor) -> float:
    """Return the greatest absolute value of any finite element."""
    found = 0.0
    for block in blocks(tensor):
        rows = np.abs(np.asarray(tensor[block], np.float64))
        found = max(found, float(np.max(rows, initial=0.0, where=np.isfinite(rows))))
    return found


def _worst_error(ours: Tensor, theirs: Tensor) -> float:
    return max(
        (float(np.abs(a - b).max(initial=0.0)) for a, b in _pairs(ours, theirs)), default=0.0
    )


def _sqnr_db(answers: Tensors, reference: Tensors) -> float | None:
    signal = noise = 0.0
    for name, tensor in reference.items():
        for ours, theirs in _pairs(answers[name], tensor):
            signal += float(np.sum(theirs**2))
            noise += float(np.sum((ours - theirs) ** 2))
    if noise == 0.0 or signal == 0.0:
        return None
    return float(10.0 * np.log10(signal / noise))
