"""The bodies of `If`, `Loop` and `Scan`: their names, the weights in them, and their casts.

Rules:
- Two bodies may use one name for two things. Tools that look names up in one table for the whole
  model need a name for each.
- A body sees the names of the graphs around it, never those of a body beside it.

Source:
    ONNX, docs/IR.md ("Names within a graph"): names are unique within a graph and the graphs around
    it, not among bodies side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from packager.sources.onnx_graph import all_graphs, all_nodes, bodies, stored_names


def has_bodies(graph: Any) -> bool:  # noqa: ANN401 - onnx is untyped
    """Tell whether a node of a graph holds a graph."""
    return any(True for node in graph.node for _ in bodies(node))


def name_values_apart(graph: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Give the values of bodies names that stand for one thing in the whole model.

    Args:
        graph: The model's graph, whose own names stay; changed in place.
    """
    taken = {name for inner in all_graphs(graph) for name in _referred(inner)}
    seen = {*_made(graph)}
    for node in graph.node:
        for body in bodies(node):
            _rename(body, {}, seen, taken)


def settle_casts(graph: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Move each `Cast` of the outer graph whose input a body makes into that body, each only once.

    A converter that appends all its casts to the outer graph writes one that no runtime loads.

    Args:
        graph: The model's graph, its names apart; changed in place. Its nodes are in no order then.
    """
    makers = {name: inner for inner in all_graphs(graph) for name in _made(inner)}
    kept: list[Any] = []
    moved: list[Any] = []
    done: set[str] = set()
    for node in graph.node:
        if node.op_type == "Cast":
            if node.output[0] in done:
                continue
            done.add(node.output[0])
            if makers.get(node.input[0], graph) is not graph:
                moved.append(onnx.NodeProto.FromString(node.SerializeToString()))
                continue
        kept.append(node)
    if len(kept) == len(graph.node):
        return
    for node in moved:
        makers[node.input[0]].node.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)


def weight_shares(model: Any) -> tuple[dict[str, float], dict[str, float]]:  # noqa: ANN401 - onnx is untyped
    """Return the shares of the weights' bytes by the operator that reads them.

    Args:
        model: The model; not changed.

    Returns:
        The shares of all readers, and of those within bodies alone. Both are of all weights.
    """
    if has_bodies(model.graph):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        name_values_apart(copy.graph)
        model = copy
    sizes = {t.name: _size_bytes(t) for graph in all_graphs(model.graph) for t in graph.initializer}
    sizes |= {name: tensor.ByteSize() for name, tensor in _constants(model.graph)}
    read: dict[str, int] = {}
    outside: dict[str, int] = {}
    for index, node in enumerate(all_nodes(model.graph)):
        for name in node.input:
            read[node.op_type] = read.get(node.op_type, 0) + sizes.pop(name, 0)
        if index < len(model.graph.node):  # the outer graph's nodes come first
            outside = dict(read)
    total = sum(read.values())
    inside = {name: size - outside.get(name, 0) for name, size in read.items()}
    return _shares(read, total), _shares(inside, total)


def parameters(graph: Any) -> int:  # noqa: ANN401 - onnx is untyped
    """Return how many numbers the weights of a graph and of its bodies hold."""
    stored = [tensor for inner in all_graphs(graph) for tensor in inner.initializer]
    stored += [tensor for _, tensor in _constants(graph)]
    return sum(int(np.prod(tensor.dims)) for tensor in stored)


def _shares(sizes: Mapping[str, int], total: int) -> dict[str, float]:
    return {name: size / total for name, size in sorted(sizes.items()) if size} if total else {}


def _constants(graph: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - onnx is untyped
    """Yield the constants of bodies: exporters store weights there as nodes."""
    for node in list(all_nodes(graph))[len(graph.node) :]:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], attribute.t


def _made(graph: Any) -> Iterator[str]:  # noqa: ANN401 - onnx is untyped
    """Yield the names that a graph gives: inputs, weights, and what its nodes make."""
    yield from (value.name for value in graph.input)
    yield from stored_names(graph)
    for node in graph.node:
        yield from (name for name in node.output if name)


def _referred(graph: Any) -> Iterator[str]:  # noqa: ANN401 - onnx is untyped
    yield from _made(graph)
    for node in graph.node:
        yield from node.input


def _rename(body: Any, around: Mapping[str, str], seen: set[str], taken: set[str]) -> None:  # noqa: ANN401
    own: dict[str, str] = {}
    for name in _made(body):
        if name in own:  # an input with a default is among the weights, too
            continue
        new = name
        number = 1
        while new in seen or (new != name and new in taken):
            number += 1
            new = f"{name}_{number}"
        own[name] = new
        seen.add(new)
    names = {**around, **own}
    values = [*body.input, *body.output, *body.value_info, *body.initializer]
    for value in (*values, *(tensor.values for tensor in body.sparse_initializer)):
        value.name = names.get(value.name, value.name)
    for node in body.node:
        for names_of in (node.input, node.output):
            renamed = [names.get(name, name) for name in names_of]
            del names_of[:]
            names_of.extend(renamed)
        for inner in bodies(node):
            _rename(inner, names, seen, taken)


def _size_bytes(tensor: Any) -> int:  # noqa: ANN401 - onnx is untyped
    """Return the size of a tensor with its data, wherever these are."""
    lengths = (int(e.value) for e in tensor.external_data if e.key == "length")
    return int(tensor.ByteSize()) + sum(lengths)
