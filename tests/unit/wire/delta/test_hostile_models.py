"""Models that were made to cost their reader time or memory: refused, so they have no tensors."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from onnx import GraphProto, ModelProto, StringStringEntryProto, TensorProto

from wire.delta import formats
from wire.delta.formats.safetensors import MAX_HEADER_BYTES


class Flatbuffer:
    """A flatbuffer whose offsets lead wherever a test wants."""

    def __init__(self) -> None:
        self.content = bytearray(b"\0\0\0\0TFL3")

    def take(self, size_bytes: int) -> int:
        at = len(self.content)
        self.content.extend(bytes(size_bytes))
        return at

    def table(self, *fields: int, refer: int | None = None) -> dict[int, int]:
        """Make a table of the given fields; return their places, and its own as -1."""
        count = max(fields)
        index = self.take(4 + 2 * (count + 1))
        self.take(-len(self.content) % 4)
        table = self.take(4 + 4 * len(fields))
        struct.pack_into("<HH", self.content, index, 6 + 2 * count, 4 + 4 * len(fields))
        places = {-1: table}
        for step, field in enumerate(fields):
            struct.pack_into("<H", self.content, index + 4 + 2 * field, 4 + 4 * step)
            places[field] = table + 4 + 4 * step
        struct.pack_into("<i", self.content, table, table - index)
        if refer is not None:
            self.refer(refer, table)
        return places

    def vector(self, where: int, count: int, width: int = 4) -> int:
        """Make a vector to which the offset at a place leads; return where its items begin."""
        start = self.take(4 + width * count)
        self.refer(where, start)
        struct.pack_into("<I", self.content, start, count)
        return start + 4

    def refer(self, where: int, to: int) -> None:
        struct.pack_into("<I", self.content, where, to - where)


def folded(subgraphs: int, tensors: int, *, dims: int = 0) -> bytes:
    """Return a TFLite model whose subgraphs are all one, and its tensors too."""
    made = Flatbuffer()
    root = made.table(2, 4, refer=0)
    items = made.vector(root[2], subgraphs)
    subgraph = made.table(0)
    for number in range(subgraphs):
        made.refer(items + 4 * number, subgraph[-1])
    items = made.vector(subgraph[0], tensors)
    tensor = made.table(0, 2, 4)
    for number in range(tensors):
        made.refer(items + 4 * number, tensor[-1])
    made.vector(tensor[0], dims)
    struct.pack_into("<I", made.content, tensor[2], 1)
    quantization = made.table(2, refer=tensor[4])
    made.vector(quantization[2], 16)
    items = made.vector(root[4], 2)
    buffer = made.table(0)
    for number in range(2):
        made.refer(items + 4 * number, buffer[-1])
    made.vector(buffer[0], 4096, 1)
    return bytes(made.content)


def test_a_tflite_model_that_is_not_folded_is_read() -> None:
    assert len(formats.places("m.tflite", folded(1, 2, dims=3))) == 4, "scales and contents"


@pytest.mark.parametrize(
    ("subgraphs", "tensors", "dims"), [(100, 100, 0), (1000, 1000, 0), (1, 1000, 1000)]
)
def test_offsets_that_lead_to_one_table_again_and_again_give_no_tensors(
    subgraphs: int, tensors: int, dims: int
) -> None:
    assert formats.places("m.tflite", folded(subgraphs, tensors, dims=dims)) == []


def external(dims: list[int]) -> dict[str, Any]:
    tensor = TensorProto(
        name="w",
        data_type=TensorProto.FLOAT,
        dims=dims,
        external_data=[StringStringEntryProto(key="location", value="m.data")],
        data_location=TensorProto.EXTERNAL,
    )
    return {"m.onnx": ModelProto(graph=GraphProto(initializer=[tensor])).SerializeToString()}


def test_an_onnx_tensor_of_64_dims_is_found() -> None:
    (place,) = formats.places("m.data", b"", external([1] * 63 + [8]))
    assert place.length == 32


@pytest.mark.parametrize("dims", [[1] * 65, [2**62] * 10_000, [4, -1]])
def test_an_onnx_tensor_of_impossible_dims_is_left_out(dims: list[int]) -> None:
    assert formats.places("m.data", b"", external(dims)) == []


def test_an_openvino_layer_longer_than_any_is_not_searched() -> None:
    data = b'><data element_type="f32" shape="4" offset="0" size="16" />'
    short = b'<layer id="1" name="x" type="Const" ' + data
    long = b"<layer " + b'name="x" type="Const" ' * 2000 + data
    assert [p.name for p in formats.places("m.bin", b"", {"m.xml": long + short})] == ["x"]


@pytest.mark.parametrize(("size_bytes", "found"), [(MAX_HEADER_BYTES, 1), (4 * 1024**2 + 1, 0)])
def test_a_safetensors_header_over_4_mib_is_refused(size_bytes: int, found: int) -> None:
    header = json.dumps({"w": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}).encode()
    content = size_bytes.to_bytes(8, "little") + header.ljust(size_bytes) + bytes(9)
    assert len(formats.places("m.safetensors", content)) == found
