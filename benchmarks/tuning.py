"""What auto-tuning buys a model that TVM compiles: tuned, untuned and ONNX Runtime in turn.

The ResNet-20 needs the folder of models that EDGEFLEET_MODELS names; where it is missing only the
digits model is measured.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness import Row, against, alone, main
from benchmarks.quantizers.task import MODELS, ROOT
from packager.plan.targets import TARGETS, Target
from packager.runtimes.common.onnx_files import session_of
from packager.runtimes.tvm import lowering as tvm_lowering
from packager.runtimes.tvm import tuning as tvm_tuning
from packager.runtimes.tvm.models import compile_model
from packager.sources import onnx_model
from packager.tools import toolchains
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from wire.package.variant import VariantInfo

TRIALS: Final = 8
ROUND_S: Final = 0.2
MS_PER_S: Final = 1000.0
Run = Callable[[], object]


def measure(quick: bool) -> list[Row]:
    """Tune and measure each model that is there."""
    target = next(target for target in TARGETS if toolchains.natively_runnable(target))
    models = {"digits": ROOT / "examples" / "digits" / "digits.onnx"}
    residual = MODELS / "cifar10" / "cifar_resnet20.onnx"
    if residual.is_file() and not quick:
        models["ResNet-20"] = residual
    rows: list[Row] = []
    for name, path in models.items():
        with tempfile.TemporaryDirectory() as folder:
            rows += _rows(name, path, target, Path(folder), trials=2 if quick else TRIALS)
    return rows


def _rows(name: str, path: Path, target: Target, folder: Path, *, trials: int) -> list[Row]:
    cleaned, notes = onnx_model.clean(onnx_model.load_checked(path))
    facts = onnx_model.facts_of(cleaned, notes)
    model = folder / "model.onnx"
    model.write_bytes(onnx_model.model_bytes(cleaned))
    shapes = {spec.name: (1, *spec.shape[1:]) for spec in facts.inputs}
    random = np.random.default_rng(0)
    sample = {key: random.random(shape).astype(np.float32) for key, shape in shapes.items()}

    found = folder / "found"
    found.mkdir()
    began_s = time.perf_counter()
    module = tvm_lowering.imported(tvm_lowering.fixed(model, shapes))
    result = tvm_tuning.tune(module, target, found, trials_per_task=trials)
    took_s = time.perf_counter() - began_s
    schedules = folder / "schedules"
    schedules.mkdir()
    kept = tvm_tuning.schedules(found, target, schedules)

    def compiled(kind: str, database: Path | None) -> Run:
        place = folder / kind
        place.mkdir()
        compile_model(
            model, facts.inputs, facts.outputs, target, place / "model.so", database=database
        )
        info = VariantInfo(
            runtime="tvm",
            precision="fp32",
            model_file="model.so",
            inputs=facts.inputs,
            outputs=facts.outputs,
            size_bytes=1,
        )
        session = open_session(place, info, Limits(threads=1))
        return lambda: session.infer(sample)

    session = session_of(model)
    runs = {
        "tuned": compiled("tuned", schedules if kept else None),
        "untuned": compiled("untuned", None),
        "ONNX Runtime": lambda: session.run(None, sample),
    }
    times = _alternated(runs)
    return [
        against(f"{name}: tuned", times["tuned"], times["untuned"], unit="ms", peer="untuned"),
        against(
            f"{name}: tuned", times["tuned"], times["ONNX Runtime"], unit="ms", peer="ONNX Runtime"
        ),
        alone(
            f"{name}: search, {result.trials} trials of {result.tasks} kernels", [took_s], unit="s"
        ),
        alone(f"{name}: schedules kept", [kept], unit="kernels"),
    ]


def _alternated(runs: dict[str, Run]) -> dict[str, list[float]]:
    """Return the median time of each in every round, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(12):
        for name, run in runs.items():
            taken: list[float] = []
            end_s = time.perf_counter() + ROUND_S
            while time.perf_counter() < end_s:
                before_s = time.perf_counter()
                run()
                taken.append((time.perf_counter() - before_s) * MS_PER_S)
            times[name].append(statistics.median(taken))
    return times


if __name__ == "__main__":
    sys.exit(main("Auto-tuning of TVM, one thread", measure))
