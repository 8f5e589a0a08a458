"""Static int8 quantization for ONNX Runtime: QDQ, per channel, ranges from real samples.

Rules:
- Equal model, samples and options give equal bytes.
- Whatever the quantizer raises comes out as a `StepError`.

Source:
    ONNX Runtime, "Quantize ONNX models".
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)

from packager.data import sample, spread
from packager.errors import StepError
from packager.graph import clamp_ir, model_bytes
from runtime_adapters.protocol import Tensors

_TYPES = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}


class _Samples(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime is untyped
    """Hands samples to the quantizer one at a time."""

    def __init__(self, inputs: Tensors, count: int) -> None:
        self._inputs = inputs
        self._indices = iter(spread(len(next(iter(inputs.values()))), count))

    def get_next(self) -> Tensors | None:
        """Return the next sample, or None after the last."""
        index = next(self._indices, None)
        return None if index is None else sample(self._inputs, index)


def quantize(model: Path, inputs: Tensors, options: dict[str, Any], target: Path) -> None:
    """Quantize a model.

    Args:
        model: The prepared float model.
        inputs: Calibration samples by input.
        options: `activations` (`uint8` or `int8`), `reduce_range`, `samples`.
        target: The file to write.

    Raises:
        StepError: The quantizer failed.
    """
    logging.disable(logging.WARNING)  # it recommends pre-processing, which has been done
    try:
        quantize_static(
            str(model),
            str(target),
            _Samples(inputs, options["samples"]),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=options["reduce_range"],
            activation_type=_TYPES[options["activations"]],
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
        quantized = onnx.load(str(target))
    except Exception as exc:
        raise StepError(f"onnxruntime's quantizer failed: {type(exc).__name__}: {exc}") from exc
    clamp_ir(quantized)
    target.write_bytes(model_bytes(quantized))
