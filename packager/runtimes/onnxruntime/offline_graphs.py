"""Makes in advance the graph that ONNX Runtime makes from a model when it loads the model.

Such a graph loads two to seven times as fast and computes no faster. Its weights are laid out in
blocks that suit the processor: 16 channels with AVX-512, 8 on other x86-64. ONNX Runtime reads a
file of the other kind without an error and computes wrong answers; this was measured both ways.

Rules:
- A graph is made only on a machine of the target's class, and only where that class is known.
- Only the same version of ONNX Runtime can use it: the operators of the layout are private.
- A device loads it with `graph_optimization_level` `disabled`, or it spends the time again.
- Equal models give equal bytes. ONNX Runtime names new values in the order of its hash tables, so
  this module gives them other names.

Source:
    ONNX Runtime, "Graph optimizations", section on offline mode; MLAS, `MlasNchwcGetBlockSize`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import onnx

from packager.errors import StepError
from packager.runtimes.common.onnx_files import optimize, save
from packager.sources.onnx_model import model_bytes
from packager.tools.quiet import tool
from runtime_adapters.processor import cpu_flags

_DECISIVE: Final = ("avx512f", "avx512_vnni", "avx_vnni")
"""The first decides the size of a block; the others may decide what ONNX Runtime makes of int8."""


def optimize_offline(
    model: Path, target: Path, *, architecture: str, isa_features: Collection[str]
) -> None:
    """Write the graph that this machine's ONNX Runtime would make when it loads a model.

    Args:
        model: A float or quantized model.
        target: The file to write.
        architecture: The target's architecture, as `uname -m` prints it.
        isa_features: The target's features, as /proc/cpuinfo names them.

    Raises:
        StepError: This machine is of another class, the model has branches or loops, or ONNX
            Runtime does not take it.
    """
    ours = layout_class(os.uname().machine, cpu_flags())
    theirs = layout_class(architecture, isa_features)
    if theirs is None or theirs != ours:
        raise StepError(
            f"an optimised graph for {theirs or architecture} cannot be made on {ours}",
            remedy="use the model without this optimisation; the device optimises it when it "
            "loads the model",
        )
    with tool("onnxruntime's optimizer"), tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "optimized.onnx"
        optimize(model_bytes(onnx.load(str(model))), made, level="all")
        optimized = onnx.load(str(made))
    _canonize(optimized)
    save(optimized, target)


def layout_class(architecture: str, isa_features: Collection[str]) -> str | None:
    """Name the processors that can share an optimised graph.

    Args:
        architecture: As `uname -m` prints it.
        isa_features: As /proc/cpuinfo names them.

    Returns:
        The class; None for an architecture whose classes are not known.
    """
    if architecture != "x86_64":
        return None
    return "+".join([architecture, *(name for name in _DECISIVE if name in isa_features)])


def _canonize(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Order nodes and weights as a walk from the outputs finds them, and number them in that order.

    Raises:
        StepError: A node holds a graph, whose names would have to change too.
    """
    graph = model.graph
    if any(a.type == onnx.AttributeProto.GRAPH for node in graph.node for a in node.attribute):
        raise StepError("a graph with branches or loops is not optimised offline")
    ordered = _from_outputs(graph)
    fixed = {value.name for value in (*graph.input, *graph.output)} | {""}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    renamed: dict[str, str] = {}
    used = [weights[name] for name in sorted(fixed & weights.keys())]
    for index, node in enumerate(ordered):
        node.name = f"{node.op_type}_{index}"
        for name in (*node.input, *node.output):
            if name in fixed or name in renamed:
                continue
            renamed[name] = f"{'weight' if name in weights else 'value'}_{len(renamed)}"
            if name in weights:
                weights[name].name = renamed[name]
                used.append(weights[name])
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    del graph.node[:]
    graph.node.extend(ordered)
    del graph.initializer[:]
    graph.initializer.extend(used)


def _from_outputs(graph: Any) -> list[Any]:  # noqa: ANN401 - onnx is untyped
    """Return copies of the nodes, each after those that it reads, found from the outputs."""
    producers = {name: node for node in graph.node for name in node.output if name}
    ordered: list[Any] = []
    done: set[int] = set()
    stack = [(producers[v.name], False) for v in reversed(graph.output) if v.name in producers]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        if ready:
            done.add(id(node))
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            ordered.append(copy)
            continue
        stack.append((node, True))
        stack.extend((producers[n], False) for n in reversed(node.input) if n in producers)
    return ordered
