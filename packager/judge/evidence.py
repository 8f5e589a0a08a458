"""What the samples tell of how far chance may have moved a variant's figures.

The step that evaluates a variant gathers this, because it has the answers; `intervals` makes bounds
of it when the number of compared candidates is known.

Rules:
- Both models answered the same samples, so samples are drawn in pairs.
- Where each answer is right or wrong, four counts say everything (McNemar's table).
- Other metrics have the standard error of the paired bootstrap over samples, if they follow from
  sums over samples: means, roots of means, and ratios of sums.
- The bootstrap needs some hundred calls of a metric, so a user's function, and mean average
  precision, which sorts the boxes of all samples, have that of a jackknife over 20 groups instead.
- The drawn samples are the same in every build: the seed is fixed, and NumPy promises the raw
  numbers of a bit generator for all versions (NEP 19).

Source:
    B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap (1993), chapter 6; T. Hesterberg,
    "What teachers should know about the bootstrap", The American Statistician 69 (2015), 371-386,
    for the factor of few samples; P. S. Kott, "The delete-a-group jackknife", Journal of Official
    Statistics 17 (2001), 521-526.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.random import PCG64
from numpy.typing import NDArray

from packager.errors import DataError
from packager.judge.choice import scored_output
from packager.judge.comparison import (
    OwnMetric,
    Pair,
    agreeing,
    own_value,
    paired,
    restrict,
)
from packager.judge.detection_form import Detector
from packager.judge.metrics import named, retention, scores_classes
from packager.judge.sums import Sums
from packager.plan.figures import Evidence
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
    detector: Detector | None = None,
    pair: Pair | None = None,
) -> Evidence:
    """Return what the samples tell of how far chance may have moved the figures.

    Args:
        answers: As for `compare`, which has accepted them.
        reference: As for `compare`.
        labels: As for `compare`.
        metric: As for `compare`.
        indices: As for `compare`.
        function: As for `compare`.
        detector: As for `compare`.
        pair: As for `compare`.

    Returns:
        The evidence.
    """
    ideal, known = restrict(reference, labels, answers, indices)
    samples = len(next(iter(ideal.values())))
    if function is not None:
        copied = sum(tensor.nbytes for tensor in (*answers.values(), *ideal.values()))

        def own_values(rows: NDArray[np.intp]) -> tuple[float, float]:
            some = None if known is None else known[rows]
            value, best = (
                own_value(metric, function, {n: t[rows] for n, t in tensors.items()}, some)
                for tensors in (answers, ideal)
            )
            return value, best

        error, degrees = (
            _jackknife(samples, metric, own_values) if copied <= MOST_BYTES else (None, 0)
        )
        return Evidence(standard_error=error, degrees=degrees, equal_samples=samples)
    agreed = agreed_of(metric, answers, ideal)
    known_pair = pair or paired(
        answers, reference, labels, metric, indices=indices, detector=detector
    )
    return evidence_of(metric, known_pair, samples, agreed)


def agreed_of(metric: str, answers: Tensors, reference: Tensors) -> int | None:
    """Return on how many samples both top answers are the same; None where there is not just one.

    Args:
        metric: The metric.
        answers: By output name.
        reference: The reference's answers, in the same rows.
    """
    output = scored_output(metric, reference)
    if not scores_classes(metric) or reference[output].ndim != ONE_ANSWER_AXES:
        return None
    return int(agreeing(answers, reference, output).sum())


def evidence_of(metric: str, pair: Pair, samples: int, agreed: int | None) -> Evidence:
    """Return the evidence of a metric that is no user's function.

    Args:
        metric: The metric.
        pair: What the variant's metric and the reference's follow from.
        samples: How many samples there are.
        agreed: What `agreed_of` returned.

    Returns:
        The evidence.
    """
    ours, theirs, size = pair
    if not (isinstance(ours, Sums) and isinstance(theirs, Sums)):
        error, degrees = _jackknife(
            samples, metric, lambda rows: (ours.value_of(rows), theirs.value_of(rows))
        )
        return Evidence(standard_error=error, degrees=degrees, equal_samples=samples)
    if scores_classes(metric) and _is_binary(ours.table) and _is_binary(theirs.table):
        right, best = ours.table[:, 0] > 0, theirs.table[:, 0] > 0
        return Evidence(right=_counts(right, best), agreed=agreed)
    error, degrees = _bootstrap(metric, ours, theirs, size)
    return Evidence(
        standard_error=error,
        degrees=degrees,
        equal_samples=min(ours.equal_samples(), theirs.equal_samples()),
        agreed=agreed,
    )


def _is_binary(values: NDArray[np.float64]) -> bool:
    return values.shape[1] == 1 and bool(np.isin(values, (0.0, 1.0)).all())


def _counts(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    return (
        int((ours & theirs).sum()),
        int((ours & ~theirs).sum()),
        int((~ours & theirs).sum()),
        int((~ours & ~theirs).sum()),
    )


def _bootstrap(
    metric: str, ours: Sums, theirs: Sums, size: Sums | None
) -> tuple[float | None, int]:
    """Return the standard error of the retention over drawn samples, and its degrees of freedom."""
    samples = len(ours.table)
    if samples == 1:
        return None, 0
    drawn: list[float] = []
    for chosen in _draws(samples):
        weights = np.bincount(chosen.astype(np.intp), minlength=samples) / samples
        value, best = (part.metric(weights @ part.table) for part in (ours, theirs))
        magnitude = None if size is None else size.metric(weights @ size.table)
        drawn.append(retention(named(metric), value, best, magnitude=magnitude))
    error = float(np.std(drawn, ddof=1)) * (samples / (samples - 1)) ** 0.5
    return error, samples - 1


def _draws(samples: int) -> Iterator[NDArray[np.uint64]]:
    """Yield the numbers of as many samples, drawn with replacement, `RESAMPLES` times."""
    generator = PCG64(SEED)
    for _ in range(RESAMPLES):
        yield generator.random_raw(samples) % samples


def _jackknife(
    samples: int, metric: str, values: Callable[[NDArray[np.intp]], tuple[float, float]]
) -> tuple[float | None, int]:
    """Return the standard error of the retention, without one group of samples after the other.

    A metric that fails without some of the samples has none.

    Args:
        samples: How many there are.
        metric: The metric.
        values: The metric of the variant and of the reference, of some of the samples.

    Returns:
        The error and its degrees of freedom.
    """
    groups = min(GROUPS, samples)
    if groups == 1:
        return None, 0
    # A random group each: samples may lie in the order of their classes.
    order = np.argsort(PCG64(SEED).random_raw(samples), kind="stable")
    group = np.empty(samples, np.intp)
    group[order] = np.arange(samples) % groups
    found: list[float] = []
    for left_out in range(groups):
        try:
            value, best = values(np.flatnonzero(group != left_out))
        except DataError:
            return None, 0
        found.append(retention(named(metric), value, best))
    spread = float(np.var(found)) * groups
    return ((groups - 1) / groups * spread) ** 0.5, groups - 1
