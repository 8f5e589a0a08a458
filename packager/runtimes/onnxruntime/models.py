"""Turns a float model into int8, half precision or int4 weights with ONNX Runtime's tools.

Rules:
- Equal model, samples and options give equal bytes, on processors that compute alike.
- Whatever a tool raises becomes a `StepError`. A tool that changed nothing raises one too.
- ONNX Runtime loads every model once before it is written.

Source:
    ONNX Runtime, "Quantize ONNX models" and "Float16 and mixed precision models".
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import onnx
from numpy.typing import NDArray

from packager.errors import StepError
from packager.runtimes.common.onnx_files import save
from packager.runtimes.onnxruntime import qdq
from packager.sources.onnx_bodies import has_bodies, settle_casts
from packager.sources.onnx_graph import all_graphs, all_nodes, sort_nodes
from packager.sources.onnx_model import with_shapes
from packager.tools.quiet import tool
from runtime_adapters.onnxruntime.library import onnxruntime  # noqa: F401 - before its parts
from runtime_adapters.protocol import Tensors

_WEIGHT_BITS: Final = 4

DYNAMIC: Final = frozenset({"ConvInteger", "DynamicQuantizeLSTM", "MatMulInteger", "QAttention"})
INT4: Final = frozenset({"MatMulNBits"})
"""What the two schemes make."""

MIN_SAVING: Final = 0.05
"""A scheme that only changes stored weights must save at least this share of the model's size."""


def quantize_static(model: Path, inputs: Tensors, options: dict[str, Any], target: Path) -> None:
    """Quantize weights per channel and activations per tensor, with ranges from samples.

    Args:
        model: The prepared float model.
        inputs: Calibration samples by input.
        options: `activations` (`uint8` or `int8`), `reduce_range`, `samples`; `method` (`minmax`,
            `entropy`, `percentile`), `percentile` (of the values that a range holds, such as
            99.99), `exclude` (names of nodes to leave in float, as `qdq.prepare` names them).
        target: The file to write.

    Raises:
        StepError: The quantizer failed or found nothing to quantize.
    """
    prepared = qdq.prepare(model)
    ranges = qdq.calibrate(prepared, inputs, options)
    quantized = qdq.insert(prepared, ranges, options, exclude=options.get("exclude", ()))
    check_changed(quantized, {"QuantizeLinear"}, "the model has no operator to quantize")
    save(quantized, target)


def quantize_dynamic(model: Path, options: dict[str, Any], target: Path) -> None:
    """Quantize weights, and activations while the model runs; needs no samples.

    Args:
        model: The prepared float model.
        options: `weights` (`uint8` or `int8`), `reduce_range`, `operators` (`MatMul` also stands
            for `Gemm`), `exclude`.
        target: The file to write.

    Raises:
        StepError: The quantizer failed or found nothing to quantize.
    """
    prepared = qdq.prepare(model)
    size_bytes = prepared.ByteSize()
    quantized = made_dynamic(prepared, options)
    check_changed(quantized, DYNAMIC, "the model has no operator to quantize dynamically")
    save(quantized, target)
    check_saving(size_bytes, target)


def made_dynamic(prepared: Any, options: dict[str, Any]) -> Any:  # noqa: ANN401 - onnx is untyped
    """Return a model whose products quantize their activations while they run.

    Args:
        prepared: A model whose nodes have names of their own; it may be changed.
        options: As for `quantize_dynamic`.

    Returns:
        The model.

    Raises:
        StepError: The quantizer failed.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as quantize

    weights = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}[options["weights"]]
    with tool(qdq.QUANTIZER), tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "quantized.onnx"
        quantize(
            prepared,
            made,
            op_types_to_quantize=list(options["operators"]),
            per_channel=True,
            reduce_range=options["reduce_range"],
            weight_type=weights,
            nodes_to_exclude=list(options.get("exclude", ())),
            extra_options={"EnableSubgraph": True} if has_bodies(prepared.graph) else {},
        )
        return onnx.load(str(made))


def to_fp16(model: Path, options: dict[str, Any], target: Path) -> None:
    """Compute in half precision; inputs and outputs stay as they are.

    Args:
        model: The prepared float model.
        options: `blocked` (operators that stay in float, beside those that have no half precision).
        target: The file to write.

    Raises:
        StepError: The converter failed, or the model has nothing in float.
    """
    converted = made_fp16(qdq.prepare(model), options)
    stored = (t for graph in all_graphs(converted.graph) for t in graph.initializer)
    if not any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in stored):
        raise StepError("the model has no float32 weights that could become float16")
    save(converted, target)


def made_fp16(
    prepared: Any,  # noqa: ANN401 - onnx is untyped
    options: dict[str, Any],
    kept: list[str] | None = None,
) -> Any:  # noqa: ANN401
    """Return a model that computes in half precision.

    Args:
        prepared: A model; it is changed.
        options: As for `to_fp16`.
        kept: The inputs and outputs that stay as they are; None for all.

    Returns:
        The model.

    Raises:
        StepError: The converter failed.
    """
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers import float16

    if has_bodies(prepared.graph):
        prepared = with_shapes(prepared)  # without the types within bodies it casts nothing there
    with tool("onnxruntime's float16 converter"):
        converted = float16.convert_float_to_float16(
            prepared,
            keep_io_types=True if kept is None else kept,
            disable_shape_infer=True,  # done; ONNX's does not know ONNX Runtime's operators
            op_block_list=[
                *float16.DEFAULT_OP_BLOCK_LIST,
                "TfIdfVectorizer",  # counts in float32 alone; the converter does not know it
                *options.get("blocked", ()),
            ],
        )
        if has_bodies(converted.graph):
            settle_casts(converted.graph)
            sort_nodes(converted.graph)
        else:
            ONNXModel(converted).topological_sort()  # it appends its casts to the end
    return converted


def halved(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in half precision, as the converter makes them: none becomes infinite or 0."""
    from onnxruntime.transformers.float16 import convert_np_to_float16

    halves: NDArray[Any] = convert_np_to_float16(values)
    return halves


def quantize_weights_int4(model: Path, options: dict[str, Any], target: Path) -> None:
    """Store the weights of matrix products in 4 bits, with a scale per block.

    Args:
        model: The prepared float model.
        options: `block_size` (weights that share a scale), `symmetric`, `accuracy_level` (4 lets
            the product be computed in int8, 1 in float32), `exclude`.
        target: The file to write.

    Raises:
        StepError: The quantizer failed, or the model has no product with constant weights.
    """
    prepared = qdq.prepare(model)
    size_bytes = prepared.ByteSize()
    quantized = made_int4(prepared, options)
    check_changed(quantized, INT4, "the model has no MatMul to quantize")
    save(quantized, target)
    check_saving(size_bytes, target)


def made_int4(prepared: Any, options: dict[str, Any]) -> Any:  # noqa: ANN401 - onnx is untyped
    """Return a model whose products have weights of 4 bits.

    Args:
        prepared: A model whose nodes have names of their own; it may be changed.
        options: As for `quantize_weights_int4`.

    Returns:
        The model.

    Raises:
        StepError: The quantizer failed.
    """
    from onnxruntime.quantization.onnx_model import ONNXModel

    with tool("onnxruntime's weight quantizer"):
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        ONNXModel(prepared).replace_gemm_with_matmul()
        quantizer = MatMulNBitsQuantizer(
            prepared,
            bits=_WEIGHT_BITS,
            block_size=options["block_size"],
            is_symmetric=options["symmetric"],
            accuracy_level=options["accuracy_level"],
            nodes_to_exclude=list(options.get("exclude", ())),
        )
        quantizer.process()
        return quantizer.model.model


def check_changed(model: Any, made: Iterable[str], fault: str) -> None:  # noqa: ANN401 - onnx is untyped
    """Refuse a model in which a tool changed nothing.

    Args:
        model: What the tool made.
        made: Operators that the tool makes.
        fault: What to say.

    Raises:
        StepError: The model has none of the operators.
    """
    if not any(node.op_type in made for node in all_nodes(model.graph)):
        raise StepError(fault)


def check_saving(before_bytes: int, *targets: Path) -> None:
    """Delete and refuse files that are hardly smaller than the model that they were made from.

    Args:
        before_bytes: The size of that model with its weights.
        targets: The files.

    Raises:
        StepError: The files save less than `MIN_SAVING`.
    """
    saving = 1.0 - sum(target.stat().st_size for target in targets) / before_bytes
    if saving < MIN_SAVING:
        for target in targets:
            target.unlink()
        raise StepError(
            f"the weights that this scheme can quantize are {max(saving, 0.0):.1%} of the "
            "model's size"
        )
