"""Batches: finds the tensors that have one, counts a request's samples, and takes them one by one.

A first size of -1 in a declaration is a batch of any size. A model that was made for a batch of one
answers such a request sample by sample.

Sets of samples and golden samples count along the first axis of each array. Where a tensor has a
batch, that axis is the batch; where it has none (a scalar, a recurrent state), it stands in front
of the tensor's own axes. So the number of axes tells which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from runtime_adapters.errors import InferenceError
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import ANY, DTYPES
from runtime_adapters.texts import as_objects
from wire.package.tensors import TensorSpec


def is_batch(spec: TensorSpec) -> bool:
    """Tell whether a tensor has a batch of any size."""
    return spec.shape[:1] == (ANY,)


def sample_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of a tensor for one sample: a batch counts one."""
    return (1, *spec.shape[1:]) if is_batch(spec) else spec.shape


def ranks_of(specs: Iterable[TensorSpec]) -> dict[str, int]:
    """Return how many axes each tensor has."""
    return {spec.name: len(spec.shape) for spec in specs}


def one_sample(tensors: Mapping[str, Tensor], index: int, ranks: Mapping[str, int]) -> Tensors:
    """Return one sample of a set, in the shapes that the model declares.

    Args:
        tensors: Arrays by name; the first axis counts the samples.
        index: Which one.
        ranks: How many axes the model's tensors have, by name.

    Returns:
        A batch of one where the array has as many axes as the tensor; else the element, whose axes
        are the tensor's own. Texts of a file become objects, as sessions take them.
    """
    return {
        name: as_objects(
            tensor[index : index + 1] if tensor.ndim == ranks[name] else np.asarray(tensor[index])
        )
        for name, tensor in tensors.items()
    }


def batch_rows(inputs: Tensors, batched: Collection[str]) -> int:
    """Return how many samples a request holds.

    Args:
        inputs: The request.
        batched: Inputs that have a batch.

    Returns:
        The number; 1 where there is no batch.

    Raises:
        InferenceError: The batches differ in size.
    """
    rows = None
    for name in batched:
        size = len(inputs[name])
        if rows is not None and size != rows:
            counts = sorted({len(inputs[name]) for name in batched})
            raise InferenceError(f"the inputs are batches of different sizes: {counts} samples")
        rows = size
    return 1 if rows is None else rows


def sample_by_sample(
    run: Callable[[Tensors], Tensors],
    inputs: Tensors,
    batched: Collection[str],
    nothing: Mapping[str, Tensor],
) -> Tensors:
    """Answer a request with a model that takes one sample.

    Args:
        run: The model.
        inputs: The request; an input without a batch is the same for each sample.
        batched: Inputs that have a batch.
        nothing: The answer to no sample, by output.

    Returns:
        The answers, joined along the first axis.

    Raises:
        InferenceError: The batches differ in size, or the answers cannot be joined.
    """
    rows = batch_rows(inputs, batched)
    answers = [
        run(inputs | {name: inputs[name][row : row + 1] for name in batched}) for row in range(rows)
    ]
    for name, tensor in answers[0].items() if rows > 1 else ():
        if tensor.shape[:1] != (1,):
            raise InferenceError(
                f"output {name!r} of one sample has shape {list(tensor.shape)}, so the answers to "
                "a batch cannot be put together; send one sample with each request"
            )
    return {
        name: np.concatenate([answer[name] for answer in answers] or [empty])
        for name, empty in nothing.items()
    }


def no_answer(spec: TensorSpec) -> Tensor:
    """Return an output for no sample; a size that only an answer tells is 0."""
    return np.empty((0, *(max(size, 0) for size in spec.shape[1:])), DTYPES[spec.datatype])
