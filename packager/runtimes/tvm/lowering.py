"""TVM's part of a compilation: turns an ONNX graph into fused kernels and a straight-line plan.

Rules:
- The batch is one, and every shape is known.
- The whole model is one function `main` that calls kernels one after the other on tensors whose
  places in memory are planned.
- Whatever TVM raises becomes a `StepError`.

Source:
    Apache TVM 0.27, `relax.transform`: the passes of its default CPU pipeline, with fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import tvm
from onnx import numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from packager.plan.targets import Target
from packager.runtimes.common.onnx_folding import folded
from packager.runtimes.tvm.schedules import scheduled
from packager.tools.quiet import tool

_TRANSFORM: Final = relax.transform
_FUSING: Final = (
    _TRANSFORM.DecomposeOpsForInference,
    _TRANSFORM.CanonicalizeBindings,
    _TRANSFORM.LegalizeOps,
    _TRANSFORM.AnnotateTIROpPattern,
    _TRANSFORM.FoldConstant,
    _TRANSFORM.FuseOps,
    _TRANSFORM.FuseTIR,
)
_PLANNING: Final = (
    _TRANSFORM.DeadCodeElimination,
    _TRANSFORM.RewriteDataflowReshape,
    _TRANSFORM.ToNonDataflow,
    _TRANSFORM.RemovePurityChecking,
    _TRANSFORM.CallTIRRewrite,
    _TRANSFORM.StaticPlanBlockMemory,
    _TRANSFORM.DeadCodeElimination,  # removes kernels of reshapes that became views
)


def fixed(model: Path, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Read a model and give its inputs known shapes.

    Args:
        model: The ONNX file.
        shapes: Input to its shape; no size is -1.

    Returns:
        The model, in which all that follows from these shapes is folded. It declares no shapes but
        those of its inputs.
    """
    proto = onnx.load(str(model))
    for value in proto.graph.input:
        if value.name in shapes:
            dims = value.type.tensor_type.shape.dim
            del dims[:]
            for size in shapes[value.name]:
                dims.add().dim_value = size
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    _dequantize_weights(proto)
    return folded(proto)  # the importer folds some forms only


def imported(proto: onnx.ModelProto) -> tvm.IRModule:
    """Translate a model to TVM's graph form.

    Args:
        proto: A model whose inputs have known shapes.

    Returns:
        The module; its function `main` takes the model's inputs in their order.

    Raises:
        StepError: An operator, or a form of one, that TVM does not know.
    """
    with tool("tvm's importer"):
        return from_onnx(proto, sanitize_input_names=False)


def lowered(module: tvm.IRModule, target: Target, *, database: Path | None = None) -> tvm.IRModule:
    """Fuse operators to kernels and plan memory.

    Args:
        module: What `imported` returned.
        target: What to compile for.
        database: The folder of a MetaSchedule database; a kernel that it knows gets its schedule.

    Returns:
        A module of kernels and of `main`, which calls them.

    Raises:
        StepError: TVM has no kernel for something.
    """
    tuned = (
        [] if database is None else [lambda: _TRANSFORM.MetaScheduleApplyDatabase(str(database))]
    )
    kernels = _run(module, target, [*_FUSING, *tuned])
    return _run(scheduled(kernels, target), target, _PLANNING)


def fused(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """Fuse operators to kernels, which is the form that a tuner takes its tasks from.

    Args:
        module: What `imported` returned.
        target: What to compile for.

    Returns:
        A module of kernels before any schedule.

    Raises:
        StepError: TVM has no kernel for something.
    """
    return _run(module, target, _FUSING)


def write_kernels(module: tvm.IRModule, target: Target, destination: Path) -> None:
    """Compile the kernels of a lowered module.

    Args:
        module: What `lowered` returned.
        target: What to compile for.
        destination: The object file to write; its name ends with `.o`.

    Raises:
        StepError: TVM's code generator failed.
    """
    kernels = {
        variable: function.with_attr("global_symbol", variable.name_hint)
        for variable, function in module.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }
    with tool("tvm's code generator"):
        built = tvm.tirx.build(tvm.IRModule(kernels), tvm_target(target))
        built.write_to_file(str(destination))


def tvm_target(target: Target) -> tvm.target.Target:
    """Return TVM's description of a target."""
    described: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": target.triple,
        "mcpu": target.cpu,
        "mattr": list(target.features),
        "mfloat-abi": target.float_abi,
        "mabi": target.abi,
        "num-cores": 1,  # a tuner must not split work: kernels run in one thread
    }
    return tvm.target.Target({key: value for key, value in described.items() if value})


def _dequantize_weights(proto: onnx.ModelProto) -> None:
    """Store quantized constants in float.

    TVM's code generator would do so with weights anyway. TVM's importer needs it for other
    constants, such as the value of a padding.
    """
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    kept: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        attributes = {a.name: a.i for a in node.attribute}
        plain = node.op_type == "DequantizeLinear" and not attributes.get("block_size")
        if not plain or any(name and name not in constants for name in node.input):
            kept.append(node)
            continue
        values, scale, *zero = [
            numpy_helper.to_array(constants[name]) for name in node.input if name
        ]
        shape = [1] * values.ndim
        if scale.size > 1:
            shape[attributes.get("axis", 1)] = -1
        shifted = values.astype(np.int32) - (zero[0].reshape(shape).astype(np.int32) if zero else 0)
        floats = (shifted * scale.reshape(shape)).astype(scale.dtype).reshape(values.shape)
        proto.graph.initializer.append(numpy_helper.from_array(floats, node.output[0]))
    del proto.graph.node[:]
    proto.graph.node.extend(kept)


def _run(module: tvm.IRModule, target: Target, passes: Sequence[Callable[[], Any]]) -> tvm.IRModule:
    """Make and run passes while the target is the current one.

    Raises:
        StepError: One of them failed.
    """
    with tool("tvm's lowering"), tvm_target(target):
        return tvm.transform.Sequential([make() for make in passes])(module)
