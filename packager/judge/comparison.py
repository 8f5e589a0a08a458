"""Measures how good a variant is: compares its answers with those of the float reference.

Rules:
- This module works on arrays only. Other steps make the answers, one sample at a time as on a
  device.
- If a variant answered only some samples, it is compared with the reference on those samples.
- A variant with NaN in any answer fails; a mean never contains NaN.
- Arrays are read in blocks, because answers may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.fault_text import typed_line
from packager.judge.choice import (
    MIN_AXES,
    REFERENCE,
    TRUTH,
    has_classes,
    scored_output,
)
from packager.judge.detection_form import Detector
from packager.judge.elements import (
    check_comparable,
    greatest,
    measurable,
    powers,
    sqnr_db,
    worst_errors,
)
from packager.judge.metrics import (
    MAP,
    METRICS,
    Wanted,
    named,
    retention,
    scores_classes,
    sums_of,
    wanted,
)
from packager.judge.sums import Sums
from packager.plan.figures import Comparison
from packager.samples.store import blocks
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.accuracy import Accuracy

if TYPE_CHECKING:
    from packager.judge.detection import Matches


OwnMetric = Callable[[Tensors, Tensor | None], float]


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


class Pair(NamedTuple):
    """What a metric of a variant, and that of the reference on the same samples, follow from."""

    ours: Sums | Matches
    theirs: Sums | Matches
    size: Sums | None
    """See `magnitude_of`."""


def paired(
    answers: Tensors,
    reference: Tensors,
    labels: Tensor | None,
    metric: str,
    *,
    indices: Sequence[int] | None = None,
    detector: Detector | None = None,
) -> Pair:
    """Return what a variant's metric follows from, and the reference's; as for `compare`.

    To match the boxes of a thousand pictures takes ten seconds, so it is done once for the figures
    and for their evidence.
    """
    ideal, known = restrict(reference, labels, answers, indices)
    check_comparable(answers, ideal)
    return Pair(
        measured(metric, answers, ideal, known, detector),
        measured(metric, ideal, ideal, known, detector),
        magnitude_of(metric, ideal, known),
    )


def compare(
    answers: Tensors,
    reference: Tensors,
    labels: Tensor | None,
    metric: str,
    *,
    indices: Sequence[int] | None = None,
    function: OwnMetric | None = None,
    detector: Detector | None = None,
    pair: Pair | None = None,
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
        detector: The declared postprocessing, where it gives boxes.
        pair: What `paired` returned for the same arguments, where it is known already.

    Returns:
        The comparison.

    Raises:
        DataError: Answers are missing, differ in shape, or contain NaN, or the user's function
            failed.
    """
    ideal, known = restrict(reference, labels, answers, indices)
    magnitude = None
    if function is not None:
        check_comparable(answers, ideal)
        best = own_value(metric, function, ideal, known)
        value = own_value(metric, function, answers, known)
    else:
        pair = pair or paired(
            answers, reference, labels, metric, indices=indices, detector=detector
        )
        best, value = pair.theirs.value(), pair.ours.value()
        magnitude = None if pair.size is None else pair.size.value()
    errors = worst_errors(answers, ideal)
    accuracy = Accuracy(
        metric=named(metric),
        value=value,
        reference=best,
        retention=retention(named(metric), value, best, magnitude=magnitude),
        agreement=_agreement(metric, answers, ideal),
        sqnr_db=sqnr_db(powers(answers, ideal)),
        worst_error=max(errors[name] for name in measurable(ideal)),
        samples=len(next(iter(ideal.values()))),
    )
    return of_samples(Comparison(accuracy=accuracy, worst_errors=errors), errors, ideal)


def of_samples(found: Comparison, errors: dict[str, float], ideal: Tensors) -> Comparison:
    """Return a comparison with what the tolerances of golden samples follow from.

    Args:
        found: The comparison.
        errors: What `worst_errors` returned for single samples.
        ideal: The reference's answers to them.

    Returns:
        The comparison.
    """
    return msgspec.structs.replace(
        found,
        worst_errors=errors,
        greatest={name: greatest(tensor) for name, tensor in ideal.items()},
        integers=tuple(name for name, tensor in ideal.items() if tensor.dtype.kind in "iu"),
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


def measured(
    metric: str,
    answers: Tensors,
    reference: Tensors,
    labels: Tensor | None,
    detector: Detector | None = None,
) -> Sums | Matches:
    """Return what a metric that is no user's function is computed from.

    Args:
        metric: What `resolve_metric` returned.
        answers: By output name.
        reference: The reference's answers, in the same rows.
        labels: The labels in the same rows, if there are any.
        detector: The declared postprocessing, where it gives boxes.

    Returns:
        What gives the value.
    """
    asked = wanted(metric)
    used = labels if asked.options.get(TRUTH) != REFERENCE else None
    if asked.name == MAP and detector is not None:
        from packager.judge.detection import matches

        return matches(answers, reference, used, asked.options, detector)
    return sums(asked, answers, reference, used)


def sums(metric: Wanted, answers: Tensors, reference: Tensors, labels: Tensor | None) -> Sums:
    """Return what each sample adds to a metric that follows from sums; see `measured`."""
    name = scored_output(metric.text(), reference)
    used = None if METRICS[metric.name].labels == "unused" else labels
    return sums_of(metric, answers[name], reference[name], used)


def magnitude_of(metric: str, reference: Tensors, labels: Tensor | None) -> Sums | None:
    """Return what gives a metric's value of answers that are all 0; None where it has no use."""
    asked = wanted(metric)
    if labels is not None or METRICS[asked.name].kept != "inverse":
        return None
    zeros = {n: np.broadcast_to(np.zeros((), t.dtype), t.shape) for n, t in reference.items()}
    return sums(asked, zeros, reference, None)


def _agreement(metric: str, answers: Tensors, reference: Tensors) -> float | None:
    """Return the share of equal top answers; None where the metric's output has no top answer."""
    scores = reference[scored_output(metric, reference)]
    row = METRICS.get(named(metric))
    numbers = row is not None and row.labels != "unused"
    classes = has_classes(scores) and scores.ndim == MIN_AXES  # with more, they may be boxes
    if not scores_classes(metric) and (numbers or not classes):
        return None
    return float(np.mean(agreeing(answers, reference, scored_output(metric, reference))))


def agreeing(answers: Tensors, reference: Tensors, output: str) -> NDArray[np.bool_]:
    """Tell for each sample whether the top answer of an output is the reference's."""
    tensor = reference[output]
    agreed = np.ones(len(tensor), np.bool_)
    for block in blocks(tensor):
        same = first_answers(answers[output][block]) == first_answers(tensor[block])
        agreed[block] = same.reshape(len(same), -1).all(axis=1)
    return agreed


def first_answers(scores: Tensor) -> NDArray[np.intp]:
    """Return the index of the greatest element along the last axis of each sample."""
    wide = scores if scores.ndim > 1 else scores[:, None]
    answers: NDArray[np.intp] = np.argmax(wide, axis=-1)
    return answers


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
        raise DataError(
            f"metric {metric} failed: {typed_line(exc)}",
            remedy="it is called with the outputs, a dict of arrays by name with the samples along "
            "axis 0, and with the labels or None, and returns one number",
        ) from exc
    if not np.isfinite(value):
        raise DataError(f"metric {metric} gives {value}, which is not a finite number")
    return value


def _locked(tensor: Tensor) -> Tensor:
    view = np.asarray(tensor).view()
    view.flags.writeable = False
    return view
