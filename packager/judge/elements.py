"""How far answers are from the reference's, element by element: worst errors, noise. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.samples.store import blocks
from runtime_adapters.protocol import Tensor, Tensors


def worst_errors(answers: Tensors, reference: Tensors) -> dict[str, float]:
    """Return the greatest absolute difference of any element, by output.

    Raises:
        DataError: The answers differ in shape, or contain NaN or infinity.
    """
    check_comparable(answers, reference)
    return {name: _worst_error(answers[name], reference[name]) for name in reference}


def check_comparable(answers: Tensors, reference: Tensors) -> None:
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


def _pairs(ours: Tensor, theirs: Tensor) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the elements that are finite in the reference, as float64."""
    for block in blocks(theirs):
        usable = np.isfinite(theirs[block])
        yield ours[block][usable].astype(np.float64), theirs[block][usable].astype(np.float64)


def greatest(tensor: Tensor) -> float:
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


def measurable(reference: Tensors) -> tuple[str, ...]:
    """Return the outputs whose differences are an amount; all where there is none.

    The difference between two numbers of classes is none: class 9 is no worse than class 2.
    """
    floats = tuple(name for name, tensor in reference.items() if tensor.dtype.kind == "f")
    return floats or tuple(reference)


def powers(answers: Tensors, reference: Tensors) -> dict[str, tuple[float, float]]:
    """Return by output the sums of squares of the reference's answers and of the differences."""
    found: dict[str, tuple[float, float]] = {}
    for name in measurable(reference):
        signal = noise = 0.0
        for ours, theirs in _pairs(answers[name], reference[name]):
            signal += float(np.sum(theirs**2))
            noise += float(np.sum((ours - theirs) ** 2))
        found[name] = (signal, noise)
    return found


def sqnr_db(found: Mapping[str, tuple[float, float]]) -> float | None:
    """Return the least ratio of the two sums of any output; None where none has one.

    Outputs have scales of their own: in one sum over all, large numbers would hide the others.
    """
    ratios = [signal / noise for signal, noise in found.values() if noise > 0.0 and signal > 0.0]
    return float(10.0 * np.log10(min(ratios))) if ratios else None
