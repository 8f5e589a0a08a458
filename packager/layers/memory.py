"""The memory of a graph's values, from their sizes and the order of its nodes. Pure.

The peak is the greatest sum of the values that are alive while a node runs: its inputs, its
outputs, and what a later node or the caller still needs. A runtime may need less, where a node
writes its output over an input, and more, for the scratch memory of a kernel.

Source:
    Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020: the
    greatest sum of live tensors ("the maximum positional breadth") is a lower bound of any plan
    that shares memory between them and moves none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph, as far as memory depends on it."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, int], ...]
    """Each value that it makes, and its bytes."""

    in_place: bool = False
    """Its outputs are its first input under other names, and need no memory."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The greatest sum of live values."""

    bytes: int
    at: str
    """The node that runs then; the first, where several are equal."""


def live_peak(nodes: Sequence[Node], given: Mapping[str, int], kept: Collection[str]) -> Peak:
    """Find the greatest sum of values that are alive at one time.

    Args:
        nodes: In the order in which they run; each after those whose values it reads.
        given: The bytes of the values that exist from the start: the graph's inputs. A value that
            neither this nor a node names is a weight, and does not count.
        kept: Values that must last to the end: the graph's outputs.

    Returns:
        The peak; zero bytes for a graph without nodes.
    """
    place: dict[str, str] = {}
    """Value to the value whose memory it is."""

    sizes = dict(given)
    for node in nodes:
        whole = place.get(node.inputs[0], node.inputs[0]) if node.inputs else ""
        for value, size_bytes in node.outputs:
            if node.in_place and whole in sizes:
                place[value] = whole
            else:
                sizes[value] = size_bytes
    last = {place.get(value, value): len(nodes) for value in kept}
    first = dict.fromkeys(given, 0)
    for index, node in enumerate(nodes):
        for value in (*node.inputs, *(value for value, _ in node.outputs)):
            held = place.get(value, value)
            last[held] = max(last.get(held, index), index)
            first.setdefault(held, index)
    changes = [0] * (len(nodes) + 1)
    for value, size_bytes in sizes.items():
        changes[first.get(value, 0)] += size_bytes
        changes[min(last.get(value, 0), len(nodes) - 1) + 1] -= size_bytes
    best, alive = Peak(bytes=0, at=""), 0
    for index, node in enumerate(nodes):
        alive += changes[index]
        if alive > best.bytes:
            best = Peak(bytes=alive, at=node.name)
    return best
