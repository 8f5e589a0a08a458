"""One version of a model as files: fp32, fp16 and int8 ONNX; TFLite that a seed changed."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16

from wire.delta import formats

Untyped: TypeAlias = Any
"""What ONNX and PyTorch hand out; neither has types."""

SEED = 20261123
SHARE = 0.02
STEP = 1e-3
"""Of a seeded change: the share of int8 codes that move by one, and how far a float moves of
itself."""


class _Images(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str, images: NDArray[np.float32]) -> None:
        self._feeds = iter({name: image[np.newaxis]} for image in images)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def onnx_files(model: Untyped, calibration: NDArray[np.float32]) -> dict[str, bytes]:
    """Return a model in three precisions.

    Args:
        model: The float model.
        calibration: Images, as it takes them.

    Returns:
        Precision to content.
    """
    content = model.SerializeToString()
    half = convert_float_to_float16(onnx.load_from_string(content), keep_io_types=True)
    return {
        "fp32": content,
        "fp16": half.SerializeToString(),
        "int8": quantised(model, calibration),
    }


def quantised(model: Untyped, calibration: NDArray[np.float32]) -> bytes:
    """Return a model in int8: weights by channel, activations calibrated."""
    logging.disable(logging.WARNING)  # it asks for a preparation that these graphs do not need
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        given, made = Path(folder) / "fp32.onnx", Path(folder) / "int8.onnx"
        given.write_bytes(model.SerializeToString())  # a model in memory would be changed
        quantize_static(
            str(given),
            str(made),
            _Images(model.graph.input[0].name, calibration),
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
        )
        logging.disable(logging.NOTSET)
        return made.read_bytes()


def changed_tflite(content: bytes, *, head_only: bool) -> bytes:
    """Return a TFLite model whose weights were moved a little, by a seed and not by training.

    Args:
        content: The model.
        head_only: Move the weights of the last layer alone, the matrix with the fewest rows.

    Returns:
        The other version.
    """
    random = np.random.default_rng(SEED)
    made = np.frombuffer(content, np.uint8).copy()
    weights = [p for p in formats.places("m.tflite", content) if len(p.shape) > 1]
    matrices = [p for p in weights if len(p.shape) == 2]  # noqa: PLR2004 - rows and columns
    for place in [min(matrices, key=lambda p: p.shape[0])] if head_only else weights:
        values = made[place.offset : place.offset + place.length]
        if place.element == "f4":
            floats = values.view(np.float32)
            floats *= 1 + STEP * random.standard_normal(floats.size).astype(np.float32)
        elif place.element == "i1":
            values += (random.random(values.size) < SHARE).astype(np.uint8)
    return made.tobytes()
