"""Checks an ONNX model before anything else uses it; each fault is one line.

Rules:
- The error names the node, weight, input or operator at fault, and says what would work.
- ONNX's own checker checks the form. This module checks what that checker accepts and runtimes
  refuse.

Source:
    ONNX, docs/IR.md and onnx/onnx.in.proto (versions of the format); ONNX Runtime 1.31 for the
    operator sets that it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from packager.errors import ModelError
from packager.fault_text import one_line
from packager.sources.onnx_graph import (
    all_graphs,
    all_nodes,
    all_tensors,
    node_name,
    shown,
)
from wire.package.tensors import Datatype, TensorSpec

NEWEST_OPSET: Final = 26
"""What ONNX Runtime 1.31 runs."""

NEWEST_ML_OPSET: Final = 5
"""The same for `ai.onnx.ml`, the operators of classic machine learning."""

MAX_NAME: Final = 200
"""Of an input or output, with `%` codes for what a file name does not hold."""

CONTRIB_DOMAIN: Final = "com.microsoft"
ML_DOMAIN: Final = "ai.onnx.ml"
_DEFAULT_DOMAINS: Final = frozenset({"", "ai.onnx"})
_DOMAINS: Final = frozenset({*_DEFAULT_DOMAINS, ML_DOMAIN, CONTRIB_DOMAIN})
_HARDWARE_DOMAIN: Final = "com.microsoft.nchwc"

_NEWEST_TYPE: Final = TensorProto.INT4
"""The last tensor type of format version 10; later ones have greater numbers."""

_FLOATS: Final = frozenset(
    {TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE}
)
_MULTIPLYING: Final = frozenset(
    {
        "BatchNormalization", "Conv", "ConvTranspose", "DequantizeLinear", "Einsum", "GRU", "Gemm",
        "GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization", "MatMul",
        "Mul", "PRelu", "QuantizeLinear", "RNN",
    }
)  # fmt: skip
"""Operators whose answer is infinite or NaN where a constant of theirs is infinite."""

_EARLIER: Final = "use a checkpoint from before the training diverged"
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
_OTHER_KINDS: Final = {
    "sequence_type": (
        "a sequence of tensors",
        "export each tensor of the sequence as one of its own",
    ),
    "optional_type": ("optional", "export the model with that tensor always there, or without it"),
    "map_type": ("a map", "export it as a tensor; with skl2onnx, set zipmap to False"),
    "sparse_tensor_type": ("a sparse tensor", "export it as a dense tensor"),
    "opaque_type": ("opaque", "export it as a tensor"),
}


def opset_of(model: Any, domains: Iterable[str] = _DEFAULT_DOMAINS) -> int:  # noqa: ANN401 - untyped
    """Return the version of an operator set that a model imports; 0 when it imports none."""
    wanted = frozenset(domains)
    return max((o.version for o in model.opset_import if o.domain in wanted), default=0)


def check_form(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Check the form: names, operators, types, and what ONNX's checker looks at.

    Args:
        model: The model, self-contained, its nodes in order.

    Raises:
        ModelError: It is not valid, or not of a kind that runtimes take.
    """
    check_parts(model)
    check_valid(model)


def check_parts(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Check names, operators and types.

    Args:
        model: The model, with or without the data of its weights.

    Raises:
        ModelError: One of them is not of a kind that runtimes take.
    """
    _check_opsets(model)
    _check_operators(model)
    _check_names(model.graph)
    _check_types(model)


def check_valid(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Let ONNX's own checker look at a model.

    Args:
        model: The model, or the path of one that has its weights in another file.

    Raises:
        ModelError: It is not valid.
    """
    try:
        onnx.checker.check_model(model)
    except Exception as exc:
        raise ModelError(
            f"the model is not valid ONNX: {one_line(exc)}",
            remedy="export it again, with a newer version of its exporter",
        ) from exc


def _whole(tensor: Any) -> Iterator[NDArray[Any]]:  # noqa: ANN401 - onnx is untyped
    yield numpy_helper.to_array(tensor)


def check_weights(
    model: Any,  # noqa: ANN401 - onnx is untyped
    parts: Callable[[Any], Iterable[NDArray[Any]]] = _whole,
) -> None:
    """Check that no weight holds NaN or infinity, which every answer would inherit.

    Infinity is refused where an operator multiplies with it. Elsewhere it has a meaning: masks add
    minus infinity to scores, and limits without an end are infinite.

    Args:
        model: A model of valid form.
        parts: Yields the values of a tensor, in parts of any shape.

    Raises:
        ModelError: A weight holds NaN or infinity, or cannot be decoded.
    """
    factors = _factors(model.graph)
    for tensor in all_tensors(model.graph):
        if tensor.data_type not in _FLOATS:
            continue
        try:
            nan, infinite = _not_finite(parts(tensor))
        except ModelError:
            raise
        except Exception as exc:
            raise ModelError(
                f"the weight {shown(tensor.name)} cannot be decoded: {one_line(exc)}",
                remedy="export the model again",
            ) from exc
        if nan:
            raise ModelError(
                f"weight {shown(tensor.name)} holds NaN",
                remedy=_EARLIER,
            )
        if tensor.name in factors and infinite:
            raise ModelError(f"weight {shown(tensor.name)} holds infinity", remedy=_EARLIER)


def _not_finite(parts: Iterable[NDArray[Any]]) -> tuple[bool, bool]:
    """Return whether values hold NaN, and whether they hold infinity."""
    nan = infinite = False
    for values in parts:
        nan |= bool(np.isnan(values).any())
        infinite |= bool(np.isinf(values).any())
    return nan, infinite


def _factors(graph: Any) -> set[str]:  # noqa: ANN401 - onnx is untyped
    """Return the names of constants that an operator multiplies with, and of their tensors."""
    nodes = [*all_nodes(graph)]
    names = {name for node in nodes if node.op_type in _MULTIPLYING for name in node.input}
    return names | {
        attribute.t.name
        for node in nodes
        if node.op_type == "Constant" and names & {*node.output}
        for attribute in node.attribute
        if attribute.name == "value"
    }


def tensor_spec(value: Any, role: str) -> TensorSpec:  # noqa: ANN401 - onnx is untyped
    """Return the declaration of an input or output.

    Args:
        value: ONNX's description of it.
        role: `input` or `output`.

    Returns:
        Its name, type and shape; -1 for sizes that vary.

    Raises:
        ModelError: It is no tensor, of a type that has no name here, or of unknown rank.
    """
    name = shown(value.name)
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what, remedy = _OTHER_KINDS.get(kind or "", ("of no type", "declare it as a tensor"))
        raise ModelError(f"{role} {name} is {what}", remedy=remedy)
    tensor = value.type.tensor_type
    datatype = _DATATYPES.get(tensor.elem_type)
    if tensor.elem_type == TensorProto.STRING and role == "input":
        datatype = "BYTES"
    if datatype is None:
        remedy = "declare it as a numeric tensor, with a Cast where the graph needs another type"
        if tensor.elem_type == TensorProto.STRING:
            remedy = (
                "leave this output out, and name the classes of the scores with --postprocessing; "
                "docs/text.md says how"
            )
        raise ModelError(
            f"{role} {name} has the type {_type_name(tensor.elem_type)}, which is not supported",
            remedy=remedy,
        )
    if not tensor.HasField("shape"):
        raise ModelError(
            f"{role} {name} has no declared shape",
            remedy="export the model with a shape; a size that varies may be a symbol",
        )
    shape = tuple(d.dim_value if d.dim_value > 0 else -1 for d in tensor.shape.dim)
    return TensorSpec(name=value.name, datatype=datatype, shape=shape)


def domains_of(model: Any) -> tuple[str, ...]:  # noqa: ANN401 - onnx is untyped
    """Return the domains of a model's operators beside ONNX's own, sorted, each once."""
    used = {node.domain for node in all_nodes(model.graph)}
    return tuple(sorted(used - _DEFAULT_DOMAINS))


def _check_opsets(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    limits = ((_DEFAULT_DOMAINS, "opset", NEWEST_OPSET), ({ML_DOMAIN}, ML_DOMAIN, NEWEST_ML_OPSET))
    for domains, name, newest in limits:
        versions = {o.version for o in model.opset_import if o.domain in domains}
        if len(versions) > 1 or min(versions, default=1) < 1:
            raise ModelError(
                f"the model names {name} {' and '.join(map(str, sorted(versions)))}, and operators "
                "have one version",
                remedy="export it again",
            )
        version = opset_of(model, domains)
        if version > newest:
            raise ModelError(
                f"the model uses {name} {version}, newer than {newest}",
                remedy=f"export it with {name} {newest} or older",
            )


def _check_operators(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    for node in all_nodes(model.graph):
        if node.domain == _HARDWARE_DOMAIN:
            raise ModelError(
                f"the node {node_name(node)} has the domain {node.domain!r}, so ONNX Runtime "
                "optimized this file for one processor",
                remedy="use the model file from before ONNX Runtime optimized and saved it",
            )
        known = node.domain in _DOMAINS
        if known and node.domain != CONTRIB_DOMAIN:  # whose schemas only ONNX Runtime has
            domain = "" if node.domain in _DEFAULT_DOMAINS else node.domain
            known = onnx.defs.has(node.op_type, domain)
        if not known:
            raise ModelError(
                f"the node {node_name(node)} has an unknown operator, {shown(node.op_type)} of "
                f"the domain {shown(node.domain or 'ai.onnx')}",
                remedy="use ONNX operators instead, or define the operator in the model as a "
                "function",
            )


def _check_names(graph: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Look for names that stand for two things; ONNX's checker finds those inside bodies.

    Raises:
        ModelError: A name stands for two things, or is too long for a request.
    """
    weights = [tensor.name for tensor in graph.initializer]
    weights += [tensor.values.name for tensor in graph.sparse_initializer]
    made = [name for node in graph.node for name in node.output if name]
    for role, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if len(quote(value.name, safe="")) > MAX_NAME:
                raise ModelError(
                    f"the name of an {role} has {len(value.name)} characters: {shown(value.name)}",
                    remedy="give it a shorter name",
                )
    groups = (
        ("input", [value.name for value in graph.input]),
        ("output", [value.name for value in graph.output]),
        ("weight", weights),
        ("value", [value.name for value in graph.input] + made),
    )
    for role, names in groups:
        double = _first_double(names)
        if double is not None:
            raise ModelError(
                f"the model has two {role}s with the name {shown(double)}",
                remedy="give each of them its own name",
            )


def _first_double(names: list[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_types(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Look for types that the format versions of devices' runtimes cannot express.

    Raises:
        ModelError: The model uses one.
    """
    used = {tensor.data_type for tensor in all_tensors(model.graph)}
    for graph in all_graphs(model.graph):
        used |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    used |= {
        attribute.i
        for node in all_nodes(model.graph)
        if node.op_type == "Cast"
        for attribute in node.attribute
        if attribute.name == "to"
    }
    newest = max(used, default=0)
    if newest > _NEWEST_TYPE:
        raise ModelError(
            f"the model uses the type {_type_name(newest)}, which the runtimes on devices cannot "
            "read",
            remedy="use the model in float32; the build makes the low-bit variants from it",
        )


def _type_name(number: int) -> str:
    names: dict[int, str] = {value: name for name, value in TensorProto.DataType.items()}
    return names.get(number, str(number))
