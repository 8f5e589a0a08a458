"""Compile a model ahead of time with IREE: one `.vmfb` for one processor, and its description.

Rules:
- Equal model and options give equal bytes in any folder.
- A call takes one sample: a batch axis has size 1, and the adapter repeats the call. Every other
  size of an input must be known.
- The source is only read; a quantized graph (QDQ) is compiled in integers.
- An index out of range would end the process. The adapter checks an index that an input holds; the
  code bounds an index that the model computes.

Source:
    IREE, "Import from ONNX"; `runtime_adapters.iree.abi` for what is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx

from packager.errors import StepError
from packager.plan.targets import Target
from packager.runtimes.common.compiled_inputs import check_batch_axis, check_inputs
from packager.runtimes.common.index_clamps import clamp_indices
from packager.runtimes.common.index_ranges import index_ranges
from packager.runtimes.common.onnx_folding import folded
from packager.runtimes.iree.compiler import compile_module, suggested_options
from packager.runtimes.iree.spec import ARCHITECTURES
from packager.sources.onnx_checks import opset_of
from packager.tools.quiet import tool
from runtime_adapters.batches import is_batch
from runtime_adapters.errors import InputError
from runtime_adapters.iree.abi import FUNCTION, VERSION, CompiledModel, description_of
from runtime_adapters.tensors import ANY, datatype_of
from wire.codec import to_pretty_json
from wire.package.tensors import TensorSpec

OPSET: Final = 17
"""IREE's importer takes operators as this version has them; older graphs are converted."""


def compile_model(
    model: Path,
    destination: Path,
    target: Target,
    *,
    opset: int = OPSET,
    options: Mapping[str, Any] | None = None,
) -> CompiledModel:
    """Compile an ONNX model.

    Args:
        model: The model.
        destination: The `.vmfb` file to write; its description goes beside it.
        target: What to compile for.
        opset: The lowest operator set to compile; an older graph is converted to it.
        options: As `suggested_options` returns them; None stands for these.

    Returns:
        The description.

    Raises:
        StepError: IREE does not take the model, or is not installed.
    """
    _check_target(target)
    proto, inputs = _one_sample(model, opset)
    ranges = index_ranges(proto)
    clamp_indices(proto)
    with tool("onnx's shape inference"):
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    batched = any(is_batch(spec) for spec in inputs)
    described = CompiledModel(
        version=VERSION,
        architecture=target.architecture,
        cpu_flags=target.cpu_flags,
        inputs=inputs,
        outputs=tuple(_output(value, batched=batched) for value in proto.graph.output),
        ranges=ranges,
    )
    check_inputs(described.inputs)
    with tempfile.TemporaryDirectory(dir=destination.parent) as folder:
        module = Path(folder) / "module.mlirbc"
        _import(proto, module)
        chosen = options if options is not None else _suggested(proto, target)
        compile_module(module, destination, "onnx", target, chosen)
    description_of(destination).write_bytes(to_pretty_json(described))
    return described


def compile_stablehlo(
    module: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    destination: Path,
    target: Target,
    *,
    options: Mapping[str, Any] | None = None,
) -> CompiledModel:
    """Compile a StableHLO module whose function is called `main`.

    Args:
        module: The module, as text or bytecode, with every shape known.
        inputs: The function's arguments.
        outputs: The function's results.
        destination: The `.vmfb` file to write; its description goes beside it.
        target: What to compile for.
        options: As `suggested_options` returns them; None stands for these.

    Returns:
        The description.

    Raises:
        StepError: IREE does not take the module, or is not installed.
    """
    _check_target(target)
    check_inputs(inputs)
    chosen = options if options is not None else suggested_options((), target, depthwise=False)
    compile_module(module, destination, "stablehlo", target, chosen)
    described = CompiledModel(
        version=VERSION,
        architecture=target.architecture,
        cpu_flags=target.cpu_flags,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )
    description_of(destination).write_bytes(to_pretty_json(described))
    return described


def _check_target(target: Target) -> None:
    if target.architecture not in ARCHITECTURES:
        raise StepError(
            f"there is no IREE runtime for {target.architecture}",
            remedy=f"it runs on {' and '.join(sorted(ARCHITECTURES))}",
        )


def _one_sample(path: Path, opset: int) -> tuple[onnx.ModelProto, tuple[TensorSpec, ...]]:
    """Read a model, fix its batch to one and fold what follows from that.

    Returns:
        The copy, and its inputs as they were declared.

    Raises:
        StepError: A tool does not take the model.
    """
    with tool("onnx"):
        proto = onnx.load(str(path))
        if opset_of(proto) < opset:
            proto = onnx.version_converter.convert_version(proto, opset)
    weights = {tensor.name for tensor in proto.graph.initializer}
    kept = [value for value in proto.graph.input if value.name not in weights]
    inputs = tuple(_spec(value) for value in kept)
    del proto.graph.input[:]
    del proto.graph.value_info[:]
    for value in kept:
        dims = value.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value"):
            dims[0].dim_value = 1
    proto.graph.input.extend(kept)
    for value in proto.graph.output:  # it still declares the old batch
        value.type.tensor_type.ClearField("shape")
    proto = folded(proto)  # IREE's importer follows few computed shapes by itself
    proto.graph.name = FUNCTION
    return proto, inputs


def _import(proto: onnx.ModelProto, module: Path) -> None:
    """Translate a model to MLIR.

    Raises:
        StepError: An operator, or a form of one, that IREE's importer does not know.
    """
    with tool("iree's importer"):
        from iree.compiler.extras import onnx_importer
        from iree.compiler.ir import Context

        info = onnx_importer.ModelInfo(proto)
        operation = info.create_module(context=Context()).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, operation).import_all()
        operation.verify()
        with module.open("wb") as stream:
            operation.write_bytecode(stream)


def _suggested(proto: onnx.ModelProto, target: Target) -> dict[str, Any]:
    grouped = any(
        attribute.name == "group" and attribute.i > 1
        for node in proto.graph.node
        if node.op_type == "Conv"
        for attribute in node.attribute
    )
    operators = {node.op_type for node in proto.graph.node}
    return suggested_options(operators, target, depthwise=grouped)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    """Return what a graph says of an input or output.

    Raises:
        StepError: A type without a name in the Open Inference Protocol.
    """
    kind = value.type.tensor_type
    try:
        datatype = datatype_of(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    except (InputError, KeyError, TypeError) as exc:
        raise StepError(f"{value.name[:80]!r} is of a type that is not supported") from exc
    sizes = (d.dim_value if d.HasField("dim_value") else ANY for d in kind.shape.dim)
    return TensorSpec(name=value.name, datatype=datatype, shape=tuple(sizes))


def _output(value: onnx.ValueInfoProto, *, batched: bool) -> TensorSpec:
    """Return the declaration of an output; its batch varies where the batch of the inputs does.

    Raises:
        StepError: The answers of a batch cannot be put together.
    """
    spec = _spec(value)
    if not value.type.tensor_type.HasField("shape"):
        raise StepError(f"the shape of output {spec.name!r} does not follow from the inputs'")
    if not batched:
        return spec
    check_batch_axis(spec.name, spec.shape)
    return TensorSpec(name=spec.name, datatype=spec.datatype, shape=(ANY, *spec.shape[1:]))
