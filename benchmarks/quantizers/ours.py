"""Our build, in a fresh process and with an empty cache: `python -m ... ORDER.json`.

Rules:
- The profile is that of an x86-64 server with the instructions of this machine, so that its
  latencies count and its int8 is the one that is right here.
- For models that take long, the runtimes that compile untuned code are left out, and each variant
  runs fewer times.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.quantizers.task import Task
from benchmarks.quantizers.tools import Made, run
from packager.build import build
from packager.device_profiles import load_profile
from packager.package.directory import open_package
from packager.request import BuildRequest
from packager.result import BuildResult, CandidateReport
from runtime_adapters.processor import cpu_flags
from wire.codec import from_json, to_json
from wire.package.variant import VariantInfo

PROFILE: Final = "x86-64-vnni"
RESULT: Final = "result.json"
QUICK_RUNTIMES: Final = ("onnxruntime", "openvino", "litert")
RUNS: Final = 200
SLOW_RUNS: Final = 30
OWN_TIMEOUT_S: Final = 1800.0
"""Many models take longer than the one that a quantizer makes."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built."""

    model: str
    calibration: str
    evaluation: str
    preprocessing: str | None
    metric: str
    runtimes: tuple[str, ...]
    """Empty for all of the profile."""

    slow: bool


class Built(NamedTuple):
    """A build that ended well."""

    result: BuildResult
    seconds: float


def build_with(task: Task, folder: Path, runtimes: tuple[str, ...] = ()) -> Built:
    """Build a package.

    Args:
        task: The model and its images.
        folder: To work in; made.
        runtimes: Those of the profile; empty for all.

    Returns:
        What came of it.
    """
    folder.mkdir(parents=True)
    order = Order(
        model=str(task.model),
        calibration=str(task.calibration),
        evaluation=str(task.gate),
        preprocessing=str(task.preprocessing) if task.preprocessing else None,
        metric=task.metric,
        runtimes=runtimes or (QUICK_RUNTIMES if task.slow else ()),
        slow=task.slow,
    )
    (folder / "order.json").write_bytes(to_json(order))
    seconds = run([sys.executable, "-m", __name__, "order.json"], folder, timeout_s=OWN_TIMEOUT_S)
    return Built(from_json((folder / RESULT).read_bytes(), BuildResult), seconds)


def kept_int8(built: Built) -> list[CandidateReport]:
    """Return the int8 variants in the package, the fastest first, as the build measured them.

    Where the build kept none, all variants in the package.
    """
    timed = [
        (candidate.performance.latency_p50_ms, candidate)
        for candidate in built.result.candidates
        if candidate.kept and candidate.performance
    ]
    kept = [candidate for _, candidate in sorted(timed, key=lambda pair: pair[0])]
    return [candidate for candidate in kept if candidate.precision.startswith("int8")] or kept


def most_accurate(candidates: list[CandidateReport]) -> CandidateReport:
    """Return the one that a device without any pressure prefers: most accurate, then fastest."""
    return max(candidates, key=lambda c: c.accuracy.retention if c.accuracy else 0.0)


def made(built: Built, folder: Path, candidate: CandidateReport) -> Made:
    """Return a variant of a package as a model that a tool made."""
    info = declaration(built, folder, candidate.name)
    file = folder / built.result.package / candidate.name / info.model_file
    return Made(candidate.name, info.runtime, file, info.options, built.seconds)


def declaration(built: Built, folder: Path, name: str) -> VariantInfo:
    """Return what the package's manifest says of a variant."""
    manifest, _ = open_package(folder / built.result.package)
    return next(variant.info for variant in manifest.variants if variant.name == name)


def _main(path: Path) -> None:
    order = from_json(path.read_bytes(), Order)
    known = load_profile(PROFILE)
    able = tuple(feature for feature in known.isa_features if feature in cpu_flags())
    profile = msgspec.structs.replace(known, isa_features=able)
    if order.runtimes:
        profile = msgspec.structs.replace(
            profile, runtimes=order.runtimes, runtime_versions=msgspec.UNSET
        )
    request = BuildRequest(
        model=order.model,
        profiles=(profile,),
        calibration=order.calibration,
        evaluation=order.evaluation,
        preprocessing=Path(order.preprocessing) if order.preprocessing else None,
        metric=order.metric,
        min_runs=SLOW_RUNS if order.slow else RUNS,
        cache=Path("cache"),
        output=Path("package"),
    )
    result = build(request, lambda line: print(line, flush=True))
    Path(RESULT).write_bytes(to_json(result))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
