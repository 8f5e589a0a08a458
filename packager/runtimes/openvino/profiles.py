"""Makes rows of what OpenVINO tells of a compiled model: its nodes and their times. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from packager.layers.memory import Node, live_peak
from packager.layers.sums import precision_text
from packager.layers.values import Layer, MemoryPlan

_CONSTANT: Final = "Const"
_INPUT: Final = "Input"
_ENDS: Final = frozenset({_INPUT, "Output", _CONSTANT})
_VIEW: Final = "Reshape"
_SOURCE: Final = (
    "computed from the shapes that OpenVINO reports, in the order in which it runs the nodes, as "
    "if only reshapes that take no time worked in place"
)


class RuntimeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of OpenVINO's runtime model."""

    name: str
    operator: str
    """`layerType`."""

    kernel: str
    """`primitiveType`."""

    precision: str
    """`runtimePrecision`: what it computes in."""

    output_precision: str
    """The first of `outputPrecisions`."""

    originals: tuple[str, ...]
    """`originalLayersNames`: the model's layers that are fused in it."""

    inputs: tuple[str, ...]
    """Values that it reads, as `<node>:<output>`."""

    outputs: tuple[tuple[str, int | None], ...]
    """Values that it makes, with their bytes; None where a shape is open."""


def layers_of(nodes: Sequence[RuntimeNode], times: Mapping[str, float]) -> tuple[Layer, ...]:
    """Return a row for each node that depends on an input.

    Args:
        nodes: In the order in which they run.
        times: The microseconds of the nodes, by name. OpenVINO says of a node whose mean is below
            one that it did not run, as of one that works in place.

    Returns:
        The rows.
    """
    return tuple(
        Layer(
            name=node.name,
            operator=node.operator,
            kernel=node.kernel,
            precision=precision_text([node.precision], node.output_precision),
            time_us=times.get(node.name, 0.0),
            output_bytes=_sum(node),
            fused=node.originals,
        )
        for node in _varying(nodes)
        if node.operator not in _ENDS
    )


def mean_times(
    before: Mapping[str, float], warm_ups: int, after: Mapping[str, float], runs: int
) -> dict[str, float]:
    """Return the mean time of each node without the inferences that warmed up.

    OpenVINO's counters are means over all inferences of a compiled model, in whole microseconds,
    and cannot be reset; the first inference may take a hundred times as long as the others.

    Args:
        before: What the counters showed after the first inferences.
        warm_ups: How many these were.
        after: What they showed at the end.
        runs: How many inferences there were in between.

    Returns:
        Microseconds by node, up to about two too few, because the counters round down twice.

    Source:
        OpenVINO, `src/plugins/intel_cpu/src/perf_count.h`: `finish_itr` and `avg`.
    """
    return {
        name: max(0.0, (mean * (warm_ups + runs) - before.get(name, 0.0) * warm_ups) / runs)
        for name, mean in after.items()
    }


def _varying(nodes: Sequence[RuntimeNode]) -> list[RuntimeNode]:
    """Return the nodes that depend on an input; the others were computed in advance."""
    found: list[RuntimeNode] = []
    values: set[str] = set()
    for node in nodes:
        if node.operator == _INPUT or values & set(node.inputs):
            values |= {value for value, _ in node.outputs}
            found.append(node)
    return found


def weights_bytes(nodes: Sequence[RuntimeNode]) -> int | None:
    """Return the bytes of all constants; None if the size of one is not known."""
    sizes = [_sum(node) for node in nodes if node.operator == _CONSTANT]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def memory_of(nodes: Sequence[RuntimeNode], times: Mapping[str, float]) -> MemoryPlan | None:
    """Return the memory of the values between the nodes.

    Args:
        nodes: In the order in which they run.
        times: The microseconds of the nodes, by name.

    Returns:
        The plan; None where a shape is open.
    """
    known = _varying(nodes)
    if any(_sum(node) is None for node in known):
        return None
    plan = [
        Node(
            name=node.name,
            inputs=_varying_first(node, known),
            outputs=tuple((value, size or 0) for value, size in node.outputs),
            in_place=node.operator == _VIEW and not times.get(node.name),
        )
        for node in known
        if node.operator not in _ENDS
    ]
    inputs = {value: size or 0 for n in known if n.operator == _INPUT for value, size in n.outputs}
    kept = [value for node in known if node.operator == "Output" for value in node.inputs]
    peak = live_peak(plan, inputs, kept)
    return MemoryPlan(peak_bytes=peak.bytes, at=peak.at, source=_SOURCE)


def _varying_first(node: RuntimeNode, known: Sequence[RuntimeNode]) -> tuple[str, ...]:
    """Put the values before the constants: what works in place works on a value."""
    made = {value for other in known for value, _ in other.outputs}
    return tuple(sorted(node.inputs, key=lambda value: value not in made))


def _sum(node: RuntimeNode) -> int | None:
    sizes = [size for _, size in node.outputs]
    return None if None in sizes else sum(size for size in sizes if size is not None)
