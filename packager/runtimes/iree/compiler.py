"""Calls the IREE compiler, with the flags that suit a processor and a model.

Rules:
- Equal modules and options give equal bytes in any folder: names of source files and debug
  information are left out.
- When the compiler refuses a module, the caller gets one `StepError` with its first error.
- Code uses only instructions that the target names.

Source:
    IREE 3.13, `iree-compile --help`. Figures in comments: one thread of an AMD EPYC with AVX-512,
    a ResNet-20 of 32x32 pixels, ONNX Runtime 1.31 = 1.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from packager.errors import StepError
from packager.plan.targets import Target

TOOL: Final = "iree-compile"
TIMEOUT_S: Final = 1800.0
"""A guard against a compiler that hangs; MobileNetV2 takes half a minute."""

_MAX_REASON: Final = 200
_AVX512: Final = "avx512vl"
"""An x86-64 processor with it has 32 vector registers, as aarch64 has. A processor without it has
16, too few for direct convolutions."""

Dialect = Literal["onnx", "stablehlo"]

_CONVOLUTIONS: Final = {
    # Channels last: 0.8 with 32 vector registers; 1.7 in ONNX's layout. With 16 registers 2.7.
    "direct": (),
    # As a matrix product: 1.7 to 2.1 with 16 registers. Integers gain most, 11.8 becomes 3.9;
    # depthwise convolutions lose a fifth.
    "im2col": ("--iree-global-opt-use-im2col-for-convs",),
}

_CHANNELS_LAST: Final = "iree-preprocessing-convert-conv-to-channels-last"
_COMMON: Final = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    # Every optimisation that the compiler has; it gains a few hundredths here.
    "--iree-opt-level=O3",
    # Layouts that vector loads can follow; see `_CONVOLUTIONS`.
    f"--iree-preprocessing-pass-pipeline=builtin.module(util.func({_CHANNELS_LAST}))",
    # Integer products of a quantized graph stay integers, with the zero points apart.
    "--iree-global-opt-enable-qdq-to-integer-math",
    # Doubles stay doubles; the default silently computes them as FP32.
    "--iree-input-demote-f64-to-f32=false",
    # Twice the default: quantized convolutions need it. A worker thread has 128 KiB.
    "--iree-llvmcpu-stack-allocation-limit=65536",
    # Debug symbols name temporary files, so that the code differs from run to run.
    "--iree-llvmcpu-debug-symbols=false",
    "--iree-vm-bytecode-module-strip-debug-ops",
    "--iree-vm-bytecode-module-strip-source-map",
)
_DATA_TILING: Final = "--iree-opt-data-tiling"
"""Matrices in tiles: a dense network gains a third and quantized convolutions gain a tenth; float
convolutions as matrix products lose a third."""

_UNFOLDED: Final = "--iree-opt-const-eval=false"
"""The module keeps the weights as they are stored and lays them out when it is loaded, which takes
1 ms: a quantized ResNet-20 is 0.49 MB instead of 1.28 MB. Float weights would only be in memory
twice."""


def suggested_options(
    operators: Iterable[str], target: Target, *, depthwise: bool
) -> dict[str, Any]:
    """Return the options for a model that nobody measured.

    Args:
        operators: The model's operators, as ONNX or StableHLO names them.
        target: What it is compiled for.
        depthwise: Whether it has convolutions in groups.

    Returns:
        `convolutions`, `data_tiling` and `fold_weights`.
    """
    names = {name.rpartition(".")[2].lower() for name in operators}
    quantized = "dequantizelinear" in names
    convolutional = bool(names & {"conv", "convtranspose", "convolution"})
    roomy = target.architecture == "aarch64" or _AVX512 in target.cpu_flags
    direct = not quantized and (roomy or depthwise or not convolutional)
    return {
        "convolutions": "direct" if direct else "im2col",
        "data_tiling": direct or quantized,
        "fold_weights": not quantized,
    }


def compile_module(
    module: Path,
    destination: Path,
    dialect: Dialect,
    target: Target,
    options: Mapping[str, Any],
) -> None:
    """Compile a module.

    Args:
        module: MLIR, as text or bytecode.
        destination: The `.vmfb` file to write.
        dialect: What the module consists of.
        target: What to compile for.
        options: `convolutions` (`direct` or `im2col`), `data_tiling`, `fold_weights`.

    Raises:
        StepError: The compiler does not take the module, hangs, or is not installed.
    """
    flags = [
        *_COMMON,
        *_CONVOLUTIONS[options["convolutions"]],
        f"--iree-input-type={dialect}",
        f"--iree-llvmcpu-target-triple={target.triple}",
        f"--iree-llvmcpu-target-cpu={target.cpu}",
    ]
    if options["data_tiling"]:
        flags.append(_DATA_TILING)
    if not options["fold_weights"]:
        flags.append(_UNFOLDED)
    if target.features:
        flags.append(f"--iree-llvmcpu-target-cpu-features={','.join(target.features)}")
    try:
        done = subprocess.run(
            [_tool(), str(module), *flags, "-o", str(destination)],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as exc:
        raise StepError(f"{TOOL} did not end within {TIMEOUT_S:.0f} s") from exc
    except OSError as exc:
        raise StepError(f"{TOOL} cannot be run: {exc.strerror or exc}") from exc
    if done.returncode != 0 or not destination.is_file():
        raise StepError(f"{TOOL} failed: {_first_error(done.stderr, done.returncode)}")


def _tool() -> str:
    try:
        from iree.compiler.tools.binaries import find_tool

        return str(find_tool(TOOL))
    except (ImportError, ValueError) as exc:
        raise StepError(
            "the IREE compiler is not installed",
            remedy="install it with: pip install 'edgefleet[packager-iree]'",
        ) from exc


def _first_error(text: str, code: int) -> str:
    for line in text.splitlines():
        _, found, reason = line.partition("error: ")
        if found:
            return " ".join(reason.split())[:_MAX_REASON]
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"status {code}"
