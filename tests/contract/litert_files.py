"""Tiny ONNX models as LiteRT's files, written directly: no converter is at hand in every test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import onnx
from onnx import TensorProto, numpy_helper

try:
    from ai_edge_litert import schema_py_generated as schema
except ModuleNotFoundError:  # tflite-runtime has no schema; its tests put LiteRT's beside it
    import litert_schema as schema

TYPES = {
    TensorProto.BOOL: schema.TensorType.BOOL,
    TensorProto.UINT8: schema.TensorType.UINT8,
    TensorProto.UINT16: schema.TensorType.UINT16,
    TensorProto.UINT32: schema.TensorType.UINT32,
    TensorProto.UINT64: schema.TensorType.UINT64,
    TensorProto.INT8: schema.TensorType.INT8,
    TensorProto.INT16: schema.TensorType.INT16,
    TensorProto.INT32: schema.TensorType.INT32,
    TensorProto.INT64: schema.TensorType.INT64,
    TensorProto.FLOAT16: schema.TensorType.FLOAT16,
    TensorProto.FLOAT: schema.TensorType.FLOAT32,
    TensorProto.DOUBLE: schema.TensorType.FLOAT64,
}


def write(path: Path, model: onnx.ModelProto, *, batch: int = -1) -> None:
    """Write a model of Concat, Add, Mul and Reshape nodes; others become custom operators.

    Args:
        path: The file to write.
        model: The model, whose tensors all have the type of its first input, but for `shape`.
        batch: -1 for dimensions that vary, or what they are fixed to.
    """
    graph, tflite = schema.SubGraphT(), schema.ModelT()
    graph.tensors, graph.operators, graph.name = [], [], b"main"
    tflite.version, tflite.subgraphs, tflite.operatorCodes = 3, [graph], []
    tflite.buffers = [schema.BufferT()]
    index: dict[str, int] = {}
    first = model.graph.input[0].type.tensor_type
    for value in (*model.graph.input, *model.graph.output):
        index[value.name] = _tensor(graph, value.name, value.type.tensor_type, batch)
    for weight in model.graph.initializer:
        buffer = schema.BufferT()
        buffer.data = numpy_helper.to_array(weight).view("u1").reshape(-1)
        tflite.buffers.append(buffer)
        kind = onnx.helper.make_tensor_type_proto(weight.data_type, weight.dims).tensor_type
        index[weight.name] = _tensor(graph, weight.name, kind, batch)
        graph.tensors[-1].buffer = len(tflite.buffers) - 1
    for node in model.graph.node:
        for name in node.output:
            if name not in index:
                index[name] = _tensor(graph, name, first, batch)
        ready = _narrowed(tflite, node, index) if node.op_type == "Reshape" else node
        graph.operators.append(_operator(tflite, ready, index))
    graph.inputs = [index[value.name] for value in model.graph.input]
    graph.outputs = [index[value.name] for value in model.graph.output]
    builder = flatbuffers.Builder()
    builder.Finish(tflite.Pack(builder), b"TFL3")
    path.write_bytes(bytes(builder.Output()))


def _tensor(graph: Any, name: str, kind: Any, batch: int) -> int:
    tensor = schema.TensorT()
    tensor.name, tensor.type, tensor.buffer = name.encode(), TYPES[kind.elem_type], 0
    sizes = [dim.dim_value or batch for dim in kind.shape.dim]
    tensor.shape = [size if size > 0 else 1 for size in sizes]
    tensor.shapeSignature = sizes
    tensor.hasRank = True
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _narrowed(tflite: Any, node: onnx.NodeProto, index: dict[str, int]) -> onnx.NodeProto:
    """Put a cast before a reshape: its shape is INT64 in ONNX and INT32 in LiteRT."""
    graph = tflite.subgraphs[0]
    data, shape = node.input
    kind = onnx.helper.make_tensor_type_proto(TensorProto.INT32, [2]).tensor_type
    index["narrow"] = _tensor(graph, "narrow", kind, 1)
    cast = onnx.helper.make_node("Cast", [shape], ["narrow"])
    graph.operators.append(_operator(tflite, cast, index))
    return onnx.helper.make_node("Reshape", [data, "narrow"], node.output)


def _operator(tflite: Any, node: onnx.NodeProto, index: dict[str, int]) -> Any:
    code, operator = schema.OperatorCodeT(), schema.OperatorT()
    builtin = schema.BuiltinOperator
    kinds: dict[str, tuple[int, Any, int]] = {
        "Concat": (builtin.CONCATENATION, schema.ConcatenationOptionsT(), 2),
        "Add": (builtin.ADD, schema.AddOptionsT(), 1),
        "Mul": (builtin.MUL, schema.MulOptionsT(), 1),
        "Cast": (builtin.CAST, None, 1),
        "Reshape": (builtin.RESHAPE, None, 1),
    }
    number, options, version = kinds.get(node.op_type, (builtin.CUSTOM, None, 1))
    code.builtinCode, code.version = number, version
    code.deprecatedBuiltinCode = min(number, builtin.PLACEHOLDER_FOR_GREATER_OP_CODES)
    if number == builtin.CUSTOM:
        code.customCode = node.op_type.encode()
    if node.op_type == "Concat":
        options.axis = node.attribute[0].i
    if options is not None:
        operator.builtinOptions = options
        operator.builtinOptionsType = getattr(
            schema.BuiltinOptions, type(options).__name__.removesuffix("T")
        )
    tflite.operatorCodes.append(code)
    operator.opcodeIndex = len(tflite.operatorCodes) - 1
    operator.inputs = [index[name] for name in node.input]
    operator.outputs = [index[name] for name in node.output]
    return operator
