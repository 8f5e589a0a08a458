"""Reads samples from an `.npz` archive, a directory of files, or a user's function.

In all of them, the first axis of each array is the samples. A directory holds one `.npy` file for
each array, or `.npz` archives, of which each may have samples of another shape. A function takes no
arguments and yields (or returns a list of) dicts of named arrays. Each dict holds one sample or
more. ONNX Runtime's calibration readers and PyTorch's data loaders yield the same form.

Rules:
- The readers never unpickle. They check the declared size before they unpack, and stop a function
  at the limits.
- Memory does not grow with the set: the readers unpack arrays into files and map these files.
- Equal content gives equal samples from each of the three.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from packager.callables import load_callable
from packager.errors import DataError
from packager.samples.arrays import (
    MIN_SAMPLES,
    Bounds,
    Choice,
    RawSet,
    cast,
    check_labels,
    check_shape,
    choose,
)
from packager.samples.store import blocks, unit_of
from packager.samples.texts import fitting_texts
from packager.samples.yielded import collect
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import dtype_of
from wire.package.tensors import TensorSpec

MAX_ARRAYS: Final = 64
WRITE_IT: Final = "write it with numpy.savez"

DEFAULT_BOUNDS: Final = Bounds()


class SampleSource(NamedTuple):
    """Where samples come from."""

    path: Path
    """An archive, a directory, or the file that holds the function."""

    function: str = ""
    """What the user wrote to name the function, such as `module:callable`; empty for a file."""

    @property
    def name(self) -> str:
        """How messages name it."""
        return self.function or self.path.name


def read_shapes(
    source: SampleSource,
    specs: tuple[TensorSpec, ...],
    scratch: Path,
    *,
    bounds: Bounds = DEFAULT_BOUNDS,
    least: int = MIN_SAMPLES,
    named: tuple[str, ...] = (),
) -> list[RawSet]:
    """Read and check samples that may have several shapes; the arguments are those below.

    Returns:
        One set for each shape: that with the most samples first, which has the least number.

    Raises:
        DataError: As for `read_samples`.
        BuildError: As for `read_samples`.
    """
    sets = _read(source, specs, scratch, bounds, (), named)
    sets.sort(key=lambda one: -len(next(iter(one.inputs.values()))))  # stable: the first wins
    return [
        _checked(source, one, specs, scratch, bounds, (), 1 if number else least)
        for number, one in enumerate(sets)
    ]


def read_samples(
    source: SampleSource,
    specs: tuple[TensorSpec, ...],
    scratch: Path,
    *,
    bounds: Bounds = DEFAULT_BOUNDS,
    optional: tuple[TensorSpec, ...] = (),
    least: int = MIN_SAMPLES,
    named: tuple[str, ...] = (),
) -> RawSet:
    """Read and check samples.

    Args:
        source: Where the samples come from.
        specs: What raw samples must be: `packager.samples.preprocessing.raw_specs`.
        scratch: An empty folder for files, which the arrays need as long as they are used.
        bounds: How much is read at most.
        optional: Inputs that may be missing.
        least: How many samples there must be.
        named: Labels with a name of their own, which may be missing, too.

    Returns:
        The samples, all of one shape.

    Raises:
        DataError: Unreadable, too much, too few, or not samples for this model.
        BuildError: The function cannot be imported.
    """
    first, *others = _read(source, specs, scratch, bounds, optional, named)
    if others:
        shapes = [[list(a.shape[1:]) for a in one.inputs.values()] for one in (first, others[0])]
        raise DataError(
            f"{source.name} has samples of several shapes, such as {shapes[0]} and {shapes[1]}",
            remedy="give sequences one number of steps, and their inputs one shape",
        )
    return _checked(source, first, specs, scratch, bounds, optional, least)


def _read(
    source: SampleSource,
    specs: tuple[TensorSpec, ...],
    scratch: Path,
    bounds: Bounds,
    optional: tuple[TensorSpec, ...],
    named: tuple[str, ...],
) -> list[RawSet]:
    if source.function:
        function = load_callable(source.path, source.function)
        return collect(source.name, function, specs, scratch, bounds, optional, named)
    if not source.path.is_dir():
        return [_from_archive(source, specs, scratch, bounds, optional, named)]
    archives = sorted(source.path.glob("*.npz"))
    if archives and not any(source.path.glob("*.npy")):

        def load() -> Iterator[Tensors]:
            return _archived(archives, specs, bounds, optional, named)

        return collect(source.name, load, specs, scratch, bounds, optional, named)
    return [_from_directory(source, specs, bounds, optional, named)]


def _archived(
    paths: Iterable[Path],
    specs: tuple[TensorSpec, ...],
    bounds: Bounds,
    optional: tuple[TensorSpec, ...],
    named: tuple[str, ...],
) -> Iterator[Tensors]:
    """Yield the arrays of one archive after the other.

    Raises:
        DataError: One is no archive of arrays, or too large.
    """
    for path in paths:
        try:
            with zipfile.ZipFile(path) as archive:
                _members(path.name, archive, specs, bounds, optional, named)
            with np.load(path, allow_pickle=False) as arrays:
                yield dict(arrays)
        except DataError:
            raise
        except OSError as exc:
            raise DataError(f"{path.name} cannot be read: {exc.strerror or exc}") from exc
        except Exception as exc:  # a broken archive passes on whatever its codec raises
            raise DataError(_no_archive(path.name), remedy=WRITE_IT) from exc


def _checked(
    source: SampleSource,
    found: RawSet,
    specs: tuple[TensorSpec, ...],
    scratch: Path,
    bounds: Bounds,
    optional: tuple[TensorSpec, ...],
    least: int,
) -> RawSet:
    unit = unit_of(specs)
    for spec in (*specs, *(spec for spec in optional if spec.name in found.inputs)):
        array = found.inputs[spec.name]
        check_shape(source.name, array, spec, unit)
        found.inputs[spec.name] = _fitting(source.name, array, spec, scratch, bounds)
    lengths = {len(array) for array in found.inputs.values()}
    if len(lengths) != 1 or min(lengths) < least:
        raise DataError(
            f"{source.name} holds {' and '.join(map(str, sorted(lengths)))} samples; every input "
            f"needs the same number, at least {least}"
        )
    samples = lengths.pop()
    if samples > bounds.max_samples:
        raise DataError(f"{source.name} holds {samples} samples, over {bounds.max_samples}")
    for labels in (found.labels, *found.named.values()):
        if labels is not None:
            check_labels(source.name, labels, samples)
    return found


def _from_directory(
    source: SampleSource,
    specs: tuple[TensorSpec, ...],
    bounds: Bounds,
    optional: tuple[TensorSpec, ...],
    named: tuple[str, ...],
) -> RawSet:
    paths = {unquote(path.name.removesuffix(".npy")): path for path in source.path.glob("*.npy")}
    choice = choose(source.name, paths, specs, optional, named)
    used = [paths[name] for name in choice.used]
    if sum(path.stat().st_size for path in used) > bounds.max_bytes:
        raise DataError(f"{source.name} is over {bounds.max_bytes} bytes")
    return _opened(source.name, choice, lambda name: _mapped(source.name, paths[name]))


def _from_archive(
    source: SampleSource,
    specs: tuple[TensorSpec, ...],
    scratch: Path,
    bounds: Bounds,
    optional: tuple[TensorSpec, ...],
    named: tuple[str, ...],
) -> RawSet:
    """Unpack what is used, array by array.

    Raises:
        DataError: Not an archive of arrays, or too large.
    """
    try:
        with zipfile.ZipFile(source.path) as archive:
            choice, members = _members(source.name, archive, specs, bounds, optional, named)
            for number, member in enumerate(members):
                with (
                    archive.open(member) as packed,
                    (scratch / f"{number}.npy").open("wb") as file,
                ):
                    shutil.copyfileobj(packed, file, 1024**2)
    except DataError:
        raise
    except OSError as exc:
        raise DataError(f"{source.name} cannot be read: {exc.strerror or exc}") from exc
    except Exception as exc:  # a broken archive passes on whatever its codec raises
        raise DataError(_no_archive(source.name), remedy=WRITE_IT) from exc
    numbers = {name: number for number, name in enumerate(choice.used)}
    return _opened(
        source.name, choice, lambda name: _mapped(source.name, scratch / f"{numbers[name]}.npy")
    )


def _no_archive(name: str) -> str:
    return f"{name} is not an .npz archive of plain arrays"


def _members(
    source: str,
    archive: zipfile.ZipFile,
    specs: tuple[TensorSpec, ...],
    bounds: Bounds,
    optional: tuple[TensorSpec, ...],
    named: tuple[str, ...],
) -> tuple[Choice, list[zipfile.ZipInfo]]:
    """Choose what to unpack, before anything is unpacked.

    Raises:
        DataError: Too many arrays or bytes, or an input is missing.
    """
    infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(infos) > MAX_ARRAYS or len(infos) != len(archive.infolist()):
        raise DataError(f"{source} holds over {MAX_ARRAYS} arrays, or the same name twice")
    choice = choose(source, infos, specs, optional, named)
    members = [infos[name] for name in choice.used]
    if sum(member.file_size for member in members) > bounds.max_bytes:
        raise DataError(f"{source} is over {bounds.max_bytes} bytes")
    return choice, members


def _opened(source: str, choice: Choice, open_array: Callable[[str], Tensor]) -> RawSet:
    return RawSet(
        name=source,
        inputs={name: open_array(key) for name, key in choice.inputs.items()},
        labels=open_array(choice.label) if choice.label else None,
        named={name: open_array(name) for name in choice.named},
    )


def _mapped(source: str, path: Path) -> Tensor:
    try:
        array: Tensor = np.lib.format.open_memmap(path, mode="r")
    except OSError as exc:
        raise DataError(f"{source} cannot be read: {exc.strerror or exc}") from exc
    except Exception as exc:  # NumPy's parser passes on what Python's tokenizer raises
        raise DataError(
            f"{source} is not an .npz archive or a directory of plain arrays",
            remedy="write them with numpy.savez or numpy.save, without objects",
        ) from exc
    if array.ndim == 0:
        raise DataError(f"{source} holds a single number, not an array of samples")
    return array


def _fitting(source: str, array: Tensor, spec: TensorSpec, scratch: Path, bounds: Bounds) -> Tensor:
    """Return an array in the type that is needed, mapped where it had to be converted."""
    path = scratch / f"converted.{len(list(scratch.iterdir()))}.npy"
    if spec.datatype == "BYTES":
        return fitting_texts(source, spec.name, array, path, bounds.max_bytes)
    dtype = dtype_of(spec.datatype)
    if array.dtype == dtype:
        for block in blocks(array):
            cast(source, spec.name, array[block], dtype)
        return array
    converted: Tensor = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=array.shape)
    for block in blocks(array):
        converted[block] = cast(source, spec.name, array[block], dtype)
    return converted
