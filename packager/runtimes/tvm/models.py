"""Compile an ONNX model ahead of time with TVM: one shared library for one target.

Rules:
- Equal model and options give equal bytes in any folder.
- The library describes itself (`runtime_adapters.tvm.abi`). A model that cannot be compiled gives
  one `StepError`.
- A call takes one sample: a declared batch axis has size 1, and the adapter repeats the call.
- A quantized graph (QDQ) is compiled as it is, but its weights are stored in float.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import onnx

from packager.errors import StepError
from packager.plan.targets import Target
from packager.runtimes.common.compiled_inputs import check_batch_axis, check_inputs
from packager.runtimes.common.index_clamps import clamp_indices
from packager.runtimes.common.index_ranges import index_ranges
from packager.runtimes.tvm import driver
from packager.runtimes.tvm.program import Program, program_of
from packager.tools import toolchains
from runtime_adapters.batches import is_batch, sample_shape
from runtime_adapters.tensors import ANY, DTYPES
from runtime_adapters.tvm.abi import VERSION, CompiledModel
from wire.codec import to_json
from wire.package.tensors import Datatype, TensorSpec

_DATATYPES: Final[dict[str, Datatype]] = {
    str(dtype): name for name, dtype in DTYPES.items() if name != "BYTES"
}


def compile_model(
    model: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    target: Target,
    destination: Path,
    *,
    database: Path | None = None,
) -> CompiledModel:
    """Compile a model.

    Args:
        model: The ONNX file.
        inputs: The model's inputs.
        outputs: The model's outputs.
        target: What to compile for.
        destination: The library to write.
        database: The folder of a tuning database; a kernel that it knows gets its schedule.

    Returns:
        The library's description of itself.

    Raises:
        StepError: TVM does not take the model, or a tool is missing or failed.
    """
    compiler = toolchains.compiler(target)
    if compiler is None:
        raise StepError(
            f"there is no compiler for {target.name}",
            remedy=f"install {target.compiler_package}",
        )
    check_inputs(inputs)
    from packager.runtimes.tvm import lowering

    proto = lowering.fixed(model, {spec.name: sample_shape(spec) for spec in inputs})
    ranges = index_ranges(proto)
    clamp_indices(proto)
    module = lowering.lowered(lowering.imported(proto), target, database=database)
    program = program_of(module["main"])
    abi = _described(proto, inputs, outputs, target, program)
    abi = msgspec.structs.replace(abi, ranges=ranges)
    with tempfile.TemporaryDirectory(dir=destination.parent) as name:
        folder = Path(name)
        lowering.write_kernels(module, target, folder / driver.KERNELS_FILE)
        driver.link(program, to_json(abi), compiler, folder).replace(destination)
    return abi


def _described(
    proto: onnx.ModelProto,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    target: Target,
    program: Program,
) -> CompiledModel:
    by_name = {spec.name: spec for spec in inputs}
    weights = {tensor.name for tensor in proto.graph.initializer}
    ordered = [by_name[v.name] for v in proto.graph.input if v.name not in weights]
    batched = any(is_batch(spec) for spec in ordered)
    names = [value.name for value in proto.graph.output]
    if len(ordered) != len(program.inputs) or len(names) != len(program.outputs):
        raise StepError("tvm removed an input or an output of the model")
    for spec, position in zip(ordered, program.inputs, strict=True):
        _check_input(spec, program, position)
    declared = {spec.name: spec for spec in outputs}
    return CompiledModel(
        version=VERSION,
        architecture=target.architecture,
        target=target.name,
        cpu_flags=target.cpu_flags,
        inputs=tuple(ordered),
        outputs=tuple(
            _output(declared[name], program, position, batched=batched)
            for name, position in zip(names, program.outputs, strict=True)
        ),
        arena_bytes=program.arena_bytes,
        constants_bytes=len(program.constants),
    )


def _check_input(spec: TensorSpec, program: Program, position: int) -> None:
    tensor = program.tensors[position]
    if _DATATYPES.get(tensor.dtype) != spec.datatype or tensor.shape != sample_shape(spec):
        raise StepError(
            f"tvm made input {spec.name!r} {tensor.dtype} of shape {list(tensor.shape)}"
        )


def _output(declared: TensorSpec, program: Program, position: int, *, batched: bool) -> TensorSpec:
    """Return a library's description of an output.

    Raises:
        StepError: It is not what the model declares, or the answers of a batch cannot be joined.
    """
    tensor = program.tensors[position]
    shape = tensor.shape
    if batched:
        check_batch_axis(declared.name, shape)
        shape = (ANY, *shape[1:])
    fits = len(shape) == len(declared.shape) and all(
        promised in {ANY, size} for promised, size in zip(declared.shape, shape, strict=True)
    )
    if _DATATYPES.get(tensor.dtype) != declared.datatype or not fits:
        raise StepError(
            f"tvm made output {declared.name!r} {tensor.dtype} of shape {list(shape)}, the model "
            f"declares {declared.datatype} of shape {list(declared.shape)}"
        )
    return TensorSpec(name=declared.name, datatype=declared.datatype, shape=shape)
