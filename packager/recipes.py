"""The table of candidates: which runtime, which precision, how the files are made.

A new runtime or precision is a new row here and a function in `packager.step` for its kind.

Rules:
- Options are data: they go into the cache key and the provenance, nothing is set elsewhere.
- A choice that a measurement made says so.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

PREPARE: Final = "prepare"
MODEL_FILE: Final = "model.onnx"
REFERENCE_CANDIDATE: Final = "onnxruntime-fp32"
"""The unquantized variant that a device falls back to; kept wherever it fits."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a kind of candidate is made."""

    name: str
    runtime: str
    precision: str
    files: tuple[str, ...]
    """The first is the one that the runtime opens."""

    kind: str
    """Of the step that makes the files from the prepared model."""

    options: dict[str, Any] = {}
    session: dict[str, str] = {}
    """Options of the runtime, which become `VariantInfo.options`."""

    tools: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    """Empty means any."""

    vnni: bool | None = None
    """On x86-64, only with (True) or without (False) a VNNI instruction set."""

    @property
    def calibrated(self) -> bool:
        """Whether it is an integer candidate, which needs calibration data."""
        return self.precision.startswith("int8")


_ONNX_INT8: Final = {"activations": "uint8", "reduce_range": False, "samples": 256}
_OPENVINO_SESSION: Final = {"INFERENCE_PRECISION_HINT": "f32"}
"""Pinned, because on some processors the default silently computes in bfloat16."""

RECIPES: Final[tuple[Recipe, ...]] = (
    Recipe(
        name=REFERENCE_CANDIDATE,
        runtime="onnxruntime",
        precision="fp32",
        files=(MODEL_FILE,),
        kind=PREPARE,
        tools=("onnx", "onnxslim"),
    ),
    Recipe(
        name="onnxruntime-int8",
        runtime="onnxruntime",
        precision="int8",
        files=(MODEL_FILE,),
        kind="quantize-onnx",
        options=_ONNX_INT8,
        tools=("onnx", "onnxruntime"),
        vnni=True,
    ),
    Recipe(
        # Without VNNI, products of 8-bit values saturate in 16-bit sums; 7-bit weights do not.
        # Source: ONNX Runtime, "Quantize ONNX models", section on reduce_range.
        name="onnxruntime-int8-reduced",
        runtime="onnxruntime",
        precision="int8-reduced",
        files=(MODEL_FILE,),
        kind="quantize-onnx",
        options={**_ONNX_INT8, "reduce_range": True},
        tools=("onnx", "onnxruntime"),
        architectures=("x86_64",),
        vnni=False,
    ),
    Recipe(
        # Arm's dot products want both sides signed; on x86-64 this is slower than float32.
        name="onnxruntime-int8-s8s8",
        runtime="onnxruntime",
        precision="int8-s8s8",
        files=(MODEL_FILE,),
        kind="quantize-onnx",
        options={**_ONNX_INT8, "activations": "int8"},
        tools=("onnx", "onnxruntime"),
        architectures=("aarch64",),
    ),
    Recipe(
        name="openvino-fp16",
        runtime="openvino",
        precision="fp16",
        files=("model.xml", "model.bin"),
        kind="convert-openvino",
        session=_OPENVINO_SESSION,
        tools=("openvino",),
    ),
    Recipe(
        # Fast bias correction cost 1.2 points of accuracy on a ResNet-20; the full one 0.4.
        name="openvino-int8",
        runtime="openvino",
        precision="int8",
        files=("model.xml", "model.bin"),
        kind="quantize-openvino",
        options={"preset": "mixed", "fast_bias_correction": False, "samples": 256},
        session=_OPENVINO_SESSION,
        tools=("openvino", "nncf"),
    ),
)
