"""Finds which layers of a model ONNX Runtime fused into each node that it runs. Pure.

ONNX Runtime does not tell. But it keeps the names of most values and nodes, so the model's graph
and the graph that it runs can be laid side by side:

1. A node that ran stands for the model's node with its name, or for the one that makes a value of
   the same name (`_token_<n>`, `_nchwc` and `/<name>Fusion` are what ONNX Runtime adds to a name).
2. If only the last of the nodes in it is known, those before it are in it too, back to the one
   with its operator (`Conv` of `FusedConv`) or to values of the graph that ran. What prepares its
   inputs is in it: constants, and `DequantizeLinear`. `QuantizeLinear` ends what came before.
3. Any other node of the model that did not run was fused into the last node that made one of its
   inputs: it cannot have been computed earlier, and its value is not there later.
4. What follows from constants alone was computed in advance.

Source:
    ONNX Runtime 1.31: `NchwcTransformerImpl` (a node is named after a value, with `_nchwc`),
    `GraphTransformer`s that keep the name of the last value; `GenerateNodeName` for `_token_`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Final

import msgspec

_ADDED: Final = re.compile(r"_token_\d+$")
_NCHWC: Final = "_nchwc"
_FUSION: Final = re.compile(r"/\w+Fusion/?$")
_MOVES: Final = frozenset({
    "Cast", "Flatten", "Identity", "Reshape", "ReorderInput", "ReorderOutput", "Squeeze",
    "Transpose", "Unsqueeze",
})  # fmt: skip
"""ONNX Runtime adds such nodes around others, and they make values with the model's names. They
compute nothing, so they stand only for one another."""

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_CONSTANT: Final = "Constant"


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def label(self) -> str:
        """What a person finds it by: nodes may have no name."""
        return self.name or f"{self.operator} of {(self.outputs or ('nothing',))[0]}"


class Fusions(msgspec.Struct, frozen=True, kw_only=True):
    """Which layers of the model are where."""

    fused: tuple[tuple[str, ...], ...]
    """For each node that ran: labels of the model's nodes, those that compute first."""

    removed: tuple[str, ...]
    """The model's nodes that are in none."""


def find_fusions(
    model: Sequence[GraphNode], ran: Sequence[GraphNode], inputs: Collection[str]
) -> Fusions:
    """Lay the model's graph and the one that ran side by side.

    Args:
        model: The model's nodes, in any order: not every writer of ONNX files sorts them.
        ran: The nodes that ran, in their order.
        inputs: The model's inputs; what neither they nor a node makes is a weight.

    Returns:
        What was fused into each of `ran`.
    """
    model = _sorted(model)
    makers = _makers(model)
    owners = _namesakes(model, ran, makers)
    constant = _constants(model, inputs)
    visible = {value for node in ran for value in node.outputs}
    members: list[set[int]] = [set() for _ in ran]
    for index, owner in owners.items():
        members[owner].add(index)
        last = _is_named_after_value(model[index], ran[owner])
        waiting = [index]
        while waiting:
            current = model[waiting.pop()]
            more = last and current.operator not in ran[owner].operator
            for value in current.inputs:
                maker = makers.get(value)
                if maker is None or maker in owners or maker in members[owner]:
                    continue
                operator = model[maker].operator
                prepares = more or maker in constant or operator == _DEQUANTIZE
                if prepares and value not in visible and operator != _QUANTIZE:
                    members[owner].add(maker)
                    waiting.append(maker)
    placed = {index: owner for owner, found in enumerate(members) for index in found}
    for index, node in enumerate(model):
        if index in placed or index in constant:
            continue
        before = [placed[makers[v]] for v in node.inputs if makers.get(v) in placed]
        if before:
            placed[index] = max(before)
            members[placed[index]].add(index)
    return Fusions(
        fused=tuple(_labels(model, found) for found in members),
        removed=_labels(model, set(range(len(model))) - placed.keys()),
    )


def _sorted(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Put each node after those whose values it reads."""
    makers = _makers(nodes)
    needs = {
        index: {makers[value] for value in node.inputs if value in makers} - {index}
        for index, node in enumerate(nodes)
    }
    return [nodes[index] for index in TopologicalSorter(needs).static_order()]


def _makers(nodes: Sequence[GraphNode]) -> dict[str, int]:
    return {value: index for index, node in enumerate(nodes) for value in node.outputs if value}


def _namesakes(
    model: Sequence[GraphNode], ran: Sequence[GraphNode], makers: Mapping[str, int]
) -> dict[int, int]:
    """Return the node that ran, for each of the model's nodes that one stands for."""
    named = {node.name: index for index, node in reversed(tuple(enumerate(model))) if node.name}
    owners: dict[int, int] = {}
    found: set[int] = set()
    ways: tuple[Callable[[GraphNode], list[int | None]], ...] = (
        lambda node: [named.get(node.name)],
        lambda node: [named.get(_ADDED.sub("", node.name)), makers.get(_nchwc_value(node))],
        lambda node: [makers.get(value) for value in node.outputs],
        lambda node: [named.get(_FUSION.sub("", _ADDED.sub("", node.name)))],
    )
    for way in ways:
        for position, node in enumerate(ran):
            if position in found:
                continue
            stands = (i for i in way(node) if i is not None and i not in owners)
            index = next((i for i in stands if _can_be(node, model[i])), None)
            if index is not None:
                owners[index] = position
                found.add(position)
    return owners


def _is_named_after_value(node: GraphNode, ran: GraphNode) -> bool:
    """Tell whether a node of the model is the last of those in the one that ran."""
    return bool(set(node.outputs) & {*ran.outputs, _nchwc_value(ran)} - {""})


def _can_be(node: GraphNode, original: GraphNode) -> bool:
    return node.operator not in _MOVES or original.operator in _MOVES


def _nchwc_value(node: GraphNode) -> str:
    plain = _ADDED.sub("", node.name)
    return plain.removesuffix(_NCHWC) if plain.endswith(_NCHWC) else ""


def _constants(model: Sequence[GraphNode], inputs: Collection[str]) -> set[int]:
    """Return the nodes whose values follow from weights and constants alone."""
    varying = set(inputs)
    found: set[int] = set()
    for index, node in enumerate(model):
        if node.operator == _CONSTANT or (any(node.inputs) and not varying & set(node.inputs)):
            found.add(index)
        else:
            varying |= set(node.outputs) - {""}
    return found


def _labels(model: Sequence[GraphNode], indices: set[int]) -> tuple[str, ...]:
    rounding = (_QUANTIZE, _DEQUANTIZE)
    chosen = sorted(indices, key=lambda index: (model[index].operator in rounding, index))
    return tuple(model[i].label for i in chosen if model[i].operator != _CONSTANT)
