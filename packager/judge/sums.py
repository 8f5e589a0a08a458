"""Metrics that follow from sums over samples: the table of sums, and the metric of their means.

A share of right answers is a mean over samples; a root mean square, R2, a mean intersection over
union, an error rate and a perplexity are not, but each follows from a few means: of squares, of
intersections and unions, of edits and lengths, of log-likelihoods. So one table with a row for each
sample gives the metric of any choice of samples, which is what a bootstrap needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packager.samples.store import blocks
from runtime_adapters.protocol import Tensor

Options = Mapping[str, str]
Rows = NDArray[np.float64]


class Sums(NamedTuple):
    """What each sample adds to a metric."""

    table: Rows
    """Shape (samples, columns)."""

    metric: Callable[[Rows], float]
    """The metric, of the mean row of some samples."""

    weigh: Callable[[Rows], Rows] | None = None
    """How much each sample weighs in the metric, from the table; None where all weigh the same."""

    def value(self) -> float:
        """Return the metric of all samples."""
        return self.metric(self.table.mean(axis=0))

    def value_of(self, rows: NDArray[np.intp]) -> float:
        """Return the metric of some samples."""
        return self.metric(self.table[rows].mean(axis=0))

    def equal_samples(self) -> float:
        """Return how many samples of equal weight tell as much as these.

        Source:
            L. Kish, Survey Sampling (1965), section 11.7: the square of the sum of the weights over
            the sum of their squares.
        """
        if self.weigh is None:
            return float(len(self.table))
        weights = self.weigh(self.table)
        squares = float((weights**2).sum())
        return float(weights.sum()) ** 2 / squares if squares else float(len(self.table))


def first(row: Rows) -> float:
    """Return the first mean: the metric, where it is a mean over samples."""
    return float(row[0])


def share(row: Rows) -> float:
    """Return the first mean over the second, such as errors over lengths; 0 where both are 0."""
    return float(row[0] / row[1]) if row[1] else float(bool(row[0]))


def lengths(table: Rows) -> Rows:
    """Return the second column: the lengths, where a metric is errors over lengths."""
    return table[:, 1]


def in_blocks(
    score: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    answers: Tensor,
    reference: Tensor,
    labels: Tensor | None,
) -> Rows:
    """Score samples block by block, because answers may be larger than memory.

    Args:
        score: Answers, the reference's answers and labels of some samples to a number per sample,
            or to a row per sample.
        answers: Samples along the first axis.
        reference: The reference's answers to them.
        labels: Their labels.

    Returns:
        The table, one row per sample.
    """
    found = [
        np.asarray(
            score(answers[block], reference[block], None if labels is None else labels[block]),
            np.float64,
        )
        for block in blocks(reference)
    ]
    table: Rows = np.concatenate(found)
    return table.reshape(len(table), -1)
