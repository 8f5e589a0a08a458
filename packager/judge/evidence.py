"""What the samples tell of how far chance may have moved a variant's figures.

The step that evaluates a variant gathers this, because it has the answers; `intervals` makes bounds
of it when the number of compared candidates is known.

Rules:
- Both models answered the same samples, so samples are drawn in pairs.
- Where each answer is right or wrong, four counts say everything (McNemar's table).
- Other metrics have the standard error of the paired bootstrap over samples. It needs some hundred
  calls of the metric, so a user's function has that of a jackknife over 20 groups instead.
- The drawn samples are the same in every build: the seed is fixed, and NumPy promises the raw
  numbers of a bit generator for all versions (NEP 19).

Source:
    B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap (1993), chapter 6; T. Hesterberg,
    "What teachers should know about the bootstrap", The American Statistician 69 (2015), 371-386,
    for the factor of few samples; P. S. Kott, "The delete-a-group jackknife", Journal of Official
    Statistics 17 (2001), 521-526.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.random import PCG64
from numpy.typing import NDArray

from packager.errors import DataError
from packager.judge.comparison import (
    OwnMetric,
    agreeing,
    own_value,
    per_sample,
    restrict,
    scored_output,
)
from packager.judge.metrics import METRICS, retention, scores_classes
from packager.plan.figures import Evidence
from packager.samples.store import blocks
from runtime_adapters.protocol import Tensor, Tensors

SEED: Final = 20
RESAMPLES: Final = 1000
"""For a standard error 50 to 200 are enough; more cost little here."""

GROUPS: Final = 20
MOST_BYTES: Final = 512 * 1024**2
"""Answers that may be copied for a user's function; with more there is no standard error."""

ONE_ANSWER_AXES: Final = 2
"""Samples and scores."""


def evidence(
    answers: Tensors,
    reference: Tensors,
    labels: Tensor | None,
    metric: str,
    *,
    indices: Sequence[int] | None = None,
    function: OwnMetric | None = None,
) -> Evidence:
    """Return what the samples tell of how far chance may have moved the figures.

    Args:
        answers: As for `compare`, which has accepted them.
        reference: As for `compare`.
        labels: As for `compare`.
        metric: As for `compare`.
        indices: As for `compare`.
        function: As for `compare`.

    Returns:
        The evidence.
    """
    ideal, known = restrict(reference, labels, answers, indices)
    if function is not None:
        error, degrees = _jackknife(answers, ideal, known, metric, function)
        return Evidence(standard_error=error, degrees=degrees)
    agreed = None
    if scores_classes(metric) and ideal[scored_output(metric, ideal)].ndim == ONE_ANSWER_AXES:
        agreed = int(agreeing(answers, ideal).sum())
    ours = per_sample(metric, answers, ideal, known)
    theirs = per_sample(metric, ideal, ideal, known)
    if scores_classes(metric) and _is_binary(ours) and _is_binary(theirs):
        return Evidence(right=_counts(ours > 0, theirs > 0), agreed=agreed)
    error, degrees = _bootstrap(metric, ours, theirs, ideal, labelled=known is not None)
    return Evidence(standard_error=error, degrees=degrees, agreed=agreed)


def _is_binary(values: NDArray[np.float64]) -> bool:
    return bool(np.isin(values, (0.0, 1.0)).all())


def _counts(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    return (
        int((ours & theirs).sum()),
        int((ours & ~theirs).sum()),
        int((~ours & theirs).sum()),
        int((~ours & ~theirs).sum()),
    )


def _bootstrap(
    metric: str,
    ours: NDArray[np.float64],
    theirs: NDArray[np.float64],
    ideal: Tensors,
    *,
    labelled: bool,
) -> tuple[float | None, int]:
    """Return the standard error of the retention over drawn samples, and its degrees of freedom."""
    samples = len(ours)
    if samples == 1:
        return None, 0
    columns = [ours, theirs]
    if not labelled and not METRICS[metric].larger_is_better:
        columns += _sizes(ideal[scored_output(metric, ideal)])
    table = np.stack(columns, axis=1)
    drawn: list[float] = []
    for chosen in _draws(samples):
        value, best, *size = table[chosen].mean(axis=0)
        magnitude = float(size[0] / (size[1] or 1.0)) if size else None
        drawn.append(retention(metric, float(value), float(best), magnitude=magnitude))
    error = float(np.std(drawn, ddof=1)) * (samples / (samples - 1)) ** 0.5
    return error, samples - 1


def _draws(samples: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the numbers of as many samples, drawn with replacement, `RESAMPLES` times."""
    generator = PCG64(SEED)
    for _ in range(RESAMPLES):
        yield generator.random_raw(samples) % samples


def _sizes(tensor: Tensor) -> list[NDArray[np.float64]]:
    """Return for each sample the sum of its finite elements' sizes, and their number."""
    sums, counts = np.empty(len(tensor)), np.empty(len(tensor))
    for block in blocks(tensor):
        rows = np.asarray(tensor[block], np.float64).reshape(block.stop - block.start, -1)
        usable = np.isfinite(rows)
        sums[block] = np.where(usable, np.abs(rows), 0.0).sum(axis=1)
        counts[block] = usable.sum(axis=1)
    return [sums, counts]


def _jackknife(
    answers: Tensors, ideal: Tensors, labels: Tensor | None, metric: str, function: OwnMetric
) -> tuple[float | None, int]:
    """Return the standard error of the retention, without one group of samples after the other.

    A function that fails without some of the samples has none.
    """
    samples = len(next(iter(ideal.values())))
    groups = min(GROUPS, samples)
    copied = sum(tensor.nbytes for tensor in (*answers.values(), *ideal.values()))
    if groups == 1 or copied > MOST_BYTES:
        return None, 0
    # A random group each: samples may lie in the order of their classes.
    order = np.argsort(PCG64(SEED).random_raw(samples), kind="stable")
    group = np.empty(samples, np.intp)
    group[order] = np.arange(samples) % groups
    found: list[float] = []
    for left_out in range(groups):
        rows = np.flatnonzero(group != left_out)
        known = None if labels is None else labels[rows]
        try:
            value, best = (
                own_value(metric, function, {n: t[rows] for n, t in tensors.items()}, known)
                for tensors in (answers, ideal)
            )
        except DataError:
            return None, 0
        found.append(retention(metric, value, best))
    spread = float(np.var(found)) * groups
    return ((groups - 1) / groups * spread) ** 0.5, groups - 1
