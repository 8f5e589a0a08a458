"""Places samples into the bins of a distribution. The packager and devices do it alike.

Rules:
- The mean and the spread are those of at most `MOST_ELEMENTS` elements, evenly taken, so that a
  large tensor costs no more than a small one.
- A value that is not a number belongs to the last bin.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime_adapters.protocol import Tensor
from wire.package.distribution import CLASS, MARGIN, MAX_BINS, MEAN, SPREAD, Distribution
from wire.package.tensors import TensorSpec

MOST_ELEMENTS: Final = 4096
TWO: Final = 2

Values = NDArray[np.float64] | NDArray[np.int64]


def is_known(distribution: Distribution) -> bool:
    """Tell whether samples can be placed into the bins of a distribution."""
    inner = distribution.classes if distribution.measure == CLASS else distribution.edges
    return (
        distribution.measure in {CLASS, MARGIN, MEAN, SPREAD}
        and len(distribution.counts) == len(inner) + 1 <= MAX_BINS
    )


def rows_of(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return a tensor of a request with one row for each sample.

    Args:
        tensor: An input or an output.
        spec: Its declaration: a first size of 1 or -1 is a batch.
    """
    return tensor.reshape(len(tensor) if spec.shape[:1] in {(1,), (-1,)} else 1, -1)


def values(measure: str, rows: Tensor) -> Values:
    """Return the value of each sample.

    Args:
        measure: Which one, as `Distribution` has it.
        rows: Numbers, shape (samples, elements); for `margin` at least two elements.

    Returns:
        Shape (samples,).
    """
    if measure == CLASS:
        return np.asarray(rows.argmax(axis=1), np.int64)
    if measure == MARGIN:
        return _margins(rows)
    some = _some(rows).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        found: Values = some.mean(axis=1) if measure == MEAN else some.std(axis=1)
    return found


def bins(distribution: Distribution, rows: Tensor) -> NDArray[np.int64]:
    """Return the bin of each sample.

    Args:
        distribution: A known one.
        rows: Numbers, shape (samples, elements).

    Returns:
        Shape (samples,).
    """
    found = values(distribution.measure, rows)
    if distribution.measure != CLASS:
        return np.searchsorted(distribution.edges, found)
    classes = np.asarray(distribution.classes, np.int64)
    order = classes.argsort()
    at = np.minimum(np.searchsorted(classes, found, sorter=order), len(classes) - 1)
    return np.where(classes[order[at]] == found, order[at], len(classes))


def _margins(rows: Tensor) -> NDArray[np.float64]:
    two = np.partition(rows, -TWO, axis=1)[:, -TWO:].astype(np.float64)
    with np.errstate(invalid="ignore"):
        margins: NDArray[np.float64] = two[:, 1] - two[:, 0]
    return margins


def _some(rows: Tensor) -> Tensor:
    return rows[:, :: _step(rows.shape[1])]


@lru_cache(maxsize=64)
def _step(elements: int) -> int:
    """Return a step that meets all channels alike: it has no factor in common with the size."""
    step = -(-elements // MOST_ELEMENTS)
    while step > 1 and math.gcd(step, elements) > 1:
        step += 1
    return max(step, 1)
