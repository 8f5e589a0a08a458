"""How good a variant is: its answers against the float reference's, on the evaluation data.

Rules:
- Pure array work: the answers are made elsewhere, one sample at a time as on a device.
- Larger is better for every metric; retention is the variant's metric over the reference's.
- NaN anywhere in a variant's answers makes it worthless, never average.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.figures import Comparison
from packager.plan import CLASS_METRICS
from runtime_adapters.protocol import Tensor, Tensors
from wire.manifest import Accuracy

MIN_CLASSES: Final = 2


def resolve_metric(wanted: str, outputs: Tensors, labels: NDArray[np.int64] | None) -> str:
    """Settle which metric is used.

    Args:
        wanted: One of `METRICS`.
        outputs: The reference's answers; the first output counts.
        labels: The right classes, if known.

    Returns:
        `top1`, `agreement` or `cosine`.

    Raises:
        DataError: The metric cannot be computed from these data.
    """
    scores = next(iter(outputs.values()))
    classes = scores.dtype.kind == "f" and scores.ndim >= 2 and scores.shape[-1] >= MIN_CLASSES  # noqa: PLR2004 - samples and scores
    labelled = labels is not None and scores.ndim == 2  # noqa: PLR2004 - samples and scores
    if wanted == "auto":
        if not classes:
            return "cosine"
        return "top1" if labelled else "agreement"
    if wanted in CLASS_METRICS and not classes:
        raise DataError(
            f"metric {wanted}: the first output, {list(scores.shape[1:])}, holds no class scores",
            remedy="use --metric cosine",
        )
    if wanted == "top1" and not labelled:
        raise DataError(
            "metric top1: the evaluation data have no usable labels",
            remedy="add an array `label`, or use --metric agreement",
        )
    return wanted


def check_answers(name: str, answers: Tensor) -> None:
    """Refuse a reference that answers NaN: nothing could be compared with it.

    Args:
        name: The output.
        answers: The reference's answers, samples along the first axis.

    Raises:
        DataError: A sample has NaN.
    """
    if answers.dtype.kind != "f":
        return
    broken = int(np.isnan(answers).reshape(len(answers), -1).any(axis=1).sum())
    if broken:
        raise DataError(
            f"output {name!r} of the unchanged model is NaN for {broken} of {len(answers)} "
            "evaluation samples",
            remedy="check how the samples are scaled, or the model",
        )


def compare(
    answers: Tensors, reference: Tensors, labels: NDArray[np.int64] | None, metric: str
) -> Comparison:
    """Compare a variant's answers with the reference's.

    Args:
        answers: By output name, samples along the first axis.
        reference: The same outputs of the reference.
        labels: The right classes; needed for `top1`.
        metric: `top1`, `agreement` or `cosine`.

    Returns:
        The comparison.

    Raises:
        DataError: The answers differ in shape, hold NaN, or the labels are missing.
    """
    for name, tensor in reference.items():
        if name not in answers or answers[name].shape != tensor.shape:
            raise DataError(f"output {name!r} has another shape than the reference's")
        if not np.isfinite(answers[name][np.isfinite(tensor)]).all():
            raise DataError(f"output {name!r} holds NaN or infinity where the reference does not")
    ours, theirs = next(iter(answers.values())), next(iter(reference.values()))
    value, ideal = _score(ours, theirs, labels, metric)
    errors = {name: _worst_error(answers[name], reference[name]) for name in reference}
    accuracy = Accuracy(
        metric=metric,
        value=value,
        reference=ideal,
        retention=value / ideal if ideal else 1.0,
        agreement=float(np.mean(agreeing(answers, reference))),
        sqnr_db=_sqnr_db(answers, reference),
        worst_error=max(errors.values()),
        samples=len(theirs),
    )
    return Comparison(accuracy=accuracy, worst_errors=errors)


def agreeing(answers: Tensors, reference: Tensors) -> NDArray[np.bool_]:
    """Tell for each sample whether the first answer is the reference's, in every output."""
    same = [
        (first_answers(answers[name]) == first_answers(tensor)).reshape(len(tensor), -1).all(axis=1)
        for name, tensor in reference.items()
    ]
    agreed: NDArray[np.bool_] = np.logical_and.reduce(same)
    return agreed


def first_answers(scores: Tensor) -> NDArray[np.intp]:
    """Return the greatest element's index along the last axis of each sample."""
    wide = scores if scores.ndim > 1 else scores[:, None]
    answers: NDArray[np.intp] = np.argmax(wide, axis=-1)
    return answers


def _score(
    ours: Tensor, theirs: Tensor, labels: NDArray[np.int64] | None, metric: str
) -> tuple[float, float]:
    if metric == "top1":
        if labels is None:
            raise DataError("metric top1: the evaluation data have no labels")
        return (
            float(np.mean(first_answers(ours) == labels)),
            float(np.mean(first_answers(theirs) == labels)),
        )
    if metric == "agreement":
        return float(np.mean(first_answers(ours) == first_answers(theirs))), 1.0
    return _cosine(ours, theirs), 1.0


def _cosine(ours: Tensor, theirs: Tensor) -> float:
    a = ours.reshape(len(ours), -1).astype(np.float64)
    b = theirs.reshape(len(theirs), -1).astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    same = np.array_equal(a, b)
    products = np.einsum("ij,ij->i", a, b)
    return 1.0 if same else float(np.mean(products / np.where(norms == 0, 1.0, norms)))


def _worst_error(ours: Tensor, theirs: Tensor) -> float:
    with np.errstate(invalid="ignore"):  # inf - inf where both are infinite
        error = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    return float(np.nanmax(np.where(np.isfinite(theirs), error, 0.0), initial=0.0))


def _sqnr_db(answers: Tensors, reference: Tensors) -> float | None:
    signal = noise = 0.0
    for name, tensor in reference.items():
        usable = np.isfinite(tensor)
        theirs = tensor[usable].astype(np.float64)
        signal += float(np.sum(theirs**2))
        noise += float(np.sum((answers[name][usable].astype(np.float64) - theirs) ** 2))
    if noise == 0.0 or signal == 0.0:
        return None
    return float(10.0 * np.log10(signal / noise))
