"""How the inputs and answers of the evaluation are distributed: what devices compare with. Pure.

Rules:
- An output whose sample is a row of scores has its classes and its margins; every other output, and
  every input of numbers, the tenths of its mean and of its spread.
- Low margins are those of the lowest tenth of the answers.
- What does not vary from sample to sample has no distribution.
- With fewer than `LEAST_SAMPLES` samples there is none: a tenth would be a handful.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np

from runtime_adapters.distributions import bins, values
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.distribution import (
    CLASS,
    MARGIN,
    MAX_BINS,
    MAX_DISTRIBUTIONS,
    MEAN,
    SPREAD,
    Distribution,
)

LEAST_SAMPLES: Final = 50
FEWEST_CLASSES, MOST_CLASSES = 2, 1000
TENTHS: Final = tuple(part / 10 for part in range(1, 10))
LOW: Final = TENTHS[:1]
DIGITS: Final = 6
BLOCK: Final = 256


def distributions(inputs: Tensors, outputs: Tensors) -> tuple[Distribution, ...]:
    """Describe the samples of an evaluation and a variant's answers to them.

    Args:
        inputs: As the model takes them; the first axis of each array counts the samples.
        outputs: The answers, likewise.

    Returns:
        The distributions, those of outputs first; at most `MAX_DISTRIBUTIONS`.
    """
    found = [*_each("output", outputs), *_each("input", inputs)]
    return tuple(found[:MAX_DISTRIBUTIONS])


def _each(of: Literal["input", "output"], tensors: Tensors) -> Iterator[Distribution]:
    for name, tensor in tensors.items():
        if len(tensor) < LEAST_SAMPLES or tensor.dtype.kind not in "biuf" or not tensor.size:
            continue
        blocks = _blocks(tensor)
        if of == "output" and _are_scores(tensor):
            measured = [_classes(of, name, blocks), _tenths(of, name, MARGIN, blocks, LOW)]
        else:
            measured = [_tenths(of, name, by, blocks, TENTHS) for by in (MEAN, SPREAD)]
        yield from (each for each in measured if each is not None)


def _are_scores(tensor: Tensor) -> bool:
    elements = tensor[0].size
    return (
        tensor.dtype.kind == "f"
        and FEWEST_CLASSES <= elements <= MOST_CLASSES
        and tensor.shape[-1] == elements
    )


def _blocks(tensor: Tensor) -> list[Tensor]:
    """Return the samples as rows, some at a time: the whole may be larger than the memory."""
    return [
        tensor[start : start + BLOCK].reshape(len(tensor[start : start + BLOCK]), -1)
        for start in range(0, len(tensor), BLOCK)
    ]


def _classes(
    of: Literal["input", "output"], name: str, blocks: Sequence[Tensor]
) -> Distribution | None:
    """Count the most frequent classes; None if all answers are the same."""
    known, counts = np.unique(
        np.concatenate([values(CLASS, block) for block in blocks]), return_counts=True
    )
    if len(known) == 1:
        return None
    most = np.argsort(-counts, kind="stable")[: MAX_BINS - 1]
    classes = tuple(sorted(int(known[at]) for at in most))
    return _counted(
        Distribution(of=of, tensor=name, measure=CLASS, classes=classes, counts=()), blocks
    )


def _tenths(
    of: Literal["input", "output"],
    name: str,
    measure: str,
    blocks: Sequence[Tensor],
    shares: tuple[float, ...],
) -> Distribution | None:
    """Count by quantiles; None if the values are all the same, or one is not finite."""
    found = np.concatenate([values(measure, block) for block in blocks])
    if not np.isfinite(found).all():
        return None
    edges = sorted({float(f"{edge:.{DIGITS}g}") for edge in np.quantile(found, shares)})
    edges = [edge for edge in edges if found.min() <= edge < found.max()]
    if not edges:
        return None
    return _counted(
        Distribution(of=of, tensor=name, measure=measure, edges=tuple(edges), counts=()), blocks
    )


def _counted(empty: Distribution, blocks: Sequence[Tensor]) -> Distribution:
    size = len(empty.classes) + len(empty.edges) + 1
    counts = sum(np.bincount(bins(empty, block), minlength=size) for block in blocks)
    return Distribution(
        of=empty.of,
        tensor=empty.tensor,
        measure=empty.measure,
        classes=empty.classes,
        edges=empty.edges,
        counts=tuple(np.asarray(counts).tolist()),
    )
