"""Writes ONNX graphs to files that are the same in every run, whichever tool made the graph.

Rules:
- A file declares only the operator sets that its nodes use. ONNX Runtime declares all that it
  knows, and other or older runtimes refuse a set that they do not know.
- A file does not tell where, when or by which call it was made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from packager.errors import StepError
from packager.fault_text import one_line
from packager.sources.onnx_graph import all_graphs, all_nodes
from packager.sources.onnx_model import clamp_ir, model_bytes
from runtime_adapters.onnxruntime.library import onnxruntime

_PROVIDERS: Final = ["CPUExecutionProvider"]
_SILENT: Final = 4
"""Log severity: fatal only; errors are raised."""

_MAIN_DOMAINS: Final = frozenset({"", "ai.onnx"})


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
        raise StepError(
            f"onnxruntime cannot load the model that its own tool wrote: {one_line(exc)}"
        ) from exc
    target.write_bytes(content)


def tidy(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Remove what is not part of the computation.

    Args:
        model: The model, which is changed.
    """
    used = {n.domain for part in (model.graph, *model.functions) for n in all_nodes(part)}
    used |= _MAIN_DOMAINS
    kept = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    for part in (model, model.graph, *model.graph.node, *model.graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    for graph in all_graphs(model.graph):
        del graph.value_info[:]
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


def ranks_in(session: onnxruntime.InferenceSession) -> dict[str, int]:
    """Return how many axes each input of a model has."""
    return {value.name: len(value.shape) for value in session.get_inputs()}


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


def check_loads(model: Path) -> None:
    """Let ONNX Runtime load a model whose weights are beside it, without a copy of them in memory.

    Args:
        model: The file.

    Raises:
        StepError: ONNX Runtime does not load it.
    """
    options = _options(threads=1)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        onnxruntime.InferenceSession(str(model), options, providers=_PROVIDERS)
    except Exception as exc:
        raise StepError(
            f"onnxruntime cannot load the model that its own tool wrote: {one_line(exc)}"
        ) from exc


def _options(*, threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
