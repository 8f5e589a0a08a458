"""The table of candidates: which runtime, which precision, how the files are made.

A new runtime or precision is a new row here and a function for its kind in `packager.runtimes`.

Rules:
- Options are data: they go into the cache key and the provenance, nothing is set elsewhere.
- A choice that a measurement made says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

PREPARE: Final = "prepare"
MODEL_FILE: Final = "model.onnx"

SourceKind = Literal["onnx", "tflite", "stablehlo"]
"""Of a model after it was taken in: PyTorch and scikit-learn come in as ONNX."""

Data = Literal["calibration", "tuning"]
"""Samples that a step may see. What the gates judge on, no step that makes files ever sees."""

REFERENCES: Final[dict[SourceKind, str]] = {
    "onnx": "onnxruntime-fp32",
    "tflite": "litert-given",
    "stablehlo": "iree-fp32",
}
"""The variant that a device falls back to, by the kind of the source; kept wherever it fits."""

CONVOLUTIONS: Final = frozenset(
    {"Conv", "ConvTranspose", "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"}
)
PRODUCTS: Final = frozenset({"Gemm", "MatMul", "FULLY_CONNECTED", "BATCH_MATMUL"})
"""As ONNX and TFLite name them."""


MIN_SHARE: Final = 0.05
"""Where only some operators' weights shrink, less than this is not worth a variant."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a kind of candidate is made."""

    name: str
    runtime: str
    precision: str
    files: tuple[str, ...]
    """The first is the one that the runtime opens."""

    kind: str
    """Of the step that makes the files."""

    sources: tuple[SourceKind, ...] = ("onnx",)
    base: str = ""
    """The recipe whose files this one starts from; empty for the prepared model."""

    repairs: str = ""
    """The recipe in whose place it is tried, only when that one misses the gate of quality."""

    options: dict[str, Any] = {}
    session: dict[str, str] = {}
    """Options of the runtime, which become `VariantInfo.options`."""

    tools: tuple[str, ...]
    data: tuple[Data, ...] = ()
    parity: bool = False
    """Whether the step checks on some samples that its model computes the same."""

    min_share: float = 0.0
    """Least share of the weights that those operators must hold for it to be worth while."""

    quantizes: frozenset[str] = frozenset()
    """Operators of which the model must have one; empty where nothing is quantized."""

    architectures: tuple[str, ...] = ()
    """Empty means any."""

    vnni: bool | None = None
    """On x86-64, only with (True) or without (False) a VNNI instruction set."""

    any_isa: tuple[str, ...] = ()
    """The processor must have one of these features."""

    targeted: bool = False
    """Compiled for a processor: one candidate per target, not one for all."""

    static: bool = False
    """Needs every size but the batch's known."""

    family: str = ""
    """Shared with the recipes whose variants run the same instructions on other numbers, so that
    only accuracy tells them apart; empty for none."""

    on_request: bool = False
    """Only built when `--keep` names it."""

    last_resort: bool = False
    """Where another runtime serves, it is only built when its speed can be measured."""


_QUANTIZABLE: Final = CONVOLUTIONS | PRODUCTS
_NNCF: Final = {
    "preset": "mixed",
    "bias_correction": "none",
    "range": "minmax",
    "transformer": False,
    "samples": 256,
}
"""On a ResNet-20 NNCF's own choice (means of ranges, fast bias correction) gave 17 dB, this 33;
with these ranges bias correction only costs."""

_IR_FILES: Final = ("model.xml", "model.bin")
_PINNED: Final = {"INFERENCE_PRECISION_HINT": "f32"}
"""Because on some processors the default silently computes in bfloat16."""


def _onnx_int8() -> Iterator[Recipe]:
    """Every way of finding ranges on every way of multiplying 8-bit values."""
    methods = (("", "minmax"), ("-entropy", "entropy"), ("-percentile", "percentile"))
    for suffix, method in methods:
        yield _static_int8(suffix, method, "uint8", vnni=True)
        # Without VNNI, products of 8-bit values saturate in 16-bit sums; 7-bit weights do not.
        # Source: ONNX Runtime, "Quantize ONNX models", section on reduce_range.
        yield _static_int8(f"-reduced{suffix}", method, "uint8", vnni=False)
        # Arm's dot products want both sides signed; on x86-64 this is slower than float32.
        yield _static_int8(f"-s8s8{suffix}", method, "int8", vnni=None)


def _static_int8(suffix: str, method: str, activations: str, *, vnni: bool | None) -> Recipe:
    architectures = {True: (), False: ("x86_64",), None: ("aarch64",)}[vnni]
    return Recipe(
        name=f"onnxruntime-int8{suffix}",
        runtime="onnxruntime",
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
        tools=("onnx", "onnxruntime"),
        data=("calibration",),
        quantizes=_QUANTIZABLE,
        architectures=architectures,
        vnni=vnni,
        family=f"onnxruntime-{activations}",
        # With its usual 128 bins entropy gave min-max's ranges, with more 9 dB less.
        on_request=method == "entropy",
        # Takes many times as long as min-max, and helps only where outliers stretch the ranges.
        repairs=f"onnxruntime-int8{suffix.removesuffix('-percentile')}"
        if method == "percentile"
        else "",
    )


_ONNXRUNTIME: Final = (
    Recipe(
        name="onnxruntime-fp32",
        runtime="onnxruntime",
        precision="fp32",
        files=(MODEL_FILE,),
        kind=PREPARE,
        tools=("onnx", "onnxslim"),
    ),
    Recipe(
        name="onnxruntime-fp16",
        runtime="onnxruntime",
        precision="fp16",
        files=(MODEL_FILE,),
        kind="halve-onnx",
        tools=("onnx", "onnxruntime"),
    ),
    *_onnx_int8(),
    Recipe(
        # Loads in half the time; answers garbage on a processor of another class than it was made
        # on, so that only who knows the fleet's processors should ask for it.
        name="onnxruntime-fp32-offline",
        runtime="onnxruntime",
        precision="fp32-offline",
        files=(MODEL_FILE,),
        kind="optimize-onnx",
        session={"graph_optimization_level": "disabled"},
        tools=("onnx", "onnxruntime"),
        targeted=True,
        on_request=True,
    ),
    Recipe(
        name="onnxruntime-int8-dynamic",
        runtime="onnxruntime",
        precision="int8-dynamic",
        files=(MODEL_FILE,),
        kind="quantize-onnx-dynamic",
        options={"weights": "int8", "reduce_range": False, "operators": ["MatMul"]},
        tools=("onnx", "onnxruntime"),
        quantizes=PRODUCTS,
        min_share=MIN_SHARE,
    ),
    Recipe(
        name="onnxruntime-int4",
        runtime="onnxruntime",
        precision="int4-weights",
        files=(MODEL_FILE,),
        kind="quantize-onnx-int4",
        options={"block_size": 32, "symmetric": True, "accuracy_level": 4},
        tools=("onnx", "onnxruntime"),
        quantizes=PRODUCTS,
        min_share=MIN_SHARE,
    ),
    *(
        Recipe(
            name=f"{repaired.name}-repaired",
            runtime="onnxruntime",
            precision=f"{repaired.precision}-repaired",
            files=(MODEL_FILE,),
            kind="repair-onnx",
            repairs=repaired.name,
            options=repaired.options,
            tools=repaired.tools,
            data=("calibration", "tuning"),
            quantizes=repaired.quantizes,
            architectures=repaired.architectures,
            vnni=repaired.vnni,
        )
        for repaired in _onnx_int8()
        if repaired.options["method"] == "minmax"
    ),
)

_OPENVINO: Final = (
    Recipe(
        name="openvino-fp16",
        runtime="openvino",
        precision="fp16",
        files=_IR_FILES,
        kind="convert-openvino",
        sources=("onnx", "tflite"),
        session=_PINNED,
        tools=("openvino",),
    ),
    Recipe(
        name="openvino-bf16",
        runtime="openvino",
        precision="bf16",
        files=_IR_FILES,
        kind="convert-openvino",
        sources=("onnx", "tflite"),
        session={"INFERENCE_PRECISION_HINT": "bf16"},
        tools=("openvino",),
        any_isa=("avx512_bf16", "amx_bf16"),
    ),
    *(
        Recipe(
            name=f"openvino-{precision}",
            runtime="openvino",
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
            session=_PINNED,
            tools=("openvino", "nncf"),
            data=("calibration", "tuning") if repairs else ("calibration",),
            quantizes=_QUANTIZABLE,
            architectures=() if vnni else ("x86_64",),
            vnni=vnni,
        )
        for precision, repairs, vnni in (
            ("int8", "", True),
            ("int8-accuracy", "openvino-int8", True),
            ("int8-reduced", "", False),
            ("int8-reduced-accuracy", "openvino-int8-reduced", False),
        )
    ),
    Recipe(
        name="openvino-int4",
        runtime="openvino",
        precision="int4-weights",
        files=_IR_FILES,
        kind="compress-openvino",
        options={"mode": "int4_sym", "group_size": 32},
        session=_PINNED,
        tools=("openvino", "nncf"),
        quantizes=PRODUCTS,
    ),
)

_TFLITE: Final = ("model.tflite",)
_LITERT: Final = (
    Recipe(
        name="litert-given",
        runtime="litert",
        precision="as-given",
        files=_TFLITE,
        kind=PREPARE,
        sources=("tflite",),
        tools=("ai-edge-litert",),
    ),
    Recipe(
        name="litert-fp32",
        runtime="litert",
        precision="fp32",
        files=_TFLITE,
        kind="convert-litert",
        tools=("onnx2tf", "ai-edge-litert"),
        parity=True,
        static=True,
    ),
    *(
        Recipe(
            name=f"litert-{precision}",
            runtime="litert",
            precision=precision,
            files=_TFLITE,
            kind="quantize-litert",
            sources=("onnx", "tflite"),
            base="litert-fp32",
            options={"scheme": scheme, "samples": 256},
            tools=("ai-edge-quantizer", "ai-edge-litert"),
            data=("calibration",) if precision == "int8" else (),
            # armv7 has tflite-runtime alone, which computes these two wrong without saying so.
            architectures=("x86_64", "aarch64") if scheme.startswith("dynamic") else (),
            quantizes=_QUANTIZABLE if precision != "fp16" else frozenset(),
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

_COMPILED: Final = tuple(
    recipe
    for runtime, tools, file, last_resort in (
        ("tvm", ("apache-tvm", "apache-tvm-ffi"), ("model.so",), True),
        ("iree", ("iree-base-compiler",), ("model.vmfb", "model.json"), False),
    )
    for recipe in (
        Recipe(
            name=f"{runtime}-fp32",
            runtime=runtime,
            precision="fp32",
            files=file,
            kind=f"compile-{runtime}",
            sources=("onnx", "stablehlo") if runtime == "iree" else ("onnx",),
            tools=tools,
            targeted=True,
            static=True,
            last_resort=last_resort,
        ),
        Recipe(
            # From the plain QDQ graph: the compilers know no fused integer operators.
            name=f"{runtime}-int8",
            runtime=runtime,
            precision="int8",
            files=file,
            kind=f"compile-{runtime}",
            base="onnxruntime-int8",
            tools=tools,
            targeted=True,
            static=True,
            data=("calibration",),
            quantizes=_QUANTIZABLE,
            last_resort=last_resort,
        ),
    )
)

RECIPES: Final[tuple[Recipe, ...]] = (*_ONNXRUNTIME, *_OPENVINO, *_LITERT, *_COMPILED)
BY_NAME: Final[dict[str, Recipe]] = {recipe.name: recipe for recipe in RECIPES}
