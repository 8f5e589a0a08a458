"""From raw samples to what a model takes: scale, mean, standard deviation, order of the axes.

Rules:
- `(raw * scale - mean) / std` in float32, channel by channel; then the axes are moved. The same
  declaration travels in the package, so that a device does the same.
- A declaration that does not fit the model is refused before any sample is read.
- The letters stand for the last axes of an array; a counting axis before them stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from packager.errors import DataError
from runtime_adapters.protocol import Tensor
from runtime_adapters.tensors import dtype_of
from wire.codec import from_toml
from wire.errors import WireFormatError
from wire.manifest import Preprocessing, TensorSpec

MAX_FILE_BYTES: Final = 256 * 1024
CHANNELS: Final = "C"
SAMPLES: Final = "N"
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})


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
            remedy="write a table per input, with source_datatype, source_layout, layout, scale, "
            "mean, std",
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
    where = f"preprocessing of {spec.name!r}"
    if "BYTES" in {how.source_datatype, spec.datatype}:
        raise DataError(f"{where}: text cannot be preprocessed")
    _check_layouts(where, spec, how)
    _check_numbers(where, spec, how)
    if spec.datatype not in _FLOATS and how.source_datatype != spec.datatype:
        raise DataError(
            f"{where}: the model takes {spec.datatype}, {how.source_datatype} would be cast",
            remedy=f'use source_datatype = "{spec.datatype}"',
        )


def raw_specs(
    specs: Iterable[TensorSpec], preprocessing: Mapping[str, Preprocessing]
) -> tuple[TensorSpec, ...]:
    """Return what raw samples must be: the model's inputs before their preprocessing."""
    return tuple(
        _raw(spec, preprocessing[spec.name]) if spec.name in preprocessing else spec
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
        DataError: The channels are not as many as `mean` and `std`, or the result is not finite.
    """
    if how is None:
        return raw
    values: Tensor = raw
    if _computes(how):
        values = raw.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # judged below
            values *= np.float32(how.scale)
            for constants, operation in ((how.mean, np.subtract), (how.std, np.divide)):
                if constants:
                    operation(values, _by_channel(constants, values, spec, how), out=values)
    with np.errstate(over="ignore"):  # float16 is narrow
        values = _ordered(values, how).astype(dtype_of(spec.datatype), order="C", copy=False)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(
            f"preprocessing of {spec.name!r} gives NaN or infinity", remedy="check scale and std"
        )
    return values


def _check_layouts(where: str, spec: TensorSpec, how: Preprocessing) -> None:
    source, layout = how.source_layout, how.layout
    if not source and not layout:
        return
    if not source or not layout:
        raise DataError(f"{where}: source_layout and layout are given together or not at all")
    for text in (source, layout):
        plain = text.isascii() and text.isalpha() and text.isupper()
        if not plain or len(set(text)) != len(text) or text[0] != SAMPLES:
            raise DataError(
                f"{where}: {text[:20]!r} is not a layout",
                remedy="write each axis as a letter, N first, such as NHWC",
            )
    if len(layout) != len(spec.shape):
        raise DataError(f"{where}: {layout} has {len(layout)} axes, the input {len(spec.shape)}")
    if set(source) == set(layout):
        return
    if set(source) | {CHANNELS} != set(layout):
        raise DataError(f"{where}: {source} and {layout} are not made of the same letters")
    if spec.shape[layout.index(CHANNELS)] not in {-1, 1}:
        raise DataError(
            f"{where}: {source} has no channels, the input has "
            f"{spec.shape[layout.index(CHANNELS)]} of them"
        )


def _check_numbers(where: str, spec: TensorSpec, how: Preprocessing) -> None:
    numbers = (how.scale, *how.mean, *how.std)
    with np.errstate(over="ignore"):
        narrow = np.array(numbers, np.float64).astype(np.float32)
    if not np.isfinite(narrow).all():
        raise DataError(f"{where}: scale, mean and std must be finite in float32")
    if narrow[0] == 0 or (narrow[1 + len(how.mean) :] <= 0).any():
        raise DataError(f"{where}: scale may not be 0, and std must be over 0")
    if _computes(how) and spec.datatype not in _FLOATS:
        raise DataError(
            f"{where}: the model takes {spec.datatype}; scale, mean and std give fractions",
            remedy="declare the layout alone",
        )
    counts = {len(numbers) for numbers in (how.mean, how.std)} - {0, 1}
    if not counts:
        return
    if CHANNELS not in how.source_layout:
        raise DataError(
            f"{where}: which axis has the {max(counts)} channels of mean and std is not said",
            remedy="give source_layout and layout, with a C for the channels",
        )
    channels = spec.shape[how.layout.index(CHANNELS)]
    if len(counts) > 1 or (channels != -1 and counts != {channels}):
        expected = f"{channels} channels" if channels != -1 else "as many channels for both"
        raise DataError(
            f"{where}: mean has {len(how.mean)} values and std {len(how.std)}, for {expected}"
        )


def _computes(how: Preprocessing) -> bool:
    return how.scale != 1.0 or bool(how.mean) or bool(how.std)


def _raw(spec: TensorSpec, how: Preprocessing) -> TensorSpec:
    shape = spec.shape
    if how.layout:
        shape = tuple(spec.shape[how.layout.index(axis)] for axis in how.source_layout)
    return TensorSpec(name=spec.name, datatype=how.source_datatype, shape=shape)


def _by_channel(
    constants: tuple[float, ...], values: Tensor, spec: TensorSpec, how: Preprocessing
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Shape one value per channel so that it meets the channels of `values`.

    Raises:
        DataError: There are not as many channels.
    """
    numbers = np.array(constants, np.float32)
    if len(constants) == 1:
        return numbers
    after = len(how.source_layout) - how.source_layout.index(CHANNELS) - 1
    channels = values.shape[values.ndim - 1 - after]
    if channels != len(constants):
        raise DataError(
            f"preprocessing of {spec.name!r}: {len(constants)} values for {channels} channels"
        )
    return numbers.reshape(-1, *(1,) * after)


def _ordered(values: Tensor, how: Preprocessing) -> Tensor:
    """Move the last axes from the raw layout to the model's, with a new axis for lone channels."""
    source, layout = how.source_layout, how.layout
    if source == layout:
        return values
    if CHANNELS in layout and CHANNELS not in source:
        values, source = values[..., np.newaxis], source + CHANNELS
    before = values.ndim - len(source)
    axes = (*range(before), *(before + source.index(axis) for axis in layout))
    return values.transpose(axes)
