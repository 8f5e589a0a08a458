"""Metrics of numbers: mean absolute error, root mean square error, R2, cosine.

Rules:
- The truth is the targets, or the reference's answers where there are none.
- An element that is infinite in the reference counts as exact.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from packager.judge.sums import Options, Rows, Sums, first, in_blocks
from runtime_adapters.protocol import Tensor

MOST_COLUMNS: Final = 64
"""Outputs with more numbers per sample are vectors or images, not so many different quantities."""

_QUANTITIES_AXES: Final = 2
"""Samples and quantities."""


def mae(answers: Tensor, reference: Tensor, labels: Tensor | None, _options: Options) -> Sums:
    """Return the mean absolute error of each sample."""

    def score(ours: Tensor, theirs: Tensor, known: Tensor | None) -> Tensor:
        answer, target = _finite(ours, theirs, known)
        found: Tensor = np.abs(answer - target).mean(axis=1)
        return found

    return Sums(in_blocks(score, answers, reference, labels), first)


def rmse(answers: Tensor, reference: Tensor, labels: Tensor | None, _options: Options) -> Sums:
    """Return the mean square error of each sample; the metric is the root of their mean."""

    def score(ours: Tensor, theirs: Tensor, known: Tensor | None) -> Tensor:
        answer, target = _finite(ours, theirs, known)
        found: Tensor = ((answer - target) ** 2).mean(axis=1)
        return found

    return Sums(in_blocks(score, answers, reference, labels), lambda row: float(np.sqrt(row[0])))


def r2(answers: Tensor, reference: Tensor, labels: Tensor | None, _options: Options) -> Sums:
    """Return squares whose sums give the coefficient of determination.

    `1 - sum((y - f)^2) / sum((y - mean(y))^2)` for targets `y` and answers `f`. An output of up to
    64 numbers per sample holds so many quantities: each has a coefficient, and their mean counts,
    without weights. Any other output is one quantity. Where all targets are equal, the coefficient
    is 1 if the answers are exact, else 0.

    Source:
        S. Wright, "Correlation and causation", Journal of Agricultural Research 20 (1921), 557-585;
        scikit-learn's `r2_score` with `multioutput="uniform_average"` and `force_finite=True`.
    """
    columns = reference.shape[-1] if reference.ndim == _QUANTITIES_AXES else 1
    columns = columns if columns <= MOST_COLUMNS else 1
    _, start = _finite(answers[:1], reference[:1], None if labels is None else labels[:1])
    # Sums of squares lose digits far from 0, and equal targets must give exactly 0.
    shift = start.reshape(-1, columns)[0]

    def score(ours: Tensor, theirs: Tensor, known: Tensor | None) -> Tensor:
        answer, target = (
            part.reshape(len(part), -1, columns) for part in _finite(ours, theirs, known)
        )
        around = target - shift
        parts = ((answer - target) ** 2, around, around**2)
        return np.concatenate([part.mean(axis=1) for part in parts], axis=1)

    def metric(row: Rows) -> float:
        error, middle, square = row.reshape(3, columns)
        spread = square - middle**2
        flat = spread <= 0
        share = error / np.where(flat, 1.0, spread)
        return float(np.where(flat, error == 0, 1.0 - share).mean())

    return Sums(in_blocks(score, answers, reference, labels), metric)


def cosine(answers: Tensor, reference: Tensor, _labels: Tensor | None, _options: Options) -> Sums:
    """Return the cosine of the angle to the reference's answer; 1 if equal, 0 if only one is 0."""

    def score(ours: Tensor, theirs: Tensor, _known: Tensor | None) -> Tensor:
        answer, target = _finite(ours, theirs, None)
        norms = np.linalg.norm(answer, axis=1) * np.linalg.norm(target, axis=1)
        cosines = np.einsum("ij,ij->i", answer, target) / np.where(norms == 0, 1.0, norms)
        exact: Tensor = np.where((answer == target).all(axis=1), 1.0, cosines)
        return exact

    return Sums(in_blocks(score, answers, reference, None), first)


def _finite(
    answers: Tensor, reference: Tensor, labels: Tensor | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return answers and truth, a row per sample; 0 where the reference is infinite."""
    truth = reference if labels is None else labels.reshape(reference.shape)
    usable = np.isfinite(reference)
    ours, theirs = (
        np.where(usable, part, 0).astype(np.float64).reshape(len(part), -1)
        for part in (answers, truth)
    )
    return ours, theirs
