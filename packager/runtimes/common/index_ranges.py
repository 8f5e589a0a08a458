"""Finds the inputs that a model uses as indices, and the range of values that is valid there.

Compiled code does not check an index: an index out of range reads foreign memory or ends the
process. An interpreter answers with an error instead. So this module finds the ranges when a model
is compiled, and an adapter checks them at each call.

Pure: a graph in, ranges out.

Rules:
- The search follows each use of an index back to the inputs that it comes from, through operators
  that keep values, or shift, scale or bound them by constants. A range is valid for all uses.
- A range may be narrower than necessary, but not wider. There is one exception: where the graph
  chooses between two forms of one input, its range spans both. Graphs make negative indices
  positive in this way.
- An index that is computed in any other way, or that goes into an axis of unknown size, has no
  range. A caller therefore fixes the batch first.

Source:
    ONNX, docs/Operators.md: Gather, GatherElements, GatherND, ScatterElements, ScatterND,
    ReverseSequence, RotaryEmbedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import Final, TypeAlias

import numpy as np
import onnx
import onnx.inliner
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, helper, numpy_helper

Range: TypeAlias = tuple[int, int]
"""Least and greatest valid value."""

Ranges: TypeAlias = dict[str, Range]

_LEAST: Final = int(np.iinfo(np.int64).min)
_GREATEST: Final = int(np.iinfo(np.int64).max)
_ALL: Final[Range] = (_LEAST, _GREATEST)

_MAX_DEPTH: Final = 64
"""An index that is more operators away from an input than this gets no range."""

_KEEPING: Final = (
    "Cast", "Compress", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
    "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
_PASSING: Final = {name: slice(1) for name in _KEEPING} | {
    "Concat": slice(None),
    "Where": slice(1, 3),
}
"""Operators whose outputs hold only values of some inputs, with the positions of those inputs."""


def index_ranges(model: onnx.ModelProto) -> Ranges:
    """Find the inputs whose values are used as indices.

    Args:
        model: A valid model; an axis that is indexed must have a known size.

    Returns:
        Input name to the least and greatest value that is valid for all its uses.
    """
    flat = onnx.inliner.inline_local_functions(model) if model.functions else model
    try:
        flat = onnx.shape_inference.infer_shapes(flat)
    except Exception:  # noqa: BLE001 - whatever it raises, declared shapes must do then
        flat = model
    graph = _Graph(flat.graph)
    found: Ranges = {}
    for node in graph.nodes:
        for operand, needed in _uses(node, graph):
            found = _joined(found, graph.origins(operand, needed))
    return {name: found[name] for name in sorted(found) if found[name] != _ALL}


class _Graph:
    """A graph and its bodies as one list of nodes: ONNX names every value once."""

    def __init__(self, graph: GraphProto) -> None:
        self.nodes = list(_nodes(graph))
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.constants: dict[str, NDArray[np.integer]] = {}
        self._makers = {name: node for node in self.nodes for name in node.output}
        for part in (graph, *(b for node in self.nodes for b in _bodies(node))):
            self._learn(part)
        self._inputs = {v.name for v in graph.input} - {t.name for t in graph.initializer}

    def origins(self, name: str, needed: Range, depth: int = 0) -> Ranges:
        """Return the ranges that inputs must keep so that a value keeps its range."""
        if name in self._inputs:
            return {name: needed}
        node = self._makers.get(name)
        if node is None or depth == _MAX_DEPTH:
            return {}
        parts = [self.origins(*part, depth + 1) for part in self._parts(node, name, needed)]
        return reduce(_spanned if node.op_type in {"If", "Where"} else _joined, parts, {})

    def _parts(self, node: NodeProto, name: str, needed: Range) -> list[tuple[str, Range]]:
        """Return the ranges that a node's inputs must keep so that its output keeps its range."""
        if node.op_type == "If":
            position = list(node.output).index(name)
            return [(body.output[position].name, needed) for body in _bodies(node)]
        if node.op_type in _PASSING:
            return [(operand, needed) for operand in node.input[_PASSING[node.op_type]]]
        variable = [operand for operand in node.input if operand and operand not in self.constants]
        invert = _INVERSES.get(node.op_type)
        if invert is None or len(variable) != 1:
            return []
        constants = [self.constants.get(operand) for operand in node.input]
        return [(variable[0], range_) for range_ in invert(needed, constants)]

    def _learn(self, graph: GraphProto) -> None:
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type
            if kind.HasField("shape"):
                self.shapes[value.name] = tuple(d.dim_value for d in kind.shape.dim)
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    tensors[node.output[0]] = attribute.t
        for name, tensor in tensors.items():
            self.shapes[name] = tuple(tensor.dims)
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            if kind.kind in "iu" and 0 not in tensor.dims:
                self.constants[name] = numpy_helper.to_array(tensor).astype(np.int64)


def _uses(node: NodeProto, graph: _Graph) -> Iterator[tuple[str, Range]]:
    """Yield the inputs that a node takes as indices, with the range that is valid there."""
    attributes = {a.name: a.i for a in node.attribute}
    operands = [*node.input, "", "", "", ""]
    data = graph.shapes.get(operands[0], ())
    sizes: tuple[int, ...] = ()
    index, low = operands[1], None
    if node.op_type in {"Gather", "GatherElements", "Scatter", "ScatterElements"}:
        axis = attributes.get("axis", 0)
        sizes = data[axis:][:1]
    elif node.op_type in {"GatherND", "ScatterND"}:
        first = attributes.get("batch_dims", 0)
        width = (*graph.shapes.get(index, ()),)[-1:]
        sizes = data[first : first + width[0]] if width else ()
    elif node.op_type == "ReverseSequence":
        sizes = tuple(size + 1 for size in data[attributes.get("time_axis", 0) :][:1] if size)
        low = 0
    elif node.op_type == "RotaryEmbedding":
        sizes, index, low = graph.shapes.get(operands[1], ())[:1], operands[3], 0
    if index and sizes and min(sizes) > 0:
        size = min(sizes)
        yield index, (-size if low is None else low, size - 1)


def _added(needed: Range, operands: list[NDArray[np.integer] | None]) -> Iterator[Range]:
    least, greatest = _ends(operands)
    yield needed[0] - least, needed[1] - greatest


def _subtracted(needed: Range, operands: list[NDArray[np.integer] | None]) -> Iterator[Range]:
    least, greatest = _ends(operands)
    if operands[0] is None:
        yield needed[0] + greatest, needed[1] + least
    else:
        yield greatest - needed[1], least - needed[0]


def _multiplied(needed: Range, operands: list[NDArray[np.integer] | None]) -> Iterator[Range]:
    least, greatest = _ends(operands)
    if least > 0:
        yield -(-needed[0] // greatest), needed[1] // greatest


def _negated(needed: Range, _: list[NDArray[np.integer] | None]) -> Iterator[Range]:
    yield -needed[1], -needed[0]


def _raised(needed: Range, operands: list[NDArray[np.integer] | None]) -> Iterator[Range]:
    least, _ = _ends(operands)
    yield (_LEAST if least >= needed[0] else needed[0]), needed[1]


def _lowered(needed: Range, operands: list[NDArray[np.integer] | None]) -> Iterator[Range]:
    _, greatest = _ends(operands)
    yield needed[0], (_GREATEST if greatest <= needed[1] else needed[1])


def _clipped(needed: Range, operands: list[NDArray[np.integer] | None]) -> Iterator[Range]:
    low, high = needed
    if len(operands) > 1 and operands[1] is not None:
        low = next(_raised(needed, operands[1:2]))[0]
    if len(operands) > 2 and operands[2] is not None:  # noqa: PLR2004 - the third is the maximum
        high = next(_lowered(needed, operands[2:3]))[1]
    yield low, high


_INVERSES: Final[dict[str, Callable[..., Iterator[Range]]]] = {
    "Add": _added,
    "Clip": _clipped,
    "Max": _raised,
    "Min": _lowered,
    "Mul": _multiplied,
    "Neg": _negated,
    "Sub": _subtracted,
}
"""Operators of one variable and constants, with a function that turns a range of the output into
one of the variable."""


def _ends(operands: Iterable[NDArray[np.integer] | None]) -> Range:
    constants = [operand for operand in operands if operand is not None]
    if not constants:  # an operator of one operand
        return 0, 0
    return min(int(c.min()) for c in constants), max(int(c.max()) for c in constants)


def _joined(ranges: Ranges, more: Ranges) -> Ranges:
    """Return the ranges that keep within both."""
    both = dict(ranges)
    for name, (low, high) in more.items():
        known = ranges.get(name, _ALL)
        both[name] = (max(low, known[0]), min(high, known[1]))
    return both


def _spanned(ranges: Ranges, more: Ranges) -> Ranges:
    """Return ranges that span both; an input that only one of them names keeps its range."""
    both = ranges | more
    for name in ranges.keys() & more.keys():
        both[name] = (min(ranges[name][0], more[name][0]), max(ranges[name][1], more[name][1]))
    return both


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for body in _bodies(node):
            yield from _nodes(body)


def _bodies(node: NodeProto) -> list[GraphProto]:
    return [body for a in node.attribute for body in (a.g, *a.graphs) if body.node or body.output]
