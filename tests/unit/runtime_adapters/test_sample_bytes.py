"""Samples as bytes: equal to the last bit, and hostile ones refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime_adapters.sample_bytes import Sample, from_bytes, to_bytes
from runtime_adapters.tensors import DTYPES
from wire.codec import to_msgpack
from wire.errors import WireFormatError

LIMIT = 10_000


def test_every_type_comes_back_to_the_last_bit() -> None:
    raw = np.arange(48, dtype=np.uint8)
    inputs: dict[str, NDArray[Any]] = {
        name: (raw % 2).astype(dtype) if name == "BOOL" else raw.view(dtype).reshape(2, -1)
        for name, dtype in DTYPES.items()
        if name != "BYTES"
    }
    inputs["not contiguous"] = np.asfortranarray(np.arange(6.0).reshape(2, 3))[:, ::2]
    texts = {"t": np.array([["ä", ""], ["b", "long"]], np.object_)}
    read = from_bytes(to_bytes(Sample(inputs=inputs, outputs=texts, is_batch=True)), LIMIT)
    assert read.is_batch
    for name, tensor in inputs.items():
        found = read.inputs[name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert found.tobytes() == tensor.tobytes()
    assert read.outputs["t"].tolist() == texts["t"].tolist()
    assert read.outputs["t"].dtype.kind == "U"


@pytest.mark.parametrize(
    "array",
    [
        ["x", "FP32", [2], b"1234", []],
        ["x", "FP32", [-1], b"", []],
        ["x", "FP32", [2**40, 2**40], b"", []],
        ["x", "FP32", [1] * 40, b"1234", []],
        ["x", "OBJECT", [1], b"1234", []],
        ["x", "BYTES", [2], b"", ["one"]],
        ["x", "FP32", [1.5], b"1234", []],
    ],
)
def test_what_does_not_fit_is_refused(array: list[object]) -> None:
    with pytest.raises(WireFormatError):
        from_bytes(to_msgpack([[array], [], True]), LIMIT)


def test_bounds() -> None:
    many = [["x", "FP32", [1], b"1234", []]] * 65
    for data in (to_msgpack([many, [], True]), bytes(LIMIT + 1), b"", b"\xc1"):
        with pytest.raises(WireFormatError):
            from_bytes(data, LIMIT)
    odd = {"x": np.array([1 + 1j])}
    with pytest.raises(WireFormatError, match="complex"):
        to_bytes(Sample(inputs=odd, outputs={}, is_batch=True))
