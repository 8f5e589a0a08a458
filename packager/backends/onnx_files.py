"""ONNX graphs as files that are the same in every run, whatever the tool that wrote them.

Rules:
- Every node of the graph has a name of its own; names that are there and unique stay.
- Only the operator sets that nodes use are declared: ONNX Runtime declares all that it knows, and
  other or older runtimes refuse those that they do not.
- Nothing tells where, when or by which call a file was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import onnx

from packager.errors import StepError
from packager.sources.onnx_model import clamp_ir, model_bytes
from runtime_adapters.onnxruntime_library import onnxruntime

_PROVIDERS: Final = ["CPUExecutionProvider"]
_SILENT: Final = 4
"""Log severity: fatal only; errors are raised."""

_MAIN_DOMAINS: Final = frozenset({"", "ai.onnx"})


def name_nodes(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Give a name to each node that has none or shares it, from its operator and its place.

    Args:
        model: The model, which is changed.
    """
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            name = f"{node.op_type}_{index}"
            while name in taken:
                name += "_"
            node.name = name
            taken.add(name)
        seen.add(node.name)


def save(model: Any, target: Path) -> None:  # noqa: ANN401 - onnx is untyped
    """Write a model that ONNX Runtime loads.

    Args:
        model: The model, which is changed.
        target: The file.

    Raises:
        StepError: ONNX Runtime does not load it.
    """
    tidy(model)
    content = model_bytes(model)
    try:
        session_of(content)
    except Exception as exc:
        line = str(exc).splitlines()[0][:200]
        raise StepError(f"onnxruntime does not load what its tool wrote: {line}") from exc
    target.write_bytes(content)


def tidy(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Take out what is no part of the computation.

    Args:
        model: The model, which is changed.
    """
    used = {node.domain for node in _nodes(model)} | _MAIN_DOMAINS
    kept = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    for part in (model, model.graph, *model.graph.node, *model.graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    del model.graph.value_info[:]
    clamp_ir(model)


def optimize(content: bytes, target: Path, *, level: str) -> None:
    """Write the graph that ONNX Runtime makes of a model when it loads it.

    Args:
        content: The model.
        target: The file to write.
        level: `basic` for what suits every processor, `all` for what suits this one.
    """
    levels = onnxruntime.GraphOptimizationLevel
    options = _options(threads=1)
    options.optimized_model_filepath = str(target)
    options.graph_optimization_level = {
        "basic": levels.ORT_ENABLE_BASIC,
        "all": levels.ORT_ENABLE_ALL,
    }[level]
    onnxruntime.InferenceSession(content, options, providers=_PROVIDERS)


def session_of(model: Path | bytes, *, threads: int = 1) -> onnxruntime.InferenceSession:
    """Open a model as a device would: on the processor, with every optimisation.

    Args:
        model: A file, or its content.
        threads: Threads that a call may use.

    Returns:
        The session.
    """
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, _options(threads=threads), providers=_PROVIDERS)


def _options(*, threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _nodes(model: Any) -> Iterator[Any]:  # noqa: ANN401 - onnx is untyped
    yield from _graph_nodes(model.graph)
    for function in model.functions:
        yield from _graph_nodes(function)


def _graph_nodes(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - onnx is untyped
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graph_nodes(attribute.g)
            for inner in attribute.graphs:
                yield from _graph_nodes(inner)
