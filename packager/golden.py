"""Which samples a device must reproduce before it serves, and how closely.

Rules:
- Samples come from the evaluation data, never from what a quantizer saw.
- Near decision boundaries, where a broken variant shows first; yet not so near that another
  processor's rounding decides: a variant's own margin must be over its guard.
- Every kept variant answers every golden sample as the reference does.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.figures import ABSOLUTE_FLOOR
from packager.validate import agreeing
from runtime_adapters.protocol import Tensor, Tensors

SAMPLES: Final = 8
GUARD: Final = 0.1
"""Share of a variant's worst error that its margin must exceed."""


def pick(reference: Tensors, answers: list[Tensors], *, classes: bool) -> list[int]:
    """Choose the golden samples.

    Args:
        reference: The reference's answers, samples along the first axis.
        answers: Those of each kept variant.
        classes: Whether the last axis of the outputs holds scores of classes.

    Returns:
        Indices, ascending.

    Raises:
        DataError: There is no sample on which all variants agree with the reference.
    """
    total = len(next(iter(reference.values())))
    if not classes:
        return sorted({i * total // SAMPLES for i in range(SAMPLES)})
    agreed = np.logical_and.reduce([agreeing(variant, reference) for variant in answers])
    name, scores = next(iter(reference.items()))
    safe = agreed.copy()
    for variant in answers:
        error = np.abs(variant[name].astype(np.float64) - scores).max()
        safe &= margins(variant[name]) > GUARD * error + ABSOLUTE_FLOOR
    chosen = _nearest(margins(scores), safe)
    if len(chosen) < SAMPLES:
        rest = agreed & ~safe
        farthest = np.flatnonzero(rest)[np.argsort(-margins(scores)[rest], kind="stable")]
        chosen += [int(i) for i in farthest[: SAMPLES - len(chosen)]]
    if not chosen:
        raise DataError("there is no evaluation sample on which all variants agree")
    return sorted(chosen)


def margins(scores: Tensor) -> NDArray[np.float64]:
    """Return for each sample the smallest gap between its two greatest scores."""
    top = np.sort(scores.astype(np.float64), axis=-1)
    gaps = top[..., -1] - top[..., -2]
    smallest: NDArray[np.float64] = gaps.reshape(len(scores), -1).min(axis=1)
    return smallest


def _nearest(gaps: NDArray[np.float64], usable: NDArray[np.bool_]) -> list[int]:
    indices = np.flatnonzero(usable)
    order = np.argsort(gaps[indices], kind="stable")
    return [int(i) for i in indices[order][:SAMPLES]]
