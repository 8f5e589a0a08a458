"""What is built for ONNX Runtime, and how.

Rules:
- Where a measurement decided a choice, a comment says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from packager.plan.recipes import (
    MIN_SHARE,
    MODEL_FILE,
    PREPARE,
    PRODUCTS,
    QUANTIZABLE,
    SOURCE_MODEL_FILE,
    Recipe,
)
from packager.plan.runtimes import BuildRuntime, SourceFormat

NAME: Final = "onnxruntime"
_TOOLS: Final = ("onnx", "onnxruntime")


def _onnx_int8() -> Iterator[Recipe]:
    """Yield a recipe for each way to find ranges and each way to multiply 8-bit values."""
    methods = (("", "minmax"), ("-entropy", "entropy"), ("-percentile", "percentile"))
    for suffix, method in methods:
        yield _static_int8(suffix, method, "uint8", vnni=True)
        # Without VNNI, products of 8-bit values saturate in 16-bit sums; 7-bit weights do not.
        # Source: ONNX Runtime, "Quantize ONNX models", section on reduce_range.
        yield _static_int8(f"-reduced{suffix}", method, "uint8", vnni=False)
        # Arm's dot products want both operands signed; on x86-64 this is slower than float32.
        yield _static_int8(f"-s8s8{suffix}", method, "int8", vnni=None)


def _dynamic_int8(suffix: str, *, vnni: bool) -> Recipe:
    """Return the recipe for ranges that are found while the model runs; as to VNNI see above."""
    return Recipe(
        name=f"{NAME}-int8-dynamic{suffix}",
        runtime=NAME,
        precision=f"int8-dynamic{suffix}",
        files=(MODEL_FILE,),
        kind="quantize-onnx-dynamic",
        apart=True,
        options={"weights": "int8", "reduce_range": not vnni, "operators": ["MatMul"]},
        tools=_TOOLS,
        quantizes=PRODUCTS,
        min_share=MIN_SHARE,
        architectures=() if vnni else ("x86_64",),
        vnni=vnni,
    )


def _static_int8(suffix: str, method: str, activations: str, *, vnni: bool | None) -> Recipe:
    architectures = {True: (), False: ("x86_64",), None: ("aarch64",)}[vnni]
    return Recipe(
        name=f"{NAME}-int8{suffix}",
        runtime=NAME,
        precision=f"int8{suffix}",
        files=(MODEL_FILE,),
        kind="quantize-onnx",
        options={
            "activations": activations,
            "reduce_range": vnni is False,
            "method": method,
            "percentile": 99.99,
            "samples": 256,
        },
        alternatives={"samples": (64,)}
        | ({"percentile": (99.9, 99.999)} if method == "percentile" else {}),
        tools=_TOOLS,
        data=("calibration",),
        quantizes=QUANTIZABLE,
        enters_bodies=False,
        architectures=architectures,
        vnni=vnni,
        family=f"{NAME}-{activations}",
        # With its usual 128 bins entropy gave the ranges of min-max; with more it gave 9 dB less.
        on_request=method == "entropy",
        searched=method == "entropy",
        # It takes many times as long as min-max and helps only where outliers stretch the ranges.
        repairs=f"{NAME}-int8{suffix.removesuffix('-percentile')}"
        if method == "percentile"
        else "",
    )


_RECIPES: Final = (
    Recipe(
        name=f"{NAME}-fp32",
        runtime=NAME,
        precision="fp32",
        files=(MODEL_FILE,),
        kind=PREPARE,
        apart=True,
        tools=("onnx", "onnxslim"),
    ),
    Recipe(
        name=f"{NAME}-fp16",
        runtime=NAME,
        precision="fp16",
        files=(MODEL_FILE,),
        kind="halve-onnx",
        apart=True,
        tools=_TOOLS,
    ),
    *_onnx_int8(),
    Recipe(
        # It loads in half the time. On a processor of another class its answers are wrong, so a
        # user who asks for it must know the fleet's processors.
        name=f"{NAME}-fp32-offline",
        runtime=NAME,
        precision="fp32-offline",
        files=(MODEL_FILE,),
        kind="optimize-onnx",
        session={"graph_optimization_level": "disabled"},
        tools=_TOOLS,
        targeted=True,
        on_request=True,
    ),
    _dynamic_int8("", vnni=True),
    _dynamic_int8("-reduced", vnni=False),
    Recipe(
        name=f"{NAME}-int4",
        runtime=NAME,
        precision="int4-weights",
        files=(MODEL_FILE,),
        kind="quantize-onnx-int4",
        apart=True,
        options={"block_size": 32, "symmetric": True, "accuracy_level": 4},
        alternatives={"block_size": (16, 128), "symmetric": (False,)},
        tools=_TOOLS,
        quantizes=PRODUCTS,
        min_share=MIN_SHARE,
    ),
    *(
        Recipe(
            name=f"{repaired.name}-repaired",
            runtime=NAME,
            precision=f"{repaired.precision}-repaired",
            files=(MODEL_FILE,),
            kind="repair-onnx",
            repairs=repaired.name,
            options=repaired.options,
            tools=repaired.tools,
            data=("calibration", "tuning"),
            quantizes=repaired.quantizes,
            enters_bodies=repaired.enters_bodies,
            architectures=repaired.architectures,
            vnni=repaired.vnni,
        )
        for repaired in _onnx_int8()
        if repaired.options["method"] == "minmax"
    ),
)

SPEC: Final = BuildRuntime(
    name=NAME,
    packages=("onnxruntime",),
    recipes=_RECIPES,
    steps={
        "prepare-onnx": "source:prepare",
        "halve-onnx": "steps:halve",
        "quantize-onnx": "steps:quantize",
        "quantize-onnx-dynamic": "steps:quantize_dynamic",
        "quantize-onnx-int4": "steps:quantize_int4",
        "optimize-onnx": "steps:optimize",
        "repair-onnx": "steps:repair",
    },
    source=SourceFormat(
        kind="onnx", tools=("onnx", "onnxslim"), file=SOURCE_MODEL_FILE, recipe=f"{NAME}-fp32"
    ),
    layers="layers:profile_layers",
    texts=True,
    reads_packages=True,
    environment={"ORT_DISABLE_TELEMETRY": "1"},
)
