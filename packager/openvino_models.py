"""OpenVINO's model format: conversion with half-precision weights, and int8 through NNCF.

Rules:
- Equal model, samples and options give equal bytes.
- The batch stays as the source declares it, so that every variant takes the same requests.
- Whatever the tools raise comes out as a `StepError`.

Source:
    NNCF, "Post-training quantization"; OpenVINO, `save_model`.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from packager.data import sample, spread
from packager.errors import StepError
from runtime_adapters.protocol import Tensors


def convert(model: Path, target: Path) -> None:
    """Convert a model and store its weights in half precision.

    Args:
        model: The prepared float model.
        target: The `.xml` file to write; the weights go beside it.

    Raises:
        StepError: OpenVINO does not take the model.
    """
    from runtime_adapters.openvino_library import openvino

    try:
        openvino.save_model(openvino.convert_model(str(model)), str(target), compress_to_fp16=True)
    except Exception as exc:
        raise StepError(f"openvino's converter failed: {_short(exc)}") from exc


def quantize(model: Path, inputs: Tensors, options: dict[str, Any], target: Path) -> None:
    """Convert a model and quantize weights and activations to int8.

    Args:
        model: The prepared float model.
        inputs: Calibration samples by input.
        options: `preset`, `fast_bias_correction`, `samples`.
        target: The `.xml` file to write; the weights go beside it.

    Raises:
        StepError: OpenVINO or NNCF does not take the model.
    """
    from runtime_adapters.openvino_library import openvino

    import nncf  # after the line above: its statistics stay off  # isort: skip

    nncf.set_log_level(logging.ERROR)
    indices = spread(len(next(iter(inputs.values()))), options["samples"])
    try:
        quantized = nncf.quantize(
            openvino.convert_model(str(model)),
            nncf.Dataset([sample(inputs, index) for index in indices]),
            preset=nncf.QuantizationPreset(options["preset"]),
            subset_size=len(indices),
            fast_bias_correction=options["fast_bias_correction"],
        )
        openvino.save_model(quantized, str(target), compress_to_fp16=False)
    except Exception as exc:
        raise StepError(f"nncf failed: {_short(exc)}") from exc


def _short(exc: Exception) -> str:
    return f"{type(exc).__name__}: {' '.join(str(exc).split())[:200]}"
