"""Writes the samples that a user's function yields to disk, one dict after the other.

Rules:
- Memory holds one dict at a time. The reading ends with an error when the function yields more than
  the limits.
- Every exception and every wrong value of the function becomes a `DataError`.
- Samples of one shape lie together, in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from packager.errors import DataError
from packager.fault_text import typed_line
from packager.samples.arrays import Bounds, Choice, RawSet, cast, check_labels, check_shape, choose
from packager.samples.store import Unit, unit_of
from packager.samples.texts import TextRows, checked_texts
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import dtype_of
from wire.package.tensors import TensorSpec

MAX_SHAPES: Final = 64
"""Each shape is judged by its own, and needs files of its own."""

_LABELS: Final = ""
"""Key of the labels among the columns; no input has an empty name."""


def collect(
    source: str,
    function: Callable[[], Any],
    specs: tuple[TensorSpec, ...],
    scratch: Path,
    bounds: Bounds,
    optional: tuple[TensorSpec, ...] = (),
    named: tuple[str, ...] = (),
) -> list[RawSet]:
    """Collect what a function yields.

    Args:
        source: Its name, for messages.
        function: Takes nothing, gives an iterable of dicts of named arrays; in each dict the first
            axis of every array counts the samples, of which there is one or more.
        specs: What raw samples must be.
        scratch: An empty folder for files, which the arrays need as long as they are used.
        bounds: How much is read at most.
        optional: Inputs that may be missing.
        named: Labels with a name of their own, which may be missing, too.

    Returns:
        The samples, one set for each shape, in the order in which the shapes came first.

    Raises:
        DataError: It fails, does not end, or yields something else.
    """
    unit = unit_of(specs)
    shapes: dict[tuple[tuple[int, ...], ...], dict[str, _Column]] = {}
    choice: Choice | None = None
    size_bytes = samples = 0
    with ExitStack() as files:
        for offered in _dicts(source, function):
            found = choose(source, offered, specs, optional, named)
            choice = choice or found
            if different := sorted({*found.used} ^ {*choice.used}):
                raise DataError(f"{source} yields {different[0]!r} only in some dicts")
            pieces = _pieces(source, offered, choice, (*specs, *optional), unit)
            shape = tuple(pieces[name].shape[1:] for name in choice.inputs)
            columns = shapes.setdefault(shape, {})
            if len(shapes) > MAX_SHAPES:
                raise DataError(
                    f"{source} yields samples of over {MAX_SHAPES} shapes",
                    remedy="pad or scale them to fewer sizes; docs/shapes.md says how",
                )
            if not columns:
                for number, (name, rows) in enumerate(pieces.items()):
                    path = scratch / f"{len(shapes)}.{number}.raw"
                    file = files.enter_context(path.open("w+b"))
                    columns[name] = _Column(name or "label", rows, file)
            size_bytes += sum(columns[name].add(source, rows) for name, rows in pieces.items())
            samples += len(next(iter(pieces.values())))
            if size_bytes > bounds.max_bytes or samples > bounds.max_samples:
                raise DataError(
                    f"{source} yields over {bounds.max_samples} samples "
                    f"or {bounds.max_bytes} bytes",
                    remedy="let the function end after the wanted number of samples",
                )
        if choice is None:
            raise DataError(f"{source} yields no samples")
        return [_raw_set(source, columns, choice, bounds) for columns in shapes.values()]


def _raw_set(source: str, columns: Mapping[str, _Column], choice: Choice, bounds: Bounds) -> RawSet:
    arrays = {name: column.array(source, bounds.max_bytes) for name, column in columns.items()}
    labels = arrays.pop(_LABELS, None)
    others = {name: arrays.pop(name) for name in choice.named}
    return RawSet(name=source, inputs=arrays, labels=labels, named=others)


class _Column:
    """An array that grows on disk.

    Args:
        name: For messages.
        first: Its first rows, which settle the type and the shape of a row.
        file: Where the rows go.
    """

    def __init__(self, name: str, first: Tensor, file: IO[bytes]) -> None:
        self._name = name
        self._dtype = first.dtype
        self._shape = first.shape[1:]
        self._file = file
        self._texts = TextRows(file, self._shape) if first.dtype.kind == "U" else None
        self.rows = 0

    def add(self, source: str, rows: Tensor) -> int:
        """Add rows and return their bytes.

        Raises:
            DataError: Their type or shape is not that of the first rows.
        """
        same = rows.dtype.kind == "U" if self._texts else rows.dtype == self._dtype
        if not same or rows.shape[1:] != self._shape:
            raise DataError(
                f"{source}: {self._name!r} changes from {self._dtype} {list(self._shape)} "
                f"to {rows.dtype} {list(rows.shape[1:])}",
                remedy="give all samples of one shape one type, and labels of one shape",
            )
        if self._texts:
            self._texts.add(rows)
        else:
            self._file.write(np.ascontiguousarray(rows).tobytes())
        self.rows += len(rows)
        return rows.nbytes

    def array(self, source: str, max_bytes: int) -> Tensor:
        """Map all rows.

        Raises:
            DataError: Texts that are too large in the width of the longest.
        """
        if self._texts:
            return self._texts.array(source, max_bytes)
        self._file.flush()
        shape = (self.rows, *self._shape)
        return np.memmap(Path(self._file.name), dtype=self._dtype, mode="r", shape=shape)


def _dicts(source: str, function: Callable[[], Any]) -> Iterator[Mapping[str, Any]]:
    """Go through what a function yields; its faults are the user's.

    Raises:
        DataError: It raises, or yields something else than dicts by name.
    """
    try:
        iterator = iter(function())
    except (Exception, SystemExit) as exc:
        raise DataError(f"{source} failed: {typed_line(exc)}") from exc
    for number in range(2**63):
        try:
            offered = next(iterator)
        except StopIteration:
            return
        except DataError:  # from a reader of ours, which has named the fault
            raise
        except (Exception, SystemExit) as exc:
            raise DataError(f"{source} failed after {number} dicts: {typed_line(exc)}") from exc
        if not isinstance(offered, Mapping) or not all(isinstance(key, str) for key in offered):
            raise DataError(
                f"{source} yields {type(offered).__name__}, not dicts of named arrays",
                remedy="yield {input name: array}, where the first axis is the samples",
            )
        yield offered


def _pieces(
    source: str,
    offered: Mapping[str, Any],
    choice: Choice,
    specs: tuple[TensorSpec, ...],
    unit: Unit,
) -> Tensors:
    """Check one dict, and return its arrays by input.

    Raises:
        DataError: An array does not fit.
    """
    pieces: Tensors = {}
    for spec in (spec for spec in specs if spec.name in choice.inputs):
        rows = _array(source, spec.name, offered[choice.inputs[spec.name]])
        check_shape(source, rows, spec, unit)
        pieces[spec.name] = (
            checked_texts(source, spec.name, rows)
            if spec.datatype == "BYTES"
            else cast(source, spec.name, rows, dtype_of(spec.datatype))
        )
    lengths = {len(rows) for rows in pieces.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise DataError(f"{source} yields {sorted(lengths)} samples in one dict")
    count = lengths.pop()
    keys = {_LABELS: choice.label} if choice.label else {}
    for key, name in (keys | {name: name for name in choice.named}).items():
        labels = _array(source, name, offered[name])
        check_labels(source, labels, count)
        pieces[key] = labels
    return pieces


def _array(source: str, name: str, value: object) -> Tensor:
    try:
        array: Tensor = np.asarray(value)
    except Exception as exc:
        raise DataError(f"{source}: {name!r} is not an array: {typed_line(exc)}") from exc
    return array
