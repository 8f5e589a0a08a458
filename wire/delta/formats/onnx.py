"""Where the tensors of an ONNX model are: in the protobuf, or in files of external data. Pure.

Rules:
- A small walk over the protobuf's fields; nothing is copied, and `onnx` is not needed.
- What is damaged ends the walk; the tensors found until then count.

Source:
    onnx/onnx.proto of ONNX 1.17, for the numbers of fields and types.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from wire.delta.places import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire.delta.layout import Element

MAX_DEPTH: Final = 16
"""Of graphs within graphs."""

MAX_DIMS: Final = 64
MAX_DIM: Final = 2**63 - 1
"""A tensor with more or longer ones is damaged: the product of its shape would have no bound."""

_ELEMENTS: Final[dict[int, Element]] = {
    1: "f4", 2: "i1", 3: "i1", 4: "i2", 5: "i2", 6: "i4", 7: "i8", 9: "i1", 10: "f2", 11: "f8",
    12: "i4", 13: "i8", 14: "f4", 15: "f8", 16: "f2", 17: "f1", 18: "f1", 19: "f1", 20: "f1",
    21: "n1", 22: "n1", 23: "n1", 24: "i1", 25: "i1", 26: "i1",
}  # fmt: skip
"""TensorProto.DataType. A complex number is two floats."""

_MODEL_GRAPH: Final = 7
_GRAPH_NODE, _GRAPH_TENSOR = 1, 5
_NODE_OUTPUT, _NODE_ATTRIBUTE = 2, 5
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 10, 11
_DIMS, _TYPE, _FLOATS, _NAME, _RAW, _DOUBLES, _EXTERNAL = 1, 2, 4, 8, 9, 10, 13

Field = tuple[int, int, int]
"""Number, start and end of a field; a number's own value stands in place of the start, and -1 in
place of the end."""


def places(model: memoryview) -> list[Place]:
    """Return the tensors whose data lie in the model's file.

    Args:
        model: The content of the file.

    Returns:
        Their places.
    """
    return [place for place, location in _tensors(model) if not location]


def external_places(model: memoryview, file: str) -> list[Place]:
    """Return the tensors of a model whose data lie in another file.

    Args:
        model: The content of the model's file.
        file: The name of the other one, relative to the model.

    Returns:
        Their places in it.
    """
    return [place for place, location in _tensors(model) if location == file]


def _tensors(data: memoryview) -> Iterator[tuple[Place, str]]:
    """Yield each tensor, with the file of its data, or nothing for the model's own."""
    for number, start, end in _fields(data, 0, len(data)):
        if number == _MODEL_GRAPH and end >= 0:
            yield from _graph(data, start, end, 0)


def _graph(data: memoryview, start: int, end: int, depth: int) -> Iterator[tuple[Place, str]]:
    for number, begin, stop in _fields(data, start, end):
        if number == _GRAPH_TENSOR and stop >= 0:
            yield from _tensor(data, begin, stop, "")
        elif number == _GRAPH_NODE and stop >= 0 and depth < MAX_DEPTH:
            yield from _node(data, begin, stop, depth)


def _node(data: memoryview, start: int, end: int, depth: int) -> Iterator[tuple[Place, str]]:
    name = ""
    attributes: list[tuple[int, int]] = []
    for number, begin, stop in _fields(data, start, end):
        if number == _NODE_OUTPUT and not name and stop >= 0:
            name = _text(data, begin, stop)
        elif number == _NODE_ATTRIBUTE and stop >= 0:
            attributes.append((begin, stop))
    for attribute in attributes:
        for number, begin, stop in _fields(data, *attribute):
            if stop < 0:
                continue
            if number in {_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS}:
                yield from _tensor(data, begin, stop, name)
            elif number in {_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS}:
                yield from _graph(data, begin, stop, depth + 1)


def _tensor(data: memoryview, start: int, end: int, name: str) -> Iterator[tuple[Place, str]]:
    shape: list[int] = []
    kind = 0
    content: tuple[int, int] | None = None
    external: dict[str, str] = {}
    for number, begin, stop in _fields(data, start, end):
        if number == _DIMS:
            shape += [begin] if stop < 0 else _varints(data, begin, stop)
            del shape[MAX_DIMS + 1 :]
        elif number == _TYPE and stop < 0:
            kind = begin
        elif number == _NAME and stop >= 0:
            name = _text(data, begin, stop) or name
        elif number in {_RAW, _FLOATS, _DOUBLES} and stop > begin:
            content = (begin, stop)
        elif number == _EXTERNAL and stop >= 0:
            texts = [_text(data, *where) for _, *where in _fields(data, begin, stop)]
            external |= dict([texts]) if len(texts) == 2 else {}  # noqa: PLR2004 - key and value
    element = _ELEMENTS.get(kind)
    if element is None or len(shape) > MAX_DIMS or max(shape, default=0) > MAX_DIM:
        return
    if external:
        offset, length = (_number(external.get(key, "")) for key in ("offset", "length"))
        size = length or -(-prod(shape) * int(element[1]) // (2 if element == "n1" else 1))
        yield Place(name, element, tuple(shape), offset, size), external.get("location", "")
    elif content is not None:
        yield Place(name, element, tuple(shape), content[0], content[1] - content[0]), ""


def _fields(data: memoryview, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of one message; stop where it is damaged."""
    place = start
    while place < end:
        key, place = _varint(data, place, end)
        number, form = key >> 3, key & 7
        if form == 0:
            value, place = _varint(data, place, end)
            if place <= end:
                yield number, value, -1
            continue
        if form == 2:  # noqa: PLR2004 - the wire types of protobuf
            size, place = _varint(data, place, end)
        else:
            size = {1: 8, 5: 4}.get(form, end)
        if place + size > end:
            return
        if form == 2:  # noqa: PLR2004
            yield number, place, place + size
        place += size


def _varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends; past the end when it is cut off."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            break
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the bit that says that more follows
            return value, place
    return 0, end + 1


def _varints(data: memoryview, place: int, end: int) -> list[int]:
    """Return packed numbers; no more than show that there are too many."""
    values: list[int] = []
    while place < end and len(values) <= MAX_DIMS:
        value, place = _varint(data, place, end)
        values.append(value)
    return values


def _text(data: memoryview, start: int, end: int) -> str:
    return bytes(data[start : max(start, end)]).decode(errors="replace")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0  # noqa: PLR2004
