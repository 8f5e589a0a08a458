"""The declared preprocessing, applied to samples by the code that a device runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packager.samples.declarations import as_data_errors
from runtime_adapters.processing.declared import Preprocessor, raw_spec
from runtime_adapters.protocol import Tensor
from wire.package.processing import Preprocessing
from wire.package.tensors import TensorSpec


def raw_specs(
    specs: Iterable[TensorSpec], preprocessing: Mapping[str, Preprocessing]
) -> tuple[TensorSpec, ...]:
    """Return what raw samples must be: the model's inputs before their preprocessing."""
    return tuple(
        raw_spec(spec, preprocessing[spec.name]) if spec.name in preprocessing else spec
        for spec in specs
    )


def prepare(raw: Tensor, spec: TensorSpec, how: Preprocessing | None) -> Tensor:
    """Apply a checked preprocessing to some samples.

    Args:
        raw: Samples of the declared raw type and layout, along the first axis.
        spec: The model's input.
        how: Its preprocessing; None leaves the samples as they are.

    Returns:
        What the model takes.

    Raises:
        DataError: The declaration does not fit, the channels are not as many as `mean` and `std`,
            or the result is not finite.
    """
    if how is None:
        return raw
    with as_data_errors():
        return Preprocessor(spec, how)(raw)
