"""Checks the inputs and outputs of a model for compilers that need fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence

from packager.errors import StepError
from runtime_adapters.compiled import MAX_TENSOR_BYTES, MAX_TENSORS, sample_bytes
from runtime_adapters.tensors import ANY
from wire.package.tensors import TensorSpec


def check_inputs(inputs: Sequence[TensorSpec]) -> None:
    """Refuse inputs whose size is not known before the model runs.

    Args:
        inputs: The model's inputs.

    Raises:
        StepError: A size other than the batch may vary, an input is text, or over a limit.
    """
    if len(inputs) > MAX_TENSORS:
        raise StepError(
            f"the model has {len(inputs)} inputs, but at most {MAX_TENSORS} are allowed"
        )
    for spec in inputs:
        if ANY in spec.shape[1:]:
            raise StepError(
                f"input {spec.name!r} of shape {list(spec.shape)} has more variable sizes than "
                "the batch",
                remedy="export the model with fixed sizes; only the batch size may vary",
            )
        size_bytes = sample_bytes(spec)
        if size_bytes is None:
            raise StepError(f"input {spec.name!r} holds text, which compiled code cannot take")
        if size_bytes > MAX_TENSOR_BYTES:
            raise StepError(f"input {spec.name!r} is over {MAX_TENSOR_BYTES} bytes")


def check_batch_axis(name: str, shape: Sequence[int]) -> None:
    """Refuse an output whose answers to several samples cannot be put one after the other.

    Args:
        name: The output.
        shape: Its shape for one sample; the model has a batch.

    Raises:
        StepError: The shape does not begin with the batch.
    """
    if tuple(shape[:1]) != (1,):
        raise StepError(
            f"output {name!r} of one sample has shape {list(shape)}: the answers of a batch "
            "cannot be put together",
            remedy="export the model with a batch of 1, or with the batch as the first axis",
        )
