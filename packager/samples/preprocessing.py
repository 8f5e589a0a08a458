"""The declared preprocessing of samples: a user's file, checked, and applied as a device does.

Rules:
- A declaration that does not fit the model is refused before any sample is read.
- It is applied by the code that a device runs; the same declaration travels in the package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from packager.errors import DataError
from runtime_adapters.errors import AdapterError
from runtime_adapters.processing import declarations
from runtime_adapters.processing.declared import Preprocessor, raw_spec
from runtime_adapters.protocol import Tensor
from wire.codec import from_toml
from wire.errors import WireFormatError
from wire.manifest import Preprocessing, TensorSpec

MAX_FILE_BYTES: Final = 256 * 1024


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
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path.name} is over {MAX_FILE_BYTES} bytes")
        found = from_toml(path.read_bytes(), dict[str, Preprocessing])
    except OSError as exc:
        raise DataError(f"{path.name} cannot be read: {exc.strerror or exc}") from exc
    except WireFormatError as exc:
        text = " ".join(str(exc).split())[:200]
        raise DataError(
            f"{path.name} is not a preprocessing file: {text}",
            remedy="write a table per input, with source_datatype, source_layout, layout, resize, "
            "scale, mean, std, quantization",
        ) from exc
    by_name = {spec.name: spec for spec in specs}
    if len(specs) == 1 and "x" in found and specs[0].name not in found:
        found = {specs[0].name if name == "x" else name: how for name, how in found.items()}
    for name, how in found.items():
        if name not in by_name:
            raise DataError(
                f"{path.name}: the model has no input {name[:80]!r}, "
                f"only {', '.join(sorted(by_name))[:200]}"
            )
        check_preprocessing(by_name[name], how)
    return found


def check_preprocessing(spec: TensorSpec, how: Preprocessing) -> None:
    """Refuse a declaration that cannot be applied to an input.

    Args:
        spec: The input.
        how: Its preprocessing.

    Raises:
        DataError: The first thing that is wrong.
    """
    with _ours():
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
    with _ours():
        return Preprocessor(spec, how)(raw)


@contextlib.contextmanager
def _ours() -> Iterator[None]:
    """Let what a device would say of its declaration or request out as a fault of the data.

    Raises:
        DataError: Instead of the device's error.
    """
    try:
        yield
    except AdapterError as exc:
        raise DataError(exc.message, remedy=exc.remedy) from exc
