"""Walks over ONNX graphs, sorts their nodes, and names nodes and values in errors.

Rules:
- Nodes in a wrong order get a stable sort. A graph with a cycle is refused, and the error shows the
  cycle.
- A body of `If`, `Loop` or `Scan` sees the names of the graphs around it.

Source:
    ONNX, docs/IR.md ("Graphs", "Names within a graph").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import onnx

from packager.errors import ModelError

MAX_SHOWN: Final = 8
"""Nodes of a cycle that a fault names."""

_NAME_LENGTH: Final = 80


def shown(name: str) -> str:
    """Return a name from a model as a fault may show it: quoted, in one line, not too long."""
    return repr(name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 3] + "...")


def node_name(node: Any) -> str:  # noqa: ANN401 - onnx is untyped
    """Return how a node is called: its name, or its first output's where it has none."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{shown(node.op_type)[1:-1]} {shown(name)}"


def bodies(node: Any) -> Iterator[Any]:  # noqa: ANN401 - onnx is untyped
    """Yield the graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - onnx is untyped
    """Yield a graph and all graphs within."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from all_graphs(body)


def all_nodes(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - onnx is untyped
    """Yield the nodes of a graph and of all graphs within."""
    for inner in all_graphs(graph):
        yield from inner.node


def all_tensors(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - onnx is untyped
    """Yield every stored tensor: weights, and attributes of nodes."""
    for inner in all_graphs(graph):
        yield from inner.initializer
        for sparse in inner.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in inner.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                sparse_tensors = [*attribute.sparse_tensors]
                if attribute.HasField("sparse_tensor"):
                    sparse_tensors.append(attribute.sparse_tensor)
                for sparse in sparse_tensors:
                    yield from (sparse.values, sparse.indices)


def check_texts(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Check that all names are text: the format's reader returns other names as bytes.

    Args:
        model: A model as it was read.

    Raises:
        ModelError: A name is not UTF-8.
    """
    texts = [opset.domain for opset in model.opset_import]
    for graph in all_graphs(model.graph):
        texts += [value.name for value in (*graph.input, *graph.output)]
        for node in graph.node:
            texts += [node.name, node.op_type, node.domain, *node.input, *node.output]
            texts += [attribute.name for attribute in node.attribute]
    for tensor in all_tensors(model.graph):
        texts.append(tensor.name)
        for entry in tensor.external_data:
            texts += [entry.key, entry.value]
    if not all(isinstance(text, str) for text in texts):
        raise ModelError(
            "the model has a name that is not text, so its file is damaged",
            remedy="copy, download or export the file again",
        )


def stored_names(graph: Any) -> set[str]:  # noqa: ANN401 - onnx is untyped
    """Return the names of a graph's weights."""
    sparse = {tensor.values.name for tensor in graph.sparse_initializer}
    return sparse | {tensor.name for tensor in graph.initializer}


def name_nodes(graph: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Give a new name to a node without one or with another node's: tools choose nodes by name.

    Args:
        graph: The graph; changed in place, and so are the graphs within.
    """
    taken = {node.name for node in all_nodes(graph)}
    seen: set[str] = set()
    for index, node in enumerate(all_nodes(graph)):
        if not node.name or node.name in seen:
            name = f"{node.op_type}_{index}"
            while name in taken:
                name += "_"
            node.name = name
            taken.add(name)
        seen.add(node.name)


def sort_nodes(graph: Any) -> bool:  # noqa: ANN401 - onnx is untyped
    """Put the nodes of a graph, and of all graphs within, in an order in which they can run.

    Args:
        graph: The graph; changed in place where its order was wrong.

    Returns:
        Whether anything was moved.

    Raises:
        ModelError: A name that nothing makes, or a cycle.
    """
    return _sort(graph, frozenset())


def _sort(graph: Any, outer: frozenset[str]) -> bool:  # noqa: ANN401 - onnx is untyped
    given = outer | stored_names(graph) | {value.name for value in graph.input}
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needs: list[set[int]] = []
    for node in graph.node:
        wanted = _wanted(node)
        lost = sorted(wanted - given - makers.keys())
        if lost:
            raise ModelError(
                f"the node {node_name(node)} takes {shown(lost[0])}, which no node produces",
                remedy="export the model again; a part of its graph is missing",
            )
        needs.append({makers[name] for name in wanted - given})
    order = _order(graph, needs)
    moved = order != list(range(len(order)))
    if moved:
        nodes = [onnx.NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
        del graph.node[:]
        graph.node.extend(nodes)
    inside = given | makers.keys()
    return any([moved, *(_sort(body, inside) for node in graph.node for body in bodies(node))])


def _wanted(node: Any) -> set[str]:  # noqa: ANN401 - onnx is untyped
    """Return the names that a node, with the graphs within, takes from outside."""
    names = {name for name in node.input if name}
    for body in bodies(node):
        inner: set[str] = {value.name for value in body.output if value.name}
        own = stored_names(body) | {value.name for value in body.input}
        for child in body.node:
            inner |= _wanted(child)
            own |= set(child.output)
        names |= inner - own
    return names


def _order(graph: Any, needs: list[set[int]]) -> list[int]:  # noqa: ANN401 - onnx is untyped
    """Return a stable order of the nodes: a sorted graph keeps its own.

    Raises:
        ModelError: There is none.
    """
    done: set[int] = set()
    order: list[int] = []
    for start in range(len(needs)):
        stack, entered = [start], {start}
        while stack:
            index = stack[-1]
            waiting = min((need for need in needs[index] if need not in done), default=None)
            if waiting is None:
                if index not in done:
                    done.add(index)
                    order.append(index)
                stack.pop()
            elif waiting in entered:
                path = _cycle(graph, stack[stack.index(waiting) :])
                raise ModelError(
                    f"the model's graph has a cycle: {path}",
                    remedy="export the model again; use Loop or Scan for a recurrence",
                )
            else:
                stack.append(waiting)
                entered.add(waiting)
    return order


def _cycle(graph: Any, indices: list[int]) -> str:  # noqa: ANN401 - onnx is untyped
    names = [node_name(graph.node[index]) for index in reversed(indices)]
    path = names if len(names) <= MAX_SHOWN else [*names[:MAX_SHOWN], "..."]
    return " -> ".join([*path, names[0]])
