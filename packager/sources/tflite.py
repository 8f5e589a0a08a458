"""Reads TFLite models that a user gives: their inputs, outputs and operators.

This module runs in a step's process: a broken model may crash LiteRT.

Rules:
- The user's file is only read; names stay as they are, such as `serving_default_x:0`.
- LiteRT verifies the file before this module reads its tables. A file that LiteRT does not take is
  refused.
- A fault of the model is one `ModelError` with one line; every count has a bound.
- A device runs the first subgraph; others are bodies of its control flow.

Source:
    TensorFlow Lite, schema.fbs, as `ai_edge_litert` ships it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from ai_edge_litert import schema_py_generated as schema

from packager.errors import ModelError
from packager.files import read_bounded
from packager.plan.figures import ModelFacts
from runtime_adapters.checks import shortened
from runtime_adapters.litert.library import litert
from wire.package.tensors import Datatype, TensorSpec

MAX_MODEL_BYTES: Final = 2**31 - 1
"""The reach of offsets in the file format."""

MAX_ITEMS: Final = 100_000
"""Tensors and operators of all subgraphs together."""

MAX_RANK: Final = 16
IDENTIFIER: Final = b"TFL3"
CUSTOM: Final = "CUSTOM"
_TAKE_IT_OVER: Final = "export it again, or copy it again"
_CONVERT: Final = "convert it with operators that this version of LiteRT has"
_MALFORMED: Final = "not a valid Flatbuffer"
"""What LiteRT says of a file that is not whole; else the file is right and LiteRT lacks a part."""


_OPERATORS: Final[dict[int, str]] = {
    code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)
}
_TYPES: Final = schema.TensorType
_DATATYPES: Final[dict[int, Datatype]] = {
    _TYPES.BOOL: "BOOL",
    _TYPES.UINT8: "UINT8",
    _TYPES.UINT16: "UINT16",
    _TYPES.UINT32: "UINT32",
    _TYPES.UINT64: "UINT64",
    _TYPES.INT8: "INT8",
    _TYPES.INT16: "INT16",
    _TYPES.INT32: "INT32",
    _TYPES.INT64: "INT64",
    _TYPES.FLOAT16: "FP16",
    _TYPES.FLOAT32: "FP32",
    _TYPES.FLOAT64: "FP64",
}
_NARROW: Final = frozenset(
    {_TYPES.INT4, _TYPES.INT8, _TYPES.UINT8, _TYPES.INT16, _TYPES.INT2, _TYPES.UINT4}
)
_DAMAGED: Final = (
    struct.error, LookupError, ValueError, TypeError, AttributeError, OverflowError,
)  # fmt: skip
"""What the generated reader raises on tables that make no sense."""


class TfliteModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: tuple[str, ...]
    """Names of builtin operators and, for custom ones, their own, sorted, each once."""

    custom: tuple[str, ...]
    parameters: int
    quantized: bool


def read(path: Path) -> TfliteModel:
    """Read a model.

    Args:
        path: The `.tflite` file.

    Returns:
        What it holds.

    Raises:
        ModelError: Not such a file, damaged, too large, or of a type that is not supported.
    """
    content = read_bounded(path, MAX_MODEL_BYTES, ModelError, called="the model")
    if content[4:8] != IDENTIFIER:
        raise ModelError("the file is not a TFLite model", remedy=_TAKE_IT_OVER)
    try:
        litert.Interpreter(model_content=content)
    except (ValueError, RuntimeError) as exc:
        reason = shortened(str(exc))
        if _MALFORMED in reason:
            raise ModelError(
                "the TFLite model is truncated or damaged", remedy=_TAKE_IT_OVER
            ) from exc
        raise ModelError(f"LiteRT cannot read the model: {reason}", remedy=_CONVERT) from exc
    try:
        return _described(schema.Model.GetRootAs(content))
    except _DAMAGED as exc:
        raise ModelError("the TFLite model is damaged", remedy=_TAKE_IT_OVER) from exc


def facts_of(path: Path) -> ModelFacts:
    """Collect what the planner must know of a given model.

    Args:
        path: The `.tflite` file.

    Returns:
        The facts.

    Raises:
        ModelError: Not a model that LiteRT runs, or without a batch axis.
    """
    model = read(path)
    try:
        litert.Interpreter(model_path=str(path)).allocate_tensors()
    except (ValueError, RuntimeError) as exc:
        raise ModelError(
            f"LiteRT cannot load the model: {shortened(str(exc))}", remedy=_CONVERT
        ) from exc
    for spec in model.inputs:
        if not spec.shape or spec.shape[0] not in {-1, 1}:
            raise ModelError(
                f"input {spec.name[:80]!r} of shape {list(spec.shape)} has no batch axis in the "
                "first place",
                remedy="export the model with a batch size of 1 or a dynamic batch size",
            )
    notes = (f"custom operators: {', '.join(model.custom)}",) if model.custom else ()
    return ModelFacts(
        kind="tflite",
        inputs=model.inputs,
        outputs=model.outputs,
        operators=model.operators,
        opset=0,
        parameters=model.parameters,
        quantized=model.quantized,
        notes=notes,
    )


def _described(model: Any) -> TfliteModel:  # noqa: ANN401 - generated code is untyped
    count = model.SubgraphsLength()
    if count == 0:
        raise ModelError("the TFLite model has no subgraph", remedy=_TAKE_IT_OVER)
    _check_count(count)
    subgraphs = [model.Subgraphs(index) for index in range(count)]
    _check_count(sum(s.TensorsLength() + s.OperatorsLength() for s in subgraphs))
    main = subgraphs[0]
    if not main.InputsLength() or not main.OutputsLength():
        raise ModelError("the model has no inputs or no outputs")
    _check_count(main.InputsLength() + main.OutputsLength())
    used = list(_operators(model, subgraphs))
    tensors = [s.Tensors(index) for s in subgraphs for index in range(s.TensorsLength())]
    return TfliteModel(
        inputs=_specs("input", main, main.Inputs, main.InputsLength()),
        outputs=_specs("output", main, main.Outputs, main.OutputsLength()),
        operators=tuple(sorted({name for name, _ in used})),
        custom=tuple(sorted({name for name, custom in used if custom})),
        parameters=sum(_elements(model, tensor) for tensor in tensors),
        quantized=any(_is_quantized(tensor) for tensor in tensors),
    )


def _check_count(count: int) -> None:
    """Refuse a model with more parts than any real one has.

    Raises:
        ModelError: It has more.
    """
    if count > MAX_ITEMS:
        raise ModelError(f"the TFLite model has over {MAX_ITEMS} tensors and operators")


def _specs(
    role: str,
    subgraph: Any,  # noqa: ANN401 - generated code is untyped
    index_of: Callable[[int], int],
    count: int,
) -> tuple[TensorSpec, ...]:
    specs = tuple(_spec(role, subgraph.Tensors(index_of(i))) for i in range(count))
    if len({spec.name for spec in specs}) != count:
        raise ModelError(f"two {role}s of the model have the same name")
    return specs


def _spec(role: str, tensor: Any) -> TensorSpec:  # noqa: ANN401 - generated code is untyped
    name = tensor.Name().decode()
    datatype = _DATATYPES.get(tensor.Type())
    if datatype is None:
        raise ModelError(f"{role} {name[:80]!r} is of a type that is not supported")
    return TensorSpec(name=name, datatype=datatype, shape=_shape(tensor))


def _shape(tensor: Any) -> tuple[int, ...]:  # noqa: ANN401 - generated code is untyped
    """Return a tensor's shape; where it has a signature, this tells which sizes may vary.

    Raises:
        ModelError: The tensor has too many dimensions.
    """
    if max(tensor.ShapeLength(), tensor.ShapeSignatureLength()) > MAX_RANK:
        raise ModelError(f"a tensor of the model has over {MAX_RANK} dimensions")
    if tensor.ShapeSignatureLength():
        sizes = [tensor.ShapeSignature(axis) for axis in range(tensor.ShapeSignatureLength())]
    else:
        sizes = [tensor.Shape(axis) for axis in range(tensor.ShapeLength())]
    return tuple(size if size >= 0 else -1 for size in sizes)


def _operators(model: Any, subgraphs: list[Any]) -> Iterator[tuple[str, bool]]:  # noqa: ANN401
    """Yield the name of every operator and whether it is a custom one."""
    codes = [model.OperatorCodes(index) for index in range(model.OperatorCodesLength())]
    for subgraph in subgraphs:
        for index in range(subgraph.OperatorsLength()):
            code = codes[subgraph.Operators(index).OpcodeIndex()]
            # Codes up to 126 are in the old field, of one byte; all are in the new one since 2020.
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            name = _OPERATORS.get(number, f"BUILTIN_{number}")
            if name == CUSTOM:
                yield (code.CustomCode() or CUSTOM.encode()).decode()[:200], True
            else:
                yield name, False


def _elements(model: Any, tensor: Any) -> int:  # noqa: ANN401 - generated code is untyped
    """Count the elements that are stored for a tensor; none for one that is computed."""
    buffer = model.Buffers(tensor.Buffer())
    stored = buffer.DataLength() > 0 or buffer.Size() > 0
    return math.prod(_shape(tensor)) if stored else 0


def _is_quantized(tensor: Any) -> bool:  # noqa: ANN401 - generated code is untyped
    quantization = tensor.Quantization()
    if quantization is None or tensor.Type() not in _NARROW:
        return False
    return bool(
        quantization.ScaleLength() or quantization.DetailsType() != schema.QuantizationDetails.NONE
    )
