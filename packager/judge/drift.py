"""How far a variant drifts from the reference over the steps of sequences. Pure.

The error of a step is the root mean square of the difference from the reference at that step, over
all sequences, divided by the root mean square of the reference over all steps; of several outputs,
states among them, the greatest counts.

Source:
    The normalised root mean square error of a forecast by its lead time, as in the verification of
    forecasts: D. S. Wilks, Statistical Methods in the Atmospheric Sciences (2011), 8.3.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from runtime_adapters.protocol import Tensor, Tensors
from wire.package.accuracy import Drift

PARTS = 10
"""Start, middle and end are each one of so many parts of a sequence."""

DIGITS = 6


def drift(answers: Tensors, reference: Tensors) -> Drift:
    """Compare what a variant answered with its own states, step by step.

    Args:
        answers: By output, shape (sequences, steps, ...).
        reference: The reference's, played likewise.

    Returns:
        The errors.
    """
    errors = np.max([_errors(answers[n], reference[n]) for n in reference], axis=0)
    sequences, steps = next(iter(reference.values())).shape[:2]
    width = max(steps // PARTS, 1)
    begin = (steps - width) // 2
    worst = int(np.argmax(errors))
    return Drift(
        sequences=sequences,
        steps=steps,
        start=_rms(errors[:width]),
        middle=_rms(errors[begin : begin + width]),
        end=_rms(errors[-width:]),
        worst=_rms(errors[worst : worst + 1]),
        worst_step=worst,
    )


def _errors(ours: Tensor, theirs: Tensor) -> NDArray[np.float64]:
    """Return the error of each step, relative to the size of the reference."""
    sequences, steps = theirs.shape[:2]
    squares, scale = np.zeros(steps), 0.0
    for mine, ideal in zip(ours, theirs, strict=True):  # a sequence at a time, for memory
        wide = np.asarray(ideal, np.float64).reshape(steps, -1)
        squares += np.mean((np.asarray(mine, np.float64).reshape(steps, -1) - wide) ** 2, axis=1)
        scale += float(np.mean(wide**2))
    found: NDArray[np.float64] = np.sqrt(squares / (scale or sequences))
    return found


def _rms(errors: NDArray[np.float64]) -> float:
    return float(f"{math.sqrt(float(np.mean(errors**2))):.{DIGITS}g}")
