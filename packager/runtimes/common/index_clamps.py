"""Writes bounds of computed indices into a graph before it is compiled.

Compiled code does not check an index. The adapter checks the values of inputs against the ranges of
`packager.runtimes.common.index_ranges`. It cannot check an index that the model computes from them,
so this module bounds such an index. A valid model gives the same answers; an invalid one gives a
wrong answer instead of foreign memory.

Rules:
- An index that depends on no input's values is left as it is, so that a compiler can fold it.
- An index into an axis of unknown size is left as it is; a compiler of fixed shapes refuses it.

Source:
    ONNX, docs/Operators.md: Gather, GatherElements, GatherND, ScatterElements, ScatterND.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

_AXIS: Final = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements"})
_COORDINATES: Final = frozenset({"GatherND", "ScatterND"})
_OF_SHAPES: Final = frozenset({"Shape", "Size"})
"""Operators whose outputs depend on shapes alone."""

_PREFIX: Final = "edgefleet_bounded_"


def clamp_indices(model: onnx.ModelProto) -> int:
    """Bound the indices that a model computes from its inputs.

    Args:
        model: A model whose inputs have known shapes; changed.

    Returns:
        How many uses of an index were bounded.
    """
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {
        value.name: value.type.tensor_type
        for value in (*inferred.graph.input, *inferred.graph.value_info)
    }
    shapes = {name: tuple(d.dim_value for d in kind.shape.dim) for name, kind in known.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    variable = _variable(model)
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in model.graph.node:
        sizes = _indexed_sizes(node, shapes)
        if sizes and min(sizes) > 0 and node.input[1] in variable and node.input[1] in known:
            dtype = helper.tensor_dtype_to_np_dtype(known[node.input[1]].elem_type)
            nodes += _bounded(model.graph, node, np.array(sizes, dtype), f"{_PREFIX}{count}")
            count += 1
        nodes.append(node)
    if count:
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    return count


def _indexed_sizes(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the sizes of the axes that a node's second operand points into; empty for none."""
    attributes = {a.name: a.i for a in node.attribute}
    data = shapes.get(node.input[0], ()) if node.input else ()
    if node.op_type in _AXIS:
        return data[attributes.get("axis", 0) :][:1]
    if node.op_type in _COORDINATES:
        first = attributes.get("batch_dims", 0)
        width = shapes.get(node.input[1], ())[-1:]
        return data[first : first + width[0]] if width else ()
    return ()


def _bounded(
    graph: onnx.GraphProto, node: onnx.NodeProto, sizes: np.ndarray[Any, Any], name: str
) -> list[onnx.NodeProto]:
    """Return the nodes that bound a node's index, and make the node use the bounded index."""
    if len(sizes) == 1:
        sizes = sizes.reshape(())
    graph.initializer.append(numpy_helper.from_array(-sizes, f"{name}_least"))
    graph.initializer.append(numpy_helper.from_array(sizes - 1, f"{name}_greatest"))
    index = node.input[1]
    node.input[1] = name
    return [
        helper.make_node("Max", [index, f"{name}_least"], [f"{name}_raised"]),
        helper.make_node("Min", [f"{name}_raised", f"{name}_greatest"], [name]),
    ]


def _variable(model: onnx.ModelProto) -> set[str]:
    """Return the names of values that depend on values of inputs."""
    names = {v.name for v in model.graph.input} - {t.name for t in model.graph.initializer}
    for node in model.graph.node:  # in the order in which they are computed
        if node.op_type not in _OF_SHAPES and names.intersection(node.input):
            names.update(node.output)
    return names
