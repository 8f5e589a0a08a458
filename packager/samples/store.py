"""Stores samples on disk and gives them to a step.

A set is a directory with one `.npy` file per input (its first axis is the samples), a separate file
with the first sample of each input, and the labels if there are any.

Rules:
- Arrays are read through memory maps and written in blocks, so no step needs memory for all
  samples.
- If every input begins with a batch axis of 1 or of any size, a sample is a batch of one. Otherwise
  (a fixed batch, a scalar, a state) a sample is a whole call: its arrays have the declared shapes,
  and the axis of the samples comes before those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from packager.samples.preprocessing import prepare
from runtime_adapters.batches import one_sample
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import dtype_of
from wire.package.processing import Preprocessing
from wire.package.tensors import TensorSpec

BLOCK_BYTES: Final = 32 * 1024**2
"""Small beside a runtime, and large enough that the overhead of a block does not count."""

Unit = Literal["samples", "calls"]


def unit_of(specs: Iterable[TensorSpec]) -> Unit:
    """Tell what one sample of a model is: one row of a batch, or a whole call."""
    batched = all(spec.shape and spec.shape[0] in {-1, 1} for spec in specs)
    return "samples" if batched else "calls"


def sample_shape(spec: TensorSpec, unit: Unit) -> tuple[int, ...]:
    """Return the shape of one sample of an input, as a set holds it."""
    return spec.shape[1:] if unit == "samples" else spec.shape


def blocks(array: Tensor, *, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Cut the first axis into slices of bounded size.

    Args:
        array: Samples along the first axis.
        block_bytes: Size of a block, unless a single sample is larger.

    Yields:
        The slices, in order.
    """
    row_bytes = max(1, math.prod(array.shape[1:]) * array.itemsize)
    rows = max(1, block_bytes // row_bytes)
    for start in range(0, len(array), rows):
        yield slice(start, min(start + rows, len(array)))


def save_samples(
    directory: Path,
    inputs: Tensors,
    labels: Tensor | None,
    specs: Iterable[TensorSpec],
    *,
    preprocessing: Mapping[str, Preprocessing] | None = None,
    indices: NDArray[np.intp] | None = None,
) -> None:
    """Prepare samples for the model and write them.

    Args:
        directory: The directory to write to, which exists.
        inputs: Raw arrays by input, as a reader returned them.
        labels: Their labels.
        specs: The model's inputs.
        preprocessing: The preprocessing that makes raw samples fit, by input.
        indices: Which samples, in that order; None for all.

    Raises:
        DataError: A prepared sample has NaN or infinity.
    """
    how = preprocessing or {}
    for spec in specs:
        raw = inputs[spec.name]
        chosen = np.arange(len(raw)) if indices is None else indices
        first = prepare(raw[chosen[:1]], spec, how.get(spec.name))
        target = np.lib.format.open_memmap(
            _file(directory, spec.name),
            mode="w+",
            dtype=first.dtype if spec.datatype == "BYTES" else dtype_of(spec.datatype),
            shape=(len(chosen), *first.shape[1:]),
        )
        for block in blocks(target):
            target[block] = prepare(raw[chosen[block]], spec, how.get(spec.name))
        target.flush()
        np.save(_file(directory, spec.name, role="first"), first, allow_pickle=False)
    if labels is not None:
        kept = labels if indices is None else labels[indices]
        np.save(_labels_file(directory), kept, allow_pickle=False)


def load_inputs(directory: Path, specs: Iterable[TensorSpec], *, role: str = "all") -> Tensors:
    """Map the arrays of all inputs; `role` `first` gives the first sample alone."""
    return {
        spec.name: np.load(_file(directory, spec.name, role=role), mmap_mode="r") for spec in specs
    }


def load_labels(directory: Path) -> NDArray[Any] | None:
    """Map the labels; None when the samples have none."""
    path = _labels_file(directory)
    return np.load(path, mmap_mode="r") if path.exists() else None


def sample(tensors: Tensors, index: int, ranks: Mapping[str, int]) -> Tensors:
    """Return one sample as a session takes it, in memory.

    Args:
        tensors: Arrays by name, as a set holds them.
        index: Which sample.
        ranks: How many axes the model's tensors have, by name.

    Returns:
        Each a batch of one, or a whole call's tensor.
    """
    return {name: np.array(a, order="C") for name, a in one_sample(tensors, index, ranks).items()}


def has_batch(spec: TensorSpec, unit: Unit) -> bool:
    """Tell whether the answer to one sample is a batch of one in this output."""
    return unit == "samples" and spec.shape[:1] in {(1,), (-1,)}


def joined(answers: Sequence[Tensor]) -> Tensor:
    """Put answers side by side that are only compared with others of the same model."""
    first = answers[0]
    return np.concatenate(answers) if first.shape[:1] == (1,) else np.stack(answers)


def stacked(answers: Sequence[Tensor], spec: TensorSpec, unit: Unit) -> Tensor:
    """Put the answers to single samples side by side, as a set of answers holds them."""
    return np.concatenate(answers) if has_batch(spec, unit) else np.stack(answers)


def spread(total: int, count: int) -> list[int]:
    """Return at most `count` indices, evenly spread: sets are often sorted by class."""
    count = min(total, count)
    return [i * total // count for i in range(count)]


def _file(directory: Path, name: str, *, role: str = "all") -> Path:
    return directory / f"{role}.{quote(name, safe='')}.npy"


def _labels_file(directory: Path) -> Path:
    return directory / "labels.npy"
