"""What is built for LiteRT, and how."""

from __future__ import annotations

from typing import Final

from packager.plan.recipes import PREPARE, QUANTIZABLE, TFLITE_FILE, Recipe
from packager.plan.runtimes import BuildRuntime, SourceFormat

NAME: Final = "litert"
_EXTRA: Final = "pip install 'edgefleet[packager-litert]'"

_RECIPES: Final = (
    Recipe(
        name=f"{NAME}-given",
        runtime=NAME,
        precision="as-given",
        files=(TFLITE_FILE,),
        kind=PREPARE,
        sources=("tflite",),
        tools=("ai-edge-litert",),
    ),
    Recipe(
        name=f"{NAME}-fp32",
        runtime=NAME,
        precision="fp32",
        files=(TFLITE_FILE,),
        kind="convert-litert",
        tools=("onnx2tf", "ai-edge-litert"),
        parity=True,
        static=True,
    ),
    *(
        Recipe(
            name=f"{NAME}-{precision}",
            runtime=NAME,
            precision=precision,
            files=(TFLITE_FILE,),
            kind="quantize-litert",
            sources=("onnx", "tflite"),
            base=f"{NAME}-fp32",
            options={"scheme": scheme, "samples": 256},
            tools=("ai-edge-quantizer", "ai-edge-litert"),
            alternatives={"samples": (64,)} if precision == "int8" else {},
            data=("calibration",) if precision == "int8" else (),
            # Only tflite-runtime runs on armv7; it silently computes these two wrong.
            architectures=("x86_64", "aarch64") if scheme.startswith("dynamic") else (),
            quantizes=QUANTIZABLE if precision != "fp16" else frozenset(),
            static=True,
        )
        for precision, scheme in (
            ("fp16", "fp16"),
            ("int8", "static-int8"),
            ("int8-dynamic", "dynamic-int8"),
            ("int4", "dynamic-int4"),
        )
    ),
)

SPEC: Final = BuildRuntime(
    name=NAME,
    packages=("ai-edge-litert",),
    recipes=_RECIPES,
    steps={
        "prepare-tflite": "source:prepare",
        "convert-litert": "steps:convert",
        "quantize-litert": "steps:quantize",
    },
    layers="layers:profile_layers",
    source=SourceFormat(
        kind="tflite", tools=("ai-edge-litert",), file=TFLITE_FILE, recipe=f"{NAME}-given"
    ),
    # tflite-runtime delegates less to XNNPACK, and quantized models not at all.
    other_kernels={"delegate": "none"},
    installs={
        "ai-edge-litert": _EXTRA,
        "ai-edge-quantizer": _EXTRA,
        "onnx2tf": "fleet tool install onnx2tf",
    },
)
