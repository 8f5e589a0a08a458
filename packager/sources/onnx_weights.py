"""Reads and writes weights that lie in a file beside an ONNX model, a part at a time.

A model over 2 GiB exists only in this form, and no process of a build has to hold its weights.

Rules:
- A read or write holds at most `PART_BYTES` of a weight. Only `whole` holds all of one weight.
- Weights begin at multiples of a page, so that a runtime can map them into its memory.
- Equal weights in the same order give an equal file.

Source:
    ONNX, docs/ExternalData.md; onnx/onnx.in.proto, `TensorProto`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from packager.errors import ModelError
from packager.plan.recipes import WEIGHTS_FILE
from packager.sources.onnx_graph import shown

SMALL_BYTES: Final = 1024
"""Smaller tensors stay in the graph, as ONNX's own writer leaves them: they are shapes and scalars,
which tools must read to infer shapes."""

PART_BYTES: Final = 16 * 1024**2
"""Small beside a runtime, and large enough that the overhead of a part does not count."""

PAGE_BYTES: Final = 4096
"""ONNX's documentation asks for offsets at multiples of this, so that a file can be mapped."""

_AGAIN: Final = "copy, download or export the model again, with all of its files"
_PACKED_BITS: Final = {TensorProto.INT4: 4, TensorProto.UINT4: 4}
"""Types of which a byte holds several values."""

_TYPED_FIELDS: Final = (
    "double_data", "float_data", "int32_data", "int64_data", "raw_data", "string_data",
    "uint64_data",
)  # fmt: skip


class Place(NamedTuple):
    """Where the data of a tensor are."""

    file: Path
    offset: int
    length: int
    """In bytes, as the offset."""


class WeightsWriter:
    """Writes the weights of one model into a file, one after the other.

    Args:
        folder: The folder of the model; the file there is `WEIGHTS_FILE`.
    """

    def __init__(self, folder: Path) -> None:
        self._stream = (folder / WEIGHTS_FILE).open("xb")

    def __enter__(self) -> Self:
        """Return the writer, whose file is open."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._stream.close()

    def add(self, tensor: Any, parts: Iterable[bytes]) -> None:  # noqa: ANN401 - untyped
        """Write the data of a tensor, and let it name their place.

        Args:
            tensor: The tensor; changed in place.
            parts: Its data in order.
        """
        offset = -(-self._stream.tell() // PAGE_BYTES) * PAGE_BYTES
        self._stream.write(bytes(offset - self._stream.tell()))
        for part in parts:
            self._stream.write(part)
        length = self._stream.tell() - offset
        for field in (*_TYPED_FIELDS, "external_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))


def is_apart(tensor: Any) -> bool:  # noqa: ANN401 - onnx is untyped
    """Tell whether the data of a tensor are in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def data_bytes(tensor: Any) -> int | None:  # noqa: ANN401 - onnx is untyped
    """Return how many bytes the data of a tensor are; None for texts, and for no possible shape."""
    if tensor.data_type in {TensorProto.STRING, TensorProto.UNDEFINED} or min((*tensor.dims, 0)):
        return None
    try:
        bits: int = 8 * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError):
        return None
    count: int = math.prod(tensor.dims)
    return -(-count * _PACKED_BITS.get(tensor.data_type, bits) // 8)


def place_of(tensor: Any, folder: Path) -> Place:  # noqa: ANN401 - onnx is untyped
    """Return where the data of a tensor are that is not in the model.

    Args:
        tensor: The tensor, whose place was checked (`onnx_external.external_locations`).
        folder: The folder of the model.

    Returns:
        The place; its length is what the tensor's shape needs.

    Raises:
        ModelError: The model states another length.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    needed = data_bytes(tensor)
    stated = int(entries.get("length") or needed or 0)
    if needed is None or stated != needed:
        raise ModelError(
            f"the weight {shown(tensor.name)} has {stated} bytes of external data, which do not "
            f"fit its type and its shape {list(tensor.dims)}",
            remedy=_AGAIN,
        )
    return Place(folder / entries["location"], int(entries.get("offset") or 0), needed)


def parts_of(place: Place) -> Iterator[bytes]:
    """Yield the data at a place in parts of at most `PART_BYTES`.

    Raises:
        ModelError: The file ends before, or cannot be read.
    """
    left = place.length
    try:
        with place.file.open("rb") as stream:
            stream.seek(place.offset)
            while left and (part := stream.read(min(left, PART_BYTES))):
                left -= len(part)
                yield part
    except OSError as exc:
        raise ModelError(
            f"the model's data file {shown(place.file.name)} cannot be read: {exc.strerror}"
        ) from exc
    if left:
        raise ModelError(
            f"the model's data file {shown(place.file.name)} is truncated", remedy=_AGAIN
        )


def values_of(tensor: Any, folder: Path) -> Iterator[NDArray[Any]]:  # noqa: ANN401 - onnx is untyped
    """Yield the values of a tensor in parts, without its shape.

    Args:
        tensor: A tensor in the model or beside it.
        folder: The folder of the model.

    Yields:
        One-dimensional arrays; the only one of a tensor in the model has the tensor's shape.

    Raises:
        ModelError: As `place_of` and `parts_of`.
    """
    if not is_apart(tensor):
        yield numpy_helper.to_array(tensor)
        return
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    for part in parts_of(place_of(tensor, folder)):
        yield np.frombuffer(part, dtype)


def whole(tensor: Any, folder: Path) -> Any:  # noqa: ANN401 - onnx is untyped
    """Return a copy of a tensor that holds its data.

    Args:
        tensor: A tensor in the model or beside it.
        folder: The folder of the model.

    Returns:
        The copy.

    Raises:
        ModelError: As `place_of` and `parts_of`.
    """
    copy = TensorProto()
    copy.CopyFrom(tensor)
    if is_apart(tensor):
        data = b"".join(parts_of(place_of(tensor, folder)))
        copy.ClearField("external_data")
        copy.ClearField("data_location")
        copy.raw_data = data
    return copy


def put_apart(tensor: Any, folder: Path, writer: WeightsWriter) -> None:  # noqa: ANN401 - untyped
    """Write a weight into another file, unless it is small; a small one moves into the model.

    Args:
        tensor: A tensor in the model or beside it; changed in place.
        folder: The folder of the model.
        writer: The other file.

    Raises:
        ModelError: As `place_of` and `parts_of`.
    """
    size = data_bytes(tensor)
    if is_apart(tensor):
        place = place_of(tensor, folder)
        if place.length < SMALL_BYTES:
            tensor.CopyFrom(whole(tensor, folder))
        else:
            writer.add(tensor, parts_of(place))
    elif size is not None and size >= SMALL_BYTES:
        if tensor.HasField("raw_data"):
            writer.add(tensor, (tensor.raw_data,))
        elif tensor.data_type not in _PACKED_BITS:
            writer.add(tensor, (numpy_helper.to_array(tensor).tobytes(),))
    if not is_apart(tensor):
        tensor.ClearField("data_location")  # some writers state the default
