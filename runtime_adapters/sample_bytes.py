"""A sample as bytes: the inputs of a request and the answer of the model, for a later training.

Rules:
- Numbers are the bytes of the arrays, so that what is read is equal to the last bit.
- A reader believes nothing: a shape that does not fit its bytes is refused before memory is taken.
- Nothing is unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import DTYPES
from wire.codec import from_msgpack, to_msgpack
from wire.errors import WireFormatError
from wire.package.tensors import Datatype

MAX_TENSORS: Final = 64
MAX_DIMENSIONS: Final = 16
_NAMES: Final = {dtype.newbyteorder("<"): name for name, dtype in DTYPES.items()}


class _Array(msgspec.Struct, frozen=True, array_like=True):
    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    blob: bytes
    """Little endian, in the order of C; empty for texts."""

    texts: tuple[str, ...] = ()


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked and answered."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    is_batch: bool
    """Whether the first axis of each input counts samples."""


class _Written(msgspec.Struct, frozen=True, array_like=True):
    inputs: tuple[_Array, ...]
    outputs: tuple[_Array, ...]
    is_batch: bool


def size_bytes(*several: Mapping[str, Tensor]) -> int:
    """Return about how many bytes tensors take; of texts the least that they may."""
    return sum(each.nbytes for tensors in several for each in tensors.values())


def to_bytes(sample: Sample) -> bytes:
    """Return a sample as bytes.

    Args:
        sample: Arrays of numbers, or of texts.

    Returns:
        The bytes.

    Raises:
        WireFormatError: An array is of a type that has no name.
    """
    return to_msgpack(
        _Written(_all_written(sample.inputs), _all_written(sample.outputs), sample.is_batch)
    )


def from_bytes(data: bytes, limit_bytes: int) -> Sample:
    """Read a sample.

    Args:
        data: As `to_bytes` made it, perhaps by somebody who wishes harm.
        limit_bytes: Refuse anything longer.

    Returns:
        The sample; texts are arrays of NumPy's `<U`.

    Raises:
        WireFormatError: It is malformed or too long.
    """
    written = from_msgpack(data, _Written, limit_bytes=limit_bytes)
    if max(len(written.inputs), len(written.outputs)) > MAX_TENSORS:
        raise WireFormatError(f"a sample has more than {MAX_TENSORS} tensors")
    return Sample(
        inputs={each.name: _read(each) for each in written.inputs},
        outputs={each.name: _read(each) for each in written.outputs},
        is_batch=written.is_batch,
    )


def _all_written(tensors: Tensors) -> tuple[_Array, ...]:
    return tuple(_written(name, tensor) for name, tensor in tensors.items())


def _written(name: str, tensor: Tensor) -> _Array:
    if tensor.dtype.kind in "OU":
        texts = tuple(str(each) for each in tensor.ravel().tolist())
        return _Array(name, "BYTES", tensor.shape, b"", texts)
    plain = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False)
    datatype = _NAMES.get(plain.dtype)
    if datatype is None:
        raise WireFormatError(f"tensor {name[:80]!r} has a type without a name: {tensor.dtype}")
    return _Array(name, datatype, tensor.shape, plain.tobytes())


def _read(array: _Array) -> Tensor:
    if len(array.shape) > MAX_DIMENSIONS or any(size < 0 for size in array.shape):
        raise WireFormatError(f"tensor {array.name[:80]!r} of a sample has no possible shape")
    elements = math.prod(array.shape)
    if array.datatype == "BYTES":
        if elements != len(array.texts):
            raise WireFormatError(f"tensor {array.name[:80]!r} of a sample lacks texts")
        return np.array(array.texts, dtype=np.str_).reshape(array.shape)
    dtype = DTYPES[array.datatype].newbyteorder("<")
    if elements * dtype.itemsize != len(array.blob):
        raise WireFormatError(f"tensor {array.name[:80]!r} of a sample does not fit its shape")
    return np.frombuffer(array.blob, dtype).reshape(array.shape)
