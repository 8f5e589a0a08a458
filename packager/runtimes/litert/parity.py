"""Checks that a converted model computes the same as the ONNX model, up to rounding.

Rules:
- Both run as a device would run them, through their adapters.
- The allowed error follows from the model alone: it is the worst rounding of the model's sums.

Source:
    N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1: a sum of
    n products is off by at most n u / (1 - n u) of the sum of their magnitudes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from packager.errors import StepError
from packager.samples.store import sample, spread, stacked, unit_of
from packager.sources.onnx_checks import tensor_spec
from packager.sources.onnx_graph import all_nodes
from runtime_adapters.batches import ranks_of
from runtime_adapters.litert import adapter as litert_adapter
from runtime_adapters.onnxruntime import adapter as onnxruntime_adapter
from runtime_adapters.protocol import Adapter, Limits, Tensor, Tensors
from wire.errors import FleetError
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

ROUNDING: Final = 2.0**-24
"""Unit roundoff of float32."""

TIGHTEST: Final = 1e-3
"""The least error that is allowed, even for a small model: recurrent layers round in every step,
and runtimes approximate functions differently. A wrong conversion is off by far more."""

LOOSEST: Final = 1e-2
"""The greatest error that is allowed, even for a deep model."""

_OPERATION_ROUNDINGS: Final = 16
"""Roundings that every operator adds: approximations of functions are off by a few."""


def check_parity(model: Path, converted: Path, samples: Tensors, *, count: int = 8) -> float:
    """Run both models on samples and compare.

    Args:
        model: The ONNX model.
        converted: The float32 TFLite model, with the same inputs and outputs.
        samples: Samples by input, along the first axis.
        count: How many of them to run.

    Returns:
        The worst error of any output, relative to the greatest value of that output.

    Raises:
        StepError: An answer is further off than rounding explains, or a runtime fails.
    """
    proto = onnx.load(str(model))
    allowed = rounding_bound(proto)
    inputs = tuple(tensor_spec(value, "input") for value in proto.graph.input)
    outputs = tuple(tensor_spec(value, "output") for value in proto.graph.output)
    indices = spread(len(next(iter(samples.values()))), count)
    chosen = [sample(samples, index, ranks_of(inputs)) for index in indices]
    try:
        right = _answers(onnxruntime_adapter.ADAPTER, model, (inputs, outputs), chosen)
        found = _answers(litert_adapter.ADAPTER, converted, (inputs, outputs), chosen)
    except FleetError as exc:
        raise StepError(f"the converted model cannot be compared: {exc.message}") from exc
    worst = max(relative_error(found[name], reference) for name, reference in right.items())
    if worst > allowed:
        raise StepError(
            f"the converted model gives other answers: its error is {worst:.1e} of the largest "
            f"output, but rounding explains only {allowed:.1e}"
        )
    return worst


def rounding_bound(model: Any) -> float:  # noqa: ANN401 - onnx is untyped
    """Return how far two float32 runs of a model may be apart, relative to its greatest output.

    Args:
        model: The ONNX model.

    Returns:
        The roundings of all its operators, for both runs; within `TIGHTEST` and `LOOSEST`.
    """
    weights = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    roundings = sum(
        _terms(node.op_type, [weights[name] for name in node.input if name in weights])
        + _OPERATION_ROUNDINGS
        for node in all_nodes(model.graph)
    )
    return min(max(2 * roundings * ROUNDING, TIGHTEST), LOOSEST)


def relative_error(found: Tensor, right: Tensor) -> float:
    """Return the greatest error divided by the greatest value.

    Args:
        found: What a model gave.
        right: What it should give.

    Returns:
        The error; infinite where shapes differ or only one of them is finite.
    """
    if found.shape != right.shape:
        return math.inf
    one, other = found.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(finite, np.isfinite(one)):
        return math.inf
    error = np.abs(one[finite] - other[finite]).max(initial=0.0)
    scale = np.abs(other[finite]).max(initial=np.finfo(np.float32).tiny)
    return float(error / scale)


def _terms(operator: str, weights: Sequence[Sequence[int]]) -> int:
    """Return how many products an operator with weights sums for one output, at most."""
    matrices = [dims for dims in weights if len(dims) > 1]
    if not matrices:
        return 0
    return math.prod(matrices[0][1:]) if "Conv" in operator else max(matrices[0])


def _answers(
    adapter: Adapter,
    model: Path,
    declared: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]],
    samples: list[Tensors],
) -> Tensors:
    inputs, outputs = declared
    info = VariantInfo(
        runtime=adapter.name,
        precision="fp32",
        model_file=model.name,
        inputs=inputs,
        outputs=outputs,
        size_bytes=1,
    )
    session = adapter.load(model.parent, info, Limits())
    try:
        answers = [session.infer(one) for one in samples]
    finally:
        session.close()
    return {
        spec.name: stacked([answer[spec.name] for answer in answers], spec, unit_of(inputs))
        for spec in outputs
    }
