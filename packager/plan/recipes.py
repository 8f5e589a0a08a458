"""A recipe: the runtime, the precision, and how the files are made.

The recipes are in `packager.runtimes`, each beside the code of its runtime.

Rules:
- Options are data: they go into the cache key and the provenance. Nothing else sets an option.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

PREPARE: Final = "prepare"
MODEL_FILE: Final = "model.onnx"
WEIGHTS_FILE: Final = "model.onnx.data"
"""The weights of an ONNX model, where they are not in it."""

SOURCE_MODEL_FILE: Final = "source.onnx"
"""An ONNX model as it was handed in, beside its clean copy."""

TFLITE_FILE: Final = "model.tflite"

SourceKind = Literal["onnx", "tflite", "stablehlo"]
"""Kind of a model after its import: PyTorch and scikit-learn models become ONNX."""

Data = Literal["calibration", "tuning"]
"""Samples that a step may see. No step that makes files ever sees the samples of the gates."""

CONVOLUTIONS: Final = frozenset(
    {"Conv", "ConvTranspose", "CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"}
)
PRODUCTS: Final = frozenset({"Gemm", "MatMul", "FULLY_CONNECTED", "BATCH_MATMUL"})
"""As ONNX and TFLite name them."""

QUANTIZABLE: Final = CONVOLUTIONS | PRODUCTS

CONTROL_FLOW: Final = ("If", "Loop", "Scan")
"""Operators of ONNX that hold graphs, their bodies."""


MIN_SHARE: Final = 0.05
"""Where only some operators' weights shrink, a share below this is not worth a variant."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a kind of candidate is made."""

    name: str
    runtime: str
    precision: str
    files: tuple[str, ...]
    """The first is the one that the runtime opens."""

    kind: str
    """Kind of the step that makes the files."""

    sources: tuple[SourceKind, ...] = ("onnx",)
    base: str = ""
    """The recipe whose files this one starts from; empty for the prepared model."""

    repairs: str = ""
    """The recipe that it replaces; it is tried only when that one misses the gate of quality."""

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

    enters_bodies: bool = True
    """Whether it quantizes within the bodies of `If`, `Loop` and `Scan`; else these stay in float,
    and what is outside of them must be worth a variant."""

    unfit: dict[str, str] = {}
    """Operator to the reason why it does nothing for models with that operator."""

    unfit_bodies: dict[str, str] = {}
    """The same, where weights that it would quantize are within bodies."""

    architectures: tuple[str, ...] = ()
    """Empty means any."""

    vnni: bool | None = None
    """On x86-64, only with (True) or without (False) a VNNI instruction set."""

    any_isa: tuple[str, ...] = ()
    """The processor must have one of these features."""

    targeted: bool = False
    """Whether it is compiled for a processor: one candidate per target, not one for all."""

    static: bool = False
    """Whether all sizes but the batch must be known."""

    family: str = ""
    """The variants of a family run the same instructions on other numbers, so they differ only in
    accuracy; empty for none."""

    apart: bool = False
    """Whether it can be made from a model whose weights are in a file beside it, and holds them
    once at most; an ONNX model that is made of it has such a file, too."""

    on_request: bool = False
    """Only built when `--keep` names it."""

    alternatives: dict[str, tuple[Any, ...]] = {}
    """Other values of options; only a search makes variants with them."""

    searched: bool = False
    """Whether a search makes it too, although it is on request."""

    last_resort: bool = False
    """Where another runtime serves, it is only built when its speed can be measured."""


def files_of(recipe: Recipe, *, apart: bool) -> tuple[str, ...]:
    """Return the files of a recipe's variant.

    Args:
        recipe: The recipe.
        apart: Whether the weights of the model are in a file beside it.

    Returns:
        The files; the first is the one that the runtime opens.
    """
    return (*recipe.files, WEIGHTS_FILE) if apart and MODEL_FILE in recipe.files else recipe.files
