"""Static int8 graphs for ONNX Runtime: prepare, calibrate, insert quantizers.

These are three functions because a search calibrates once and inserts many times.

Rules:
- Equal model, samples and options give equal graphs.
- Calibration holds the activations of one sample at a time, whatever the method. ONNX Runtime's own
  histogram methods would hold those of all samples.
- A node whose tensors were not finite during calibration stays in float.

Source:
    ONNX Runtime, "Quantize ONNX models"; S. Migacz, "8-bit Inference with TensorRT" (entropy).
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from packager.errors import StepError
from packager.runtimes.common.onnx_files import optimize, session_of
from packager.samples.store import sample, spread
from packager.sources.onnx_bodies import name_values_apart
from packager.sources.onnx_graph import name_nodes
from packager.sources.onnx_model import model_bytes
from packager.tools.quiet import tool
from runtime_adapters.onnxruntime.library import onnxruntime  # noqa: F401 - before its parts
from runtime_adapters.protocol import Tensors

QUANTIZER: Final = "onnxruntime's quantizer"
METHODS: Final = ("minmax", "entropy", "percentile")

_ENTROPY_BINS: Final = 128
"""ONNX Runtime's default. It leaves the search for a threshold only one candidate, the whole range.
With 256 and more the search clips: on a ResNet-20 the error of the answers rose by 15 to 20 dB."""

_ENTROPY_LEVELS: Final = 128
_PERCENTILE_BINS: Final = 2048
MAX_SAMPLES: Final = 4096
_FLOATS: Final = {
    "tensor(float)": onnx.TensorProto.FLOAT,
    "tensor(float16)": onnx.TensorProto.FLOAT16,
}


def prepare(path: Path) -> Any:  # noqa: ANN401 - onnx is untyped
    """Read a model, fold and fuse it, and declare the types and shapes of its tensors.

    Args:
        path: The float model.

    Returns:
        The model, each node and each value with a name of its own, also within bodies.

    Raises:
        StepError: ONNX Runtime does not take the model.
    """
    from onnxruntime.quantization.quant_utils import add_infer_metadata

    with tool("onnxruntime's pre-processing"), tempfile.TemporaryDirectory() as folder:
        model = onnx.load(str(path))
        del model.graph.value_info[:]  # stale shapes would break what follows
        optimize(model_bytes(model), Path(folder) / "prepared.onnx", level="basic")
        prepared = onnx.load(str(Path(folder) / "prepared.onnx"))
        name_nodes(prepared.graph)
        name_values_apart(prepared.graph)
        _flatten_biases(prepared.graph)
        _declare_floats(prepared)
        add_infer_metadata(prepared)  # keeps the quantizer from inferring them anew
    return prepared


def calibrate(model: Any, inputs: Tensors, options: dict[str, Any]) -> Any:  # noqa: ANN401 - both are untyped
    """Find the range of every activation.

    Args:
        model: A prepared model.
        inputs: Calibration samples by input.
        options: `method`, `percentile`, `samples`.

    Returns:
        ONNX Runtime's `TensorsData`.

    Raises:
        StepError: An option is not possible, or the model does not run.
    """
    method = options.get("method", "minmax")
    if method not in METHODS:
        raise StepError(f"calibration method {method!r} is not known", remedy=", ".join(METHODS))
    if not 1 <= options["samples"] <= MAX_SAMPLES:
        raise StepError(f"{options['samples']} calibration samples are not 1 to {MAX_SAMPLES}")
    with tool("onnxruntime's calibration"), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model_bytes(model))
        ranges = _min_max(path, inputs, options["samples"])
        if method == "minmax":
            return ranges
        return _histograms(path, inputs, options, ranges)


def insert(
    model: Any,  # noqa: ANN401 - onnx is untyped
    ranges: Any,  # noqa: ANN401 - onnxruntime is untyped
    options: dict[str, Any],
    *,
    only: Collection[str] = (),
    exclude: Collection[str] = (),
) -> Any:  # noqa: ANN401 - onnx is untyped
    """Make a quantized copy of a model.

    Args:
        model: A prepared model.
        ranges: From `calibrate`.
        options: `activations`, `reduce_range`.
        only: Names of the nodes to quantize; all where empty.
        exclude: Names of the nodes to leave in float.

    Returns:
        The quantized model.

    Raises:
        StepError: An excluded node is not in the graph, or the quantizer failed.
    """
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    names = {node.name for node in model.graph.node}
    if missing := sorted(set(exclude) - names):
        raise StepError(f"the prepared graph has no node {missing[0][:80]!r} to leave in float")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    activations = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}[options["activations"]]
    with tool(QUANTIZER):
        return QDQQuantizer(
            copy,
            per_channel=True,
            reduce_range=options["reduce_range"],
            weight_qType=QuantType.QInt8,
            activation_qType=activations,
            tensors_range=ranges,
            nodes_to_quantize=sorted(only),
            nodes_to_exclude=sorted({*exclude, *_unbounded(model, ranges)}),
            op_types_to_quantize=quantizable_operators(),
            extra_options={},
        ).quantize_model()


def quantizable_operators() -> list[str]:
    """Return the operators that static quantization knows."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return sorted({*QDQRegistry, *QLinearOpsRegistry})


def _flatten_biases(graph: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Give each Gemm a bias with one number per output.

    `[1, N]`, `[1]` and scalars mean the same to Gemm, but the quantizer fails on them.
    """
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Gemm" or len(node.input) < 3:  # noqa: PLR2004 - A, B, C
            continue
        weights, bias = (stored.get(name) for name in node.input[1:3])
        if weights is None or bias is None or len(bias.dims) == 1 != bias.dims[0]:
            continue
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        outputs = weights.dims[0 if transposed else 1]
        values = onnx.numpy_helper.to_array(bias)
        if values.size not in {1, outputs}:
            continue  # one row for each sample of a batch
        flat = np.ascontiguousarray(np.broadcast_to(values.reshape(-1), (outputs,)))
        name = f"{bias.name}_of_{node.name}"
        graph.initializer.append(onnx.numpy_helper.from_array(flat, name))
        node.input[2] = name


def _declare_floats(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Declare type and shape of every float tensor, as ONNX Runtime knows them.

    ONNX's own inference stops at an operator of ONNX Runtime, and the nodes behind it would never
    be quantized.
    """
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    found = [name for node in model.graph.node for name in node.output if name]
    for name in found:
        if name not in known:
            probe.graph.output.append(onnx.ValueInfoProto(name=name))
    for output in session_of(model_bytes(probe)).get_outputs():
        if output.type in _FLOATS and output.name not in known:
            # An empty shape stands for a scalar or for an unknown shape.
            shape = [size if isinstance(size, int | str) else None for size in output.shape] or None
            model.graph.value_info.append(
                onnx.helper.make_tensor_value_info(output.name, _FLOATS[output.type], shape)
            )


def _min_max(path: Path, inputs: Tensors, samples: int) -> Any:  # noqa: ANN401 - untyped
    from onnxruntime.quantization import CalibrationMethod

    calibrator = _calibrator(path, CalibrationMethod.MinMax)
    calibrator.collect_data(_Reader(inputs, samples, path))
    return calibrator.compute_data()


def _histograms(path: Path, inputs: Tensors, options: dict[str, Any], ranges: Any) -> Any:  # noqa: ANN401 - untyped
    """Collect histograms over known ranges, so that no sample is kept and no histogram grows."""
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import HistogramCollector

    method = options["method"]
    kind = CalibrationMethod.Entropy if method == "entropy" else CalibrationMethod.Percentile
    calibrator = _calibrator(path, kind)
    collector = HistogramCollector(
        method=method,
        symmetric=False,
        num_bins=_ENTROPY_BINS if method == "entropy" else _PERCENTILE_BINS,
        num_quantized_bins=_ENTROPY_LEVELS,
        percentile=options.get("percentile", 99.999),
        scenario="same",
    )
    for name, data in ranges.items():
        low, high = (np.asarray(bound).reshape(-1)[0] for bound in data.range_value)
        if not np.isfinite([low, high]).all():
            calibrator.tensors_to_calibrate.discard(name)
            continue
        threshold = max(abs(low), abs(high))
        counts, edges = np.histogram(
            np.zeros(0, low.dtype), collector.num_bins, range=(-threshold, threshold)
        )
        collector.histogram_dict[name] = (counts, edges.astype(low.dtype), low, high, threshold)
    calibrator.collector = collector
    reader = _Reader(inputs, options["samples"], path)
    while (feeds := reader.get_next()) is not None:
        calibrator.collect_data(_One(feeds))
    found = calibrator.compute_data()
    found.data.update({name: data for name, data in ranges.items() if name not in found})
    return found


def _calibrator(path: Path, method: Any) -> Any:  # noqa: ANN401 - untyped
    from onnxruntime.quantization.calibrate import create_calibrator

    augmented = path.with_name(f"{method.name}.onnx")
    return create_calibrator(
        path,
        quantizable_operators(),
        augmented_model_path=str(augmented),
        calibrate_method=method,
    )


def _unbounded(model: Any, ranges: Any) -> set[str]:  # noqa: ANN401 - both are untyped
    broken = {
        name for name, data in ranges.items() if not np.isfinite(np.asarray(data.range_value)).all()
    }
    return {node.name for node in model.graph.node if broken & {*node.input, *node.output}}


def _ranks(model: Path) -> dict[str, int]:
    """Return how many axes each input of a model has."""
    graph = onnx.load(str(model), load_external_data=False).graph
    return {value.name: len(value.type.tensor_type.shape.dim) for value in graph.input}


class _Reader:
    """Hands samples to a calibrator one at a time."""

    def __init__(self, inputs: Tensors, count: int, model: Path) -> None:
        self._inputs, self._ranks = inputs, _ranks(model)
        self._indices = iter(spread(len(next(iter(inputs.values()))), count))

    def get_next(self) -> Tensors | None:
        """Return the next sample, or None after the last."""
        index = next(self._indices, None)
        return None if index is None else sample(self._inputs, index, self._ranks)


class _One:
    """Hands one sample to a calibrator."""

    def __init__(self, feeds: Tensors) -> None:
        self._feeds: Tensors | None = feeds

    def get_next(self) -> Tensors | None:
        """Return the sample once."""
        feeds, self._feeds = self._feeds, None
        return feeds
