"""The declared preprocessing of samples: a user's file, checked, and applied as a device does.

Rules:
- A declaration that does not fit the model is refused before any sample is read.
- It is applied by the code that a device runs; the same declaration travels in the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packager.declarations import as_data_errors, read_tables
from runtime_adapters.processing import declarations
from runtime_adapters.processing.declared import Preprocessor, raw_spec
from runtime_adapters.protocol import Tensor
from wire.manifest import Preprocessing, TensorSpec


def read_preprocessing(path: Path, specs: tuple[TensorSpec, ...]) -> dict[str, Preprocessing]:
    """Read a TOML file with one table per input, whose keys are the fields of `Preprocessing`.

    A model with one input may call its table `x`. An input without a table takes its samples as
    they are.

    Args:
        path: The file.
        specs: The model's inputs.

    Returns:
        By input name.

    Raises:
        DataError: Unreadable, an unknown input or key, or not fit for that input.
    """
    found = read_tables(path, Preprocessing, specs, side="input", short="x")
    for spec in specs:
        if spec.name in found:
            check_preprocessing(spec, found[spec.name])
    return found


def check_preprocessing(spec: TensorSpec, how: Preprocessing) -> None:
    """Refuse a declaration that cannot be applied to an input.

    Args:
        spec: The input.
        how: Its preprocessing.

    Raises:
        DataError: The first thing that is wrong.
    """
    with as_data_errors():
        declarations.check_preprocessing(spec, how)


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
