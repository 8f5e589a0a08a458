"""Checks that an exported model gives the same answers as the model that it was exported from.

Rules:
- The check runs the exported file itself, with ONNX Runtime, on the processor.
- The error of a float answer may be a share of the largest answer; integers must be equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from packager.errors import ModelError
from packager.sources.onnx_checks import tensor_spec
from runtime_adapters.protocol import Limits, Tensors
from runtime_adapters.registry import open_session
from runtime_adapters.runtimes import ONNXRUNTIME
from wire.errors import FleetError
from wire.package.variant import VariantInfo

ABSOLUTE: Final = 1e-4
RELATIVE: Final = 1e-3
"""Two float32 implementations of one network differ by less, even over hundreds of layers."""

HALF_RELATIVE: Final = 2e-2
"""The same for float16, of eleven bits."""


def answers(file: Path, model: Any, inputs: Tensors) -> Tensors:  # noqa: ANN401 - onnx is untyped
    """Run a model's file.

    Args:
        file: The model's file.
        model: The same, parsed.
        inputs: One array per input.

    Returns:
        One array per output, in the graph's order.

    Raises:
        ModelError: ONNX Runtime cannot load or run it.
    """
    info = VariantInfo(
        runtime=ONNXRUNTIME.name,
        precision="fp32",
        model_file=file.name,
        inputs=tuple(tensor_spec(value, "input") for value in model.graph.input),
        outputs=tuple(tensor_spec(value, "output") for value in model.graph.output),
        size_bytes=0,
    )
    try:
        session = open_session(file.parent, info, Limits(threads=1))
        found = session.infer(inputs)
        session.close()
    except FleetError as exc:
        raise ModelError(f"the exported model does not run: {exc.message}") from exc
    return found


def worst_share(expected: NDArray[Any], found: NDArray[Any]) -> float:
    """Return the greatest error as a share of what is tolerated; infinity for another shape.

    Args:
        expected: The source's answer.
        found: The exported model's.

    Returns:
        At most 1.0 when the answers agree.
    """
    if expected.shape != found.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, found) else float("inf")
    wanted, given = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(wanted[~finite], given[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    relative = HALF_RELATIVE if expected.dtype == np.float16 else RELATIVE
    tolerated = ABSOLUTE + relative * float(np.abs(wanted[finite]).max())
    error = float(np.abs(wanted - given, where=finite, out=np.zeros_like(wanted)).max())
    return error / tolerated
