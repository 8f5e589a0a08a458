"""What is built for OpenVINO, and how.

Rules:
- Where a measurement decided a choice, a comment says so.
"""

from __future__ import annotations

from typing import Final

from packager.plan.recipes import PRODUCTS, QUANTIZABLE, Recipe
from packager.plan.runtimes import BuildRuntime

NAME: Final = "openvino"
_NNCF: Final = {
    "preset": "mixed",
    "bias_correction": "none",
    "range": "minmax",
    "transformer": False,
    "samples": 256,
}
"""On a ResNet-20 NNCF's defaults (means of ranges, fast bias correction) gave 17 dB and these
options gave 33; with these ranges bias correction only costs."""

_NNCF_ALTERNATIVES: Final = {
    "preset": ("performance",),
    "bias_correction": ("fast",),
    "range": ("mean",),
    "samples": (64,),
}
_IR_FILES: Final = ("model.xml", "model.bin")
_PINNED: Final = {"INFERENCE_PRECISION_HINT": "f32"}
"""On some processors the default silently computes in bfloat16."""

_WRONG_BRANCHES: Final = {
    "If": "NNCF quantizes within If, and OpenVINO computes such branches wrong on one thread"
}
"""With OpenVINO 2026.4 and NNCF 3.4 a branch of two int8 products answered with an error as large
as its answers on one thread, and rightly on two; in float it answers rightly on one."""

_RECIPES: Final = (
    Recipe(
        name=f"{NAME}-fp16",
        runtime=NAME,
        precision="fp16",
        files=_IR_FILES,
        kind="convert-openvino",
        apart=True,  # its converter holds the weights once, which was measured
        sources=("onnx", "tflite"),
        session=_PINNED,
        tools=("openvino",),
    ),
    Recipe(
        name=f"{NAME}-bf16",
        runtime=NAME,
        precision="bf16",
        files=_IR_FILES,
        kind="convert-openvino",
        apart=True,  # its converter holds the weights once, which was measured
        sources=("onnx", "tflite"),
        session={"INFERENCE_PRECISION_HINT": "bf16"},
        tools=("openvino",),
        any_isa=("avx512_bf16", "amx_bf16"),
    ),
    *(
        Recipe(
            name=f"{NAME}-{precision}",
            runtime=NAME,
            precision=precision,
            files=_IR_FILES,
            kind="quantize-openvino-accuracy" if repairs else "quantize-openvino",
            sources=("onnx",) if repairs else ("onnx", "tflite"),
            repairs=repairs,
            # Without VNNI, products of 8-bit values saturate in 16-bit sums; 7-bit weights do not.
            options={
                **_NNCF,
                "overflow_fix": "disable" if vnni else "enable",
                **({"ranking": 64} if repairs else {}),
            },
            alternatives={} if repairs else _NNCF_ALTERNATIVES,
            session=_PINNED,
            tools=("openvino", "nncf"),
            data=("calibration", "tuning") if repairs else ("calibration",),
            quantizes=QUANTIZABLE,
            enters_bodies=False,  # but it enters If
            unfit_bodies=_WRONG_BRANCHES,
            architectures=() if vnni else ("x86_64",),
            vnni=vnni,
        )
        for precision, repairs, vnni in (
            ("int8", "", True),
            ("int8-accuracy", f"{NAME}-int8", True),
            ("int8-reduced", "", False),
            ("int8-reduced-accuracy", f"{NAME}-int8-reduced", False),
        )
    ),
    Recipe(
        name=f"{NAME}-int4",
        runtime=NAME,
        precision="int4-weights",
        files=_IR_FILES,
        kind="compress-openvino",
        options={"mode": "int4_sym", "group_size": 32},
        alternatives={"mode": ("int4_asym",), "group_size": (16, 128)},
        session=_PINNED,
        tools=("openvino", "nncf"),
        quantizes=PRODUCTS,
        enters_bodies=False,
    ),
)

SPEC: Final = BuildRuntime(
    name=NAME,
    packages=("openvino",),
    recipes=_RECIPES,
    steps={
        "convert-openvino": "steps:convert",
        "quantize-openvino": "steps:quantize",
        "quantize-openvino-accuracy": "steps:quantize_with_accuracy",
        "compress-openvino": "steps:compress",
    },
    layers="layers:profile_layers",
    environment={"CI": "true", "NNCF_CI": "1"},  # its converter and NNCF report usage otherwise
    blocked=("openvino_telemetry",),
)
