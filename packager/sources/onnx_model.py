"""Reads and checks ONNX models, and makes a clean copy for quantizers and other runtimes.

This module runs in a step's process: a broken model may crash the parser.

Rules:
- This module only reads the user's file.
- A fault of the model is one `ModelError` with one line.
- The clean copy computes the same. If a tool's change cannot be proven useful, the change is left
  out.
- A copy contains no trace of where it was made or which tool made it.

Source:
    ONNX, docs/IR.md and docs/Versioning.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]  # has no stubs

from packager.errors import ModelError
from packager.fault_text import one_line
from packager.plan.figures import ModelFacts
from packager.plan.recipes import WEIGHTS_FILE
from packager.sources.onnx_bodies import parameters, weight_shares
from packager.sources.onnx_checks import (
    check_form,
    check_weights,
    domains_of,
    opset_of,
    tensor_spec,
)
from packager.sources.onnx_external import (
    MAX_MODEL_BYTES,
    external_locations,
    take_external_data,
)
from packager.sources.onnx_graph import (
    all_graphs,
    all_nodes,
    name_nodes,
    sort_nodes,
    stored_names,
)
from packager.sources.onnx_reading import NEWEST_IR, inlined, read_graph

WEIGHTS_APART_IR: Final = 4
"""From this version on a weight need not be an input of the graph as well."""

SUPPORTED_OPSET: Final = 7
"""The oldest that ONNX Runtime promises to run; older graphs are converted when they are read."""

OLDEST_OPSET: Final = 13
"""Quantization per channel needs this one; older graphs are converted to it."""

MAX_INFLATION: Final = 1.2
MAX_INFLATION_BYTES: Final = 1024**2
"""Folding computed weights may make a graph larger; beyond both limits it is left as it was."""

MAX_FOLDED_BYTES: Final = 64 * 1024
"""Limit of one folded tensor, where a graph generates larger ones."""

_GENERATORS: Final = frozenset({"ConstantOfShape", "Expand", "EyeLike", "Range", "Tile"})
"""Operators that make large tensors out of small ones."""


def external_files(path: Path) -> tuple[str, ...]:
    """List the files of external tensor data that a model names, and check them.

    Args:
        path: The model.

    Returns:
        Relative paths, sorted.

    Raises:
        ModelError: Not a model, empty, or data that are missing, too short or elsewhere.
    """
    return external_locations(read_graph(path), path.parent)


def load_checked(path: Path) -> Any:  # noqa: ANN401 - onnx is untyped
    """Read a model with its external data, check it, and put its nodes in order.

    Args:
        path: The model.

    Returns:
        The model, self-contained, without functions of its own.

    Raises:
        ModelError: Not a model, not valid, or of a kind that is not supported.
    """
    model = read_graph(path)
    take_external_data(model, path.parent)
    if model.ByteSize() > MAX_MODEL_BYTES:
        raise ModelError(
            f"the model with its external data is over {MAX_MODEL_BYTES} bytes",
            remedy="split the model or store its weights in fewer bits",
        )
    if opset_of(model) == 0:
        model.opset_import.add(domain="", version=OLDEST_OPSET)
    model = inlined(model)
    sort_nodes(model.graph)
    check_form(model)
    check_weights(model)
    if opset_of(model) >= SUPPORTED_OPSET:
        return model
    notes: list[str] = []
    model.ir_version = max(model.ir_version, WEIGHTS_APART_IR)
    converted = _newer_opset(model, notes)
    if converted is model:
        raise ModelError(
            f"the model's {notes[0]}", remedy=f"export it with opset {OLDEST_OPSET} or newer"
        )
    return converted


def clean(model: Any, *, apart: bool = False) -> tuple[Any, tuple[str, ...]]:  # noqa: ANN401 - untyped
    """Make a clean copy: weights that can be folded, a simpler graph, no texts, a common format.

    Args:
        model: A checked model; not changed.
        apart: Whether its weights are in another file; what needs their values is left out then.

    Returns:
        The copy, every node of it with a name of its own, and notes on what was done.
    """
    notes: list[str] = []
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, WEIGHTS_APART_IR)
    strip(copy)
    dropped = _free_weights(copy.graph)
    if dropped and dropped == len(stored_names(copy.graph)):  # others are told one by one
        notes.append(f"{dropped} weights were inputs of the graph; the build made them constants")
    if apart:
        notes.append(
            f"its weights stay in a file of their own, {WEIGHTS_FILE}, so the build did not "
            "simplify the graph"
        )
    else:
        copy = _newer_opset(copy, notes)
        copy = _slimmed(copy, notes)
    strip(copy)
    name_nodes(copy.graph)
    clamp_ir(copy)
    return copy, tuple(notes)


def clamp_ir(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Lower the format version to one that every supported runtime reads."""
    model.ir_version = min(model.ir_version, NEWEST_IR)


def model_bytes(model: Any) -> bytes:  # noqa: ANN401 - onnx is untyped
    """Return a model's bytes; equal models give equal bytes.

    Args:
        model: The model.

    Returns:
        The bytes.

    Raises:
        ModelError: It is over what a protocol buffer can hold.
    """
    try:
        data: bytes = model.SerializeToString(deterministic=True)
    except EncodeError as exc:
        raise ModelError(
            f"the model is over {MAX_MODEL_BYTES} bytes in one piece",
            remedy="export it to an ONNX file with external data, and build that file",
        ) from exc
    return data


def facts_of(model: Any, notes: tuple[str, ...]) -> ModelFacts:  # noqa: ANN401 - onnx is untyped
    """Collect what the planner must know.

    Args:
        model: A clean model.
        notes: What was done to it.

    Returns:
        The facts.

    Raises:
        ModelError: An input or output of unknown rank or unsupported type.
    """
    inferred = with_shapes(model)
    inputs = tuple(tensor_spec(value, "input") for value in inferred.graph.input)
    outputs = tuple(tensor_spec(value, "output") for value in inferred.graph.output)
    if not inputs or not outputs:
        raise ModelError(
            "the model has no inputs or no outputs",
            remedy="export it with at least one input that is not a weight, and one output",
        )
    shares, inner = weight_shares(model)
    return ModelFacts(
        inputs=inputs,
        outputs=outputs,
        operators=tuple(sorted({node.op_type for node in all_nodes(model.graph)})),
        domains=domains_of(model),
        opset=opset_of(model),
        parameters=parameters(model.graph),
        weights=shares,
        inner_weights=inner,
        notes=notes,
    )


def with_shapes(model: Any) -> Any:  # noqa: ANN401 - onnx is untyped
    """Return a copy with the shapes that ONNX can infer; the model itself where it cannot."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # noqa: BLE001 - declared shapes must do then
        return model


def strip(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Remove texts, which hold paths and stack traces of the exporting machine, and old shapes."""
    for field in ("producer_name", "producer_version", "configuration"):
        model.ClearField(field)
    parts = [model]
    for graph in all_graphs(model.graph):
        del graph.value_info[:]  # stale shapes break quantizers, which infer them anew
        parts += [graph, *graph.input, *graph.output, *graph.initializer, *graph.node]
        for node in graph.node:
            node.ClearField("device_configurations")
            for attribute in node.attribute:
                attribute.ClearField("doc_string")
    for part in parts:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def _free_weights(graph: Any) -> int:  # noqa: ANN401 - onnx is untyped
    """Take weights out of the graph's inputs: a runtime may not fold an input."""
    weights = stored_names(graph)
    kept = [value for value in graph.input if value.name not in weights]
    dropped = len(graph.input) - len(kept)
    if dropped:
        del graph.input[:]
        graph.input.extend(kept)
    return dropped


def _newer_opset(model: Any, notes: list[str]) -> Any:  # noqa: ANN401 - onnx is untyped
    opset = opset_of(model)
    if opset >= OLDEST_OPSET:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, OLDEST_OPSET)
        onnx.checker.check_model(converted)
    except Exception:  # noqa: BLE001 - the converter names lines of its own code
        notes.append(f"opset {opset} could not be converted to {OLDEST_OPSET}")
        return model
    if _names(converted) != _names(model):
        notes.append(
            f"the build did not convert opset {opset}, because inputs or outputs would change"
        )
        return model
    notes.append(f"opset {opset} was converted to {OLDEST_OPSET}")
    return converted


def _slimmed(model: Any, notes: list[str]) -> Any:  # noqa: ANN401 - onnx is untyped
    import onnxslim  # takes seconds, and only this one step needs it

    before = onnx.ModelProto()
    before.CopyFrom(model)
    limit = {"size_threshold": MAX_FOLDED_BYTES} if _makes_weights(model) else {}
    try:
        slim = onnxslim.slim(model, **limit)
        onnx.checker.check_model(slim)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever a simplifier raises
        notes.append(f"the graph could not be simplified: {one_line(exc)}")
        return before
    if _names(slim) != _names(before):
        notes.append("the build did not simplify the graph, because inputs or outputs would change")
        return before
    allowed = max(MAX_INFLATION * before.ByteSize(), before.ByteSize() + MAX_INFLATION_BYTES)
    if slim.ByteSize() > allowed:
        notes.append("the build did not simplify the graph, because it would grow")
        return before
    if len(slim.graph.node) != len(before.graph.node):
        notes.append(f"{len(before.graph.node)} nodes became {len(slim.graph.node)}")
    return slim


def _makes_weights(model: Any) -> bool:  # noqa: ANN401 - onnx is untyped
    """Tell whether a graph generates a tensor that is larger than what may be folded."""
    made = {
        name for node in model.graph.node if node.op_type in _GENERATORS for name in node.output
    }
    if not made:
        return False
    return any(
        value.name in made
        and np.prod([d.dim_value for d in value.type.tensor_type.shape.dim], dtype=float)
        > MAX_FOLDED_BYTES // 4
        for value in _inferred_values(model)
    )


def _inferred_values(model: Any) -> list[Any]:  # noqa: ANN401 - onnx is untyped
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001 - nothing is known of sizes then
        return []
    return [*inferred.graph.value_info]


def _names(model: Any) -> tuple[list[str], list[str]]:  # noqa: ANN401 - onnx is untyped
    return [v.name for v in model.graph.input], [v.name for v in model.graph.output]
