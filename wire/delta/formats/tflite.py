"""Where the tensors of a TFLite model are, and the scales of its quantization. Pure.

Rules:
- A small walk over the flatbuffer's tables; the schema's package is not needed.
- A damaged file has no tensors.
- Offsets may lead to one table again and again, so a small file could claim millions of tensors.
  The walk reads no more bytes than the file has.

Source:
    tensorflow/compiler/mlir/lite/schema/schema.fbs, version 3, for the order of fields and types.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from wire.delta.places import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire.delta.layout import Element

IDENTIFIER: Final = b"TFL3"
MAX_ITEMS: Final = 1_000_000
"""Of a vector; larger ones are damaged."""

MAX_WALK_BYTES: Final = 4 * 1024**2
"""Of tables, shapes and names together; the tensors' contents do not count."""

_ELEMENTS: Final[dict[int, Element]] = {
    0: "f4", 1: "f2", 2: "i4", 3: "i1", 4: "i8", 6: "i1", 7: "i2", 8: "f4", 9: "i1", 10: "f8",
    11: "f8", 12: "i8", 15: "i4", 16: "i2", 17: "n1", 18: "f2",
}  # fmt: skip
"""TensorType. A complex number is two floats."""

_MODEL_SUBGRAPHS, _MODEL_BUFFERS = 2, 4
_SUBGRAPH_TENSORS: Final = 0
_TENSOR_SHAPE, _TENSOR_TYPE, _TENSOR_BUFFER, _TENSOR_NAME, _TENSOR_QUANTIZATION = 0, 1, 2, 3, 4
_QUANTIZATION_SCALE: Final = 2
_BUFFER_DATA, _BUFFER_OFFSET, _BUFFER_SIZE = 0, 1, 2
_TABLE_BYTES: Final = 8
"""A table takes no less: the offset to it, and its own to its index."""


class _Budget:
    """What the walk may still read.

    Args:
        size_bytes: The size of the file.
    """

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = min(size_bytes, MAX_WALK_BYTES)

    def take(self, size_bytes: int) -> None:
        """Note that so many bytes are read now.

        Raises:
            ValueError: It is more than the file has.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise ValueError("the tables lead to one place again and again")


def places(model: memoryview) -> list[Place]:
    """Return the tensors of a model.

    Args:
        model: The content of its file.

    Returns:
        Their places.
    """
    if bytes(model[4:8]) != IDENTIFIER:
        return []
    try:
        return list(_tensors(model))
    except (struct.error, ValueError, IndexError):
        return []


def _tensors(data: memoryview) -> Iterator[Place]:
    root, budget = _there(data, 0), _Budget(len(data))
    buffers = _tables(data, _field(data, root, _MODEL_BUFFERS), budget)
    for subgraph in _tables(data, _field(data, root, _MODEL_SUBGRAPHS), budget):
        for tensor in _tables(data, _field(data, subgraph, _SUBGRAPH_TENSORS), budget):
            name = _name(data, tensor, budget)
            yield from _scales(data, tensor, name)
            kind = _field(data, tensor, _TENSOR_TYPE)
            element = _ELEMENTS.get(data[kind] if kind else 0)
            number = _number(data, _field(data, tensor, _TENSOR_BUFFER), "<I")
            if element is None or not 0 < number < len(buffers):
                continue
            offset, length = _content(data, buffers[number])
            if length:
                yield Place(name, element, _shape(data, tensor, budget), offset, length)


def _scales(data: memoryview, tensor: int, name: str) -> Iterator[Place]:
    """Yield the scales of a quantised tensor: floats, one for each channel."""
    where = _field(data, tensor, _TENSOR_QUANTIZATION)
    if where:
        start, count = _vector(data, _field(data, _there(data, where), _QUANTIZATION_SCALE))
        if count:
            yield Place(f"{name}/scale", "f4", (count,), start, 4 * count)


def _content(data: memoryview, buffer: int) -> tuple[int, int]:
    """Return where a buffer's bytes begin, and how many they are."""
    start, count = _vector(data, _field(data, buffer, _BUFFER_DATA), most=len(data))
    if count:
        return start, count
    # Of a model over 2 GiB, the bytes lie behind the flatbuffer.
    offset, size = (
        _number(data, _field(data, buffer, field), "<Q") for field in (_BUFFER_OFFSET, _BUFFER_SIZE)
    )
    return offset, size


def _shape(data: memoryview, tensor: int, budget: _Budget) -> tuple[int, ...]:
    start, count = _vector(data, _field(data, tensor, _TENSOR_SHAPE))
    budget.take(4 * count)
    return struct.unpack_from(f"<{count}i", data, start)


def _name(data: memoryview, tensor: int, budget: _Budget) -> str:
    start, count = _vector(data, _field(data, tensor, _TENSOR_NAME))
    budget.take(count)
    return bytes(data[start : start + count]).decode(errors="replace")


def _tables(data: memoryview, where: int, budget: _Budget) -> list[int]:
    """Return the places of the tables in a vector."""
    start, count = _vector(data, where)
    budget.take(_TABLE_BYTES * count)
    return [_there(data, start + 4 * index) for index in range(count)]


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the place of a table's field, or 0 when it has none.

    Raises:
        ValueError: The table is damaged.
    """
    (back,) = struct.unpack_from("<i", data, table)
    index = table - back
    if index < 0:
        raise ValueError("a table's index lies before the file")
    (size,) = struct.unpack_from("<H", data, index)
    if size < 6 + 2 * number:
        return 0
    (step,) = struct.unpack_from("<H", data, index + 4 + 2 * number)
    return table + step if step else 0


def _vector(data: memoryview, where: int, *, most: int = MAX_ITEMS) -> tuple[int, int]:
    """Return where a vector's items begin, and how many they are.

    Raises:
        ValueError: It is damaged.
    """
    if not where:
        return 0, 0
    start = _there(data, where)
    (count,) = struct.unpack_from("<I", data, start)
    if count > most:
        raise ValueError("a vector has more items than the file")
    return start + 4, count


def _there(data: memoryview, where: int) -> int:
    """Return the place that an offset at some place leads to."""
    (step,) = struct.unpack_from("<I", data, where)
    return int(where + step)


def _number(data: memoryview, where: int, form: str) -> int:
    return int(struct.unpack_from(form, data, where)[0]) if where else 0
