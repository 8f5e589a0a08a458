"""Every ONNX model that the onnx package brings for tests, built for a server's profile.

These are the well-known large image networks with weights that are all computed. Each is built with
random inputs for ONNX Runtime and OpenVINO, without integer variants. `--integers` adds
those, and `--runtimes` names the runtimes, comma-separated; with LiteRT the larger models take
minutes. `--only TEXT` leaves out the models whose name lacks a text. A row tells how long the build
took, which variants came of it, and of each other one exactly why not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import onnx

from benchmarks.harness import Row, alone, main
from packager.build import build
from packager.device_profiles import load_profile
from packager.request import BuildRequest
from packager.result import BuildResult, CandidateReport
from packager.run.process import StepLimits
from wire.errors import FleetError
from wire.profile import DeviceProfile

PROFILE: Final = "x86-64-vnni"
RUNTIMES: Final = "onnxruntime,openvino"
REFERENCE: Final = "onnxruntime-fp32"
AIM: Final = "ONNX Runtime and one more"
STEP_TIMEOUT_S: Final = 120.0
SEED: Final = 20240229


def measure(quick: bool, runtimes: tuple[str, ...], only: str, *, integers: bool) -> list[Row]:
    """Build every model.

    Args:
        quick: With fewer samples.
        runtimes: To build for.
        only: Text in the names of the models; empty for all.
        integers: Whether to calibrate integer variants too.

    Returns:
        A row per model, and one for the whole.
    """
    profile = msgspec.structs.replace(
        load_profile(PROFILE), runtimes=runtimes, runtime_versions=msgspec.UNSET
    )
    models = [path for path in _models() if only in path.stem]
    rows: list[Row] = []
    for model in models:
        with tempfile.TemporaryDirectory(prefix="models-") as folder:
            rows.append(_row(model, Path(folder), profile, 16 if quick else 32, integers))
        print(f"{rows[-1].name}: {rows[-1].value:.0f} s", file=sys.stderr, flush=True)
    total_s = sum(row.value or 0.0 for row in rows)
    return [*rows, alone(f"all {len(models)} models", [total_s], unit="s")]


def _models() -> list[Path]:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return sorted(folder.glob("*.onnx"))


def _row(model: Path, folder: Path, profile: DeviceProfile, count: int, integers: bool) -> Row:
    calibration = _samples(model, folder / "calibration.npz", count, seed=SEED)
    evaluation = _samples(model, folder / "evaluation.npz", count, seed=SEED + 1)
    request = BuildRequest(
        model=str(model),
        profiles=(profile,),
        calibration=str(calibration) if integers else "",
        evaluation=str(evaluation),
        float_only=not integers,
        cache=folder / "cache",
        output=folder / "package",
        min_runs=5,
        min_duration_s=0.0,
        repair_trials=0,
        limits=StepLimits(timeout_s=STEP_TIMEOUT_S),
    )
    began_s = time.perf_counter()
    try:
        result = build(request, lambda line: print(f"  {line}", file=sys.stderr, flush=True))
    except FleetError as exc:
        text, met = f"no package: {exc.message}", False
    else:
        text, met = _told(result)
    return Row(
        name=model.stem,
        value=time.perf_counter() - began_s,
        unit="s",
        spread=text.replace("|", "/"),
        aim=AIM,
        met=met,
    )


def _told(result: BuildResult) -> tuple[str, bool]:
    """Return what was built and why the rest was not, and whether the aim is met."""
    able = [candidate for candidate in result.candidates if not candidate.lost]
    parts: list[str] = []
    for runtime in dict.fromkeys(candidate.runtime for candidate in result.candidates):
        built = [candidate.precision for candidate in able if candidate.runtime == runtime]
        parts.append(f"{runtime}: {', '.join(built) or 'none'}")
    parts += [f"{names}: {why}" for why, names in _losses(result.candidates).items()]
    parts += [
        f"{reason.candidate}: {reason.reason}"
        for reason in result.impossible
        if reason.candidate.startswith(tuple({c.runtime for c in result.candidates}))
        and "not installed" in reason.reason
    ]
    met = REFERENCE in {c.name for c in able} and len({c.runtime for c in able}) > 1
    return "; ".join(parts), met


def _losses(candidates: tuple[CandidateReport, ...]) -> dict[str, str]:
    """Return each reason with the candidates that were lost for it."""
    found: dict[str, list[str]] = {}
    for candidate in candidates:
        if candidate.lost:
            found.setdefault(candidate.lost, []).append(candidate.name)
    return {reason: ", ".join(names) for reason, names in found.items()}


def _samples(model: Path, path: Path, count: int, *, seed: int) -> Path:
    """Write random values between 0 and 1 for every input that has no value of its own."""
    graph = onnx.load(str(model)).graph
    stored = {tensor.name for tensor in graph.initializer}
    random = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for value in graph.input:
        if value.name not in stored:
            sizes = [size.dim_value for size in value.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            arrays[value.name] = random.random((count, *sizes[1:]), np.float32).astype(dtype)
    np.savez(path, **arrays)
    return path


def _command(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--runtimes", default=RUNTIMES)
    parser.add_argument("--only", default="")
    parser.add_argument("--integers", action="store_true")
    known, rest = parser.parse_known_args(argv)
    runtimes = tuple(known.runtimes.split(","))
    return main(
        "Packager: the onnx package's own models",
        lambda quick: measure(quick, runtimes, known.only, integers=known.integers),
        rest,
    )


if __name__ == "__main__":
    sys.exit(_command(sys.argv[1:]))
