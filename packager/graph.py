"""ONNX graphs: read, check, and make a clean copy that quantizers and other runtimes take well.

Runs in a step's process: a broken model may crash the parser.

Rules:
- The user's file is only read.
- A fault of the model is one `ModelError` with one line.
- The clean copy computes the same; where a tool cannot prove its worth its work is left out.

Source:
    ONNX, docs/IR.md and docs/ExternalData.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from onnx import TensorProto, numpy_helper

from packager.errors import ModelError
from packager.plan import ModelFacts
from wire.manifest import Datatype, TensorSpec

MAX_MODEL_BYTES: Final = 2**31 - 1
"""What a protocol buffer can hold."""

NEWEST_OPSET: Final = 26
NEWEST_IR: Final = 10
"""ONNX Runtime 1.20, the oldest that devices may have, reads up to this version of the format."""

OLDEST_OPSET: Final = 13
"""Quantization per channel needs this one; older graphs are converted to it."""

MAX_INFLATION: Final = 1.2
"""A graph that folding makes larger than this (computed weights) is left as it was."""

_DATATYPES: Final[dict[int, Datatype]] = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
}
_FLOATS: Final = frozenset({TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE})


def external_files(path: Path) -> tuple[str, ...]:
    """List the files of external tensor data that a model names.

    Args:
        path: The model.

    Returns:
        Relative paths, sorted.

    Raises:
        ModelError: Not a model, empty, or a path that leaves the model's folder.
    """
    model = _read(path)
    found: set[str] = set()
    for tensor in _tensors(model.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            found |= {entry.value for entry in tensor.external_data if entry.key == "location"}
    for location in found:
        pure = PurePosixPath(location)
        if pure.is_absolute() or ".." in pure.parts or "\\" in location:
            raise ModelError(f"the model's external data lie outside its folder: {location[:80]!r}")
    return tuple(sorted(found))


def load_checked(path: Path) -> Any:  # noqa: ANN401 - onnx is untyped
    """Read a model with its external data and check it.

    Args:
        path: The model.

    Returns:
        The model, self-contained.

    Raises:
        ModelError: Not a model, not valid, or of a kind that is not supported.
    """
    model = _read(path)
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
        if model.ByteSize() > MAX_MODEL_BYTES:
            raise ModelError(f"the model with its external data is over {MAX_MODEL_BYTES} bytes")
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, OSError, ValueError) as exc:
        raise ModelError(f"the model is not valid ONNX: {_first_line(exc)}") from exc
    newest = max((o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}), default=0)
    if newest > NEWEST_OPSET:
        raise ModelError(
            f"the model uses opset {newest}, newer than {NEWEST_OPSET}",
            remedy=f"export it with opset {NEWEST_OPSET} or older",
        )
    _check_weights(model)
    return model


def clean(model: Any) -> tuple[Any, tuple[str, ...]]:  # noqa: ANN401 - onnx is untyped
    """Make a clean copy: weights that can be folded, a simpler graph, no texts, a common format.

    Args:
        model: A checked model; not changed.

    Returns:
        The copy, and notes on what was done.
    """
    notes: list[str] = []
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _strip(copy)
    dropped = _free_initializers(copy.graph)
    if dropped:
        notes.append(f"{dropped} weights were inputs of the graph and no longer are")
    copy = _newer_opset(copy, notes)
    copy = _slimmed(copy, notes)
    _strip(copy)
    del copy.graph.value_info[:]  # stale shapes break quantizers, which infer them anew
    clamp_ir(copy)
    return copy, tuple(notes)


def clamp_ir(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Lower the format version to one that every supported runtime reads."""
    model.ir_version = min(model.ir_version, NEWEST_IR)


def model_bytes(model: Any) -> bytes:  # noqa: ANN401 - onnx is untyped
    """Return a model's bytes; equal models, equal bytes."""
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def facts_of(model: Any, notes: tuple[str, ...]) -> ModelFacts:  # noqa: ANN401 - onnx is untyped
    """Collect what the planner must know.

    Args:
        model: A clean model.
        notes: What was done to it.

    Returns:
        The facts.

    Raises:
        ModelError: An input or output of unknown rank or unsupported type, or without a batch axis.
    """
    inferred = _with_shapes(model)
    inputs = tuple(_spec(value, "input") for value in inferred.graph.input)
    outputs = tuple(_spec(value, "output") for value in inferred.graph.output)
    if not inputs or not outputs:
        raise ModelError("the model has no inputs or no outputs")
    for spec in inputs:
        if not spec.shape or spec.shape[0] not in {-1, 1}:
            raise ModelError(
                f"input {spec.name!r} of shape {list(spec.shape)} does not begin with a batch axis",
                remedy="export the model with a batch of 1 or a dynamic one",
            )
    return ModelFacts(
        inputs=inputs,
        outputs=outputs,
        operators=tuple(sorted({node.op_type for node in _nodes(model.graph)})),
        opset=max(o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}),
        parameters=sum(int(np.prod(t.dims)) for t in model.graph.initializer),
        notes=notes,
    )


def _read(path: Path) -> Any:  # noqa: ANN401 - onnx is untyped
    try:
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise ModelError(f"the model is over {MAX_MODEL_BYTES} bytes")
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError as exc:
        raise ModelError("the file is not an ONNX model, or is truncated") from exc
    except OSError as exc:
        raise ModelError(f"the model cannot be read: {exc.strerror}") from exc
    if not model.graph.node:
        raise ModelError("the model's graph is empty")
    return model


def _check_weights(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    for tensor in _tensors(model.graph):
        if tensor.data_type in _FLOATS and np.isnan(numpy_helper.to_array(tensor)).any():
            raise ModelError(f"weight {tensor.name[:80]!r} holds NaN")


def _nodes(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - onnx is untyped
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, attribute.g):
                yield from _nodes(inner)


def _tensors(graph: Any) -> Iterator[Any]:  # noqa: ANN401 - onnx is untyped
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
            for inner in (*attribute.graphs, attribute.g):
                yield from _tensors(inner)


def _strip(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Remove texts: they hold paths and stack traces of the exporting machine."""
    for part in (model, model.graph, *model.graph.node, *model.graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")


def _free_initializers(graph: Any) -> int:  # noqa: ANN401 - onnx is untyped
    """Take weights out of the graph's inputs, where no runtime may fold them."""
    weights = {tensor.name for tensor in graph.initializer}
    kept = [value for value in graph.input if value.name not in weights]
    dropped = len(graph.input) - len(kept)
    if dropped:
        del graph.input[:]
        graph.input.extend(kept)
    return dropped


def _newer_opset(model: Any, notes: list[str]) -> Any:  # noqa: ANN401 - onnx is untyped
    opset = max((o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}), default=0)
    if opset >= OLDEST_OPSET:
        return model
    try:
        converted = onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as exc:  # noqa: BLE001 - the converter raises bare RuntimeErrors and more
        notes.append(f"opset {opset} could not be converted: {_first_line(exc)}")
        return model
    notes.append(f"opset {opset} was converted to {OLDEST_OPSET}")
    return converted


def _slimmed(model: Any, notes: list[str]) -> Any:  # noqa: ANN401 - onnx is untyped
    import onnxslim  # takes seconds, and only this one step needs it

    before = onnx.ModelProto()
    before.CopyFrom(model)
    try:
        slim = onnxslim.slim(model)
        onnx.checker.check_model(slim)
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever a simplifier raises
        notes.append(f"the graph could not be simplified: {_first_line(exc)}")
        return before
    if _names(slim) != _names(before):
        notes.append("the graph was not simplified: inputs or outputs would change")
        return before
    if slim.ByteSize() > MAX_INFLATION * before.ByteSize():
        notes.append("the graph was not simplified: it would grow")
        return before
    if len(slim.graph.node) != len(before.graph.node):
        notes.append(f"{len(before.graph.node)} nodes became {len(slim.graph.node)}")
    return slim


def _names(model: Any) -> tuple[list[str], list[str]]:  # noqa: ANN401 - onnx is untyped
    return [v.name for v in model.graph.input], [v.name for v in model.graph.output]


def _with_shapes(model: Any) -> Any:  # noqa: ANN401 - onnx is untyped
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # noqa: BLE001 - declared shapes must do then
        return model


def _spec(value: Any, role: str) -> TensorSpec:  # noqa: ANN401 - onnx is untyped
    kind = value.type.tensor_type
    datatype = _DATATYPES.get(kind.elem_type)
    if datatype is None:
        raise ModelError(f"{role} {value.name[:80]!r} is of a type that is not supported")
    if not kind.HasField("shape"):
        raise ModelError(f"{role} {value.name[:80]!r} has no declared shape")
    dims = tuple(d.dim_value if d.dim_value > 0 else -1 for d in kind.shape.dim)
    return TensorSpec(name=value.name, datatype=datatype, shape=dims)


def _first_line(exc: BaseException) -> str:
    text = " ".join(line.strip() for line in str(exc).splitlines() if line.strip())
    return text[:200] or type(exc).__name__
