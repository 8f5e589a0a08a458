"""Calibration and evaluation data: from `.npz` archives to checked arrays on disk.

An archive holds one array per model input, named as the input, whose first axis counts the samples;
and optionally `label`. A model with one input may call it `x`, and the label `y`.

Rules:
- Nothing is unpickled; the declared size is checked before anything is unpacked.
- Numbers are widened or narrowed within their kind, never from integer to float: whether pixels
  need scaling is the user's decision.
- Arrays on disk are read through memory maps, so that a step needs no copy of all of them.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from runtime_adapters.protocol import Tensors
from runtime_adapters.tensors import dtype_of
from wire.manifest import TensorSpec

MAX_DATA_BYTES: Final = 16 * 1024**3
MAX_ARRAYS: Final = 64
MIN_SAMPLES: Final = 8
"""As many golden samples are wanted."""

MAX_OVERLAP: Final = 0.01
"""Real sets hold a few doubles; more means that a set was not split."""

LABEL: Final = "label"


def read_archive(path: Path, specs: tuple[TensorSpec, ...]) -> Tensors:
    """Read and check an archive.

    Args:
        path: The `.npz` file.
        specs: The model's inputs.

    Returns:
        One array per input, samples along the first axis, and `label` where the archive has one.

    Raises:
        DataError: Not such an archive, or not data for this model.
    """
    arrays = _unpack(path)
    if len(specs) == 1 and specs[0].name not in arrays and "x" in arrays:
        arrays[specs[0].name] = arrays.pop("x")
    if LABEL not in arrays and "y" in arrays and "y" not in {spec.name for spec in specs}:
        arrays[LABEL] = arrays.pop("y")
    found: Tensors = {}
    for spec in specs:
        if spec.name not in arrays:
            raise DataError(
                f"{path.name} has no array {spec.name!r}, only {', '.join(sorted(arrays))[:200]}",
                remedy="name the arrays as the model's inputs",
            )
        found[spec.name] = _fitting(path.name, arrays[spec.name], spec)
    samples = {len(array) for array in found.values()}
    if len(samples) != 1 or min(samples) < MIN_SAMPLES:
        raise DataError(
            f"{path.name} holds {sorted(samples)} samples per input, at least {MIN_SAMPLES} "
            "and as many for each are needed"
        )
    if LABEL in arrays:
        found[LABEL] = _labels(path.name, arrays[LABEL], samples.pop())
    return found


def save_samples(directory: Path, samples: Tensors) -> None:
    """Write checked arrays, one file each, and the first sample apart.

    A process that measures memory reads the first sample alone.
    """
    for name, array in samples.items():
        np.save(_file(directory, name), array, allow_pickle=False)
        if name != LABEL:
            np.save(_file(directory, name, role="first"), array[:1], allow_pickle=False)


def load_inputs(directory: Path, specs: tuple[TensorSpec, ...], *, role: str = "all") -> Tensors:
    """Map the arrays of all inputs; `role` `first` gives the first sample alone."""
    return {
        spec.name: np.load(_file(directory, spec.name, role=role), mmap_mode="r") for spec in specs
    }


def load_labels(directory: Path) -> NDArray[np.int64] | None:
    """Return the labels, or None when the data have none."""
    path = _file(directory, LABEL)
    return np.load(path) if path.exists() else None


def overlap(samples: Tensors, others: Tensors) -> float:
    """Return the share of samples that are among the others too, by their bytes."""
    known = set(_rows(others))
    rows = _rows(samples)
    return sum(row in known for row in rows) / len(rows)


def sample(inputs: Tensors, index: int) -> Tensors:
    """Return one sample as a batch of one."""
    return {name: np.ascontiguousarray(array[index : index + 1]) for name, array in inputs.items()}


def spread(total: int, count: int) -> list[int]:
    """Return at most `count` indices, evenly spread: sets are often sorted by class."""
    count = min(total, count)
    return [i * total // count for i in range(count)]


def _rows(inputs: Tensors) -> list[bytes]:
    names = sorted(name for name in inputs if name != LABEL)
    count = len(inputs[names[0]])
    return [b"".join(inputs[name][i].tobytes() for name in names) for i in range(count)]


def _unpack(path: Path) -> Tensors:
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if len(infos) > MAX_ARRAYS or sum(i.file_size for i in infos) > MAX_DATA_BYTES:
                raise DataError(
                    f"{path.name} is over {MAX_ARRAYS} arrays or {MAX_DATA_BYTES} bytes"
                )
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error) as exc:
        raise DataError(
            f"{path.name} is not an .npz archive of plain arrays",
            remedy="write it with numpy.savez",
        ) from exc
    except OSError as exc:
        raise DataError(f"{path.name} cannot be read: {exc.strerror or exc}") from exc


def _fitting(file: str, array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    dtype = dtype_of(spec.datatype)
    if array.dtype != dtype:
        if array.dtype.kind != dtype.kind:
            raise DataError(
                f"{file}: {spec.name!r} is {array.dtype}, the model takes {dtype}",
                remedy="store the samples as the model takes them, scaled and ordered",
            )
        array = array.astype(dtype)
    declared = spec.shape[1:]
    fits = array.ndim == len(spec.shape) and all(
        size in {-1, given} for size, given in zip(declared, array.shape[1:], strict=True)
    )
    if not fits:
        raise DataError(
            f"{file}: a sample of {spec.name!r} has shape {list(array.shape[1:])}, "
            f"the model takes {list(declared)}"
        )
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{file}: {spec.name!r} holds NaN or infinity")
    return np.ascontiguousarray(array)


def _labels(file: str, labels: NDArray[Any], samples: int) -> NDArray[Any]:
    if labels.shape != (samples,) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{file}: labels are {labels.dtype} of shape {list(labels.shape)}, "
            f"{samples} integers are needed"
        )
    return labels.astype(np.int64)


def _file(directory: Path, name: str, *, role: str = "all") -> Path:
    return directory / f"{role}.{quote(name, safe='')}.npy"
