"""What it costs a device to count how requests and answers are distributed, beside a 1 ms model.

Requests come one after the other, each after a millisecond of computing, as a model that is never
idle has them. The figures are the time of looking, of handing over what was counted and of making
telemetry of it, as a share of the model's time; and the longest look, which the request that comes
next waits for. Of requests that are looked at, and of those that are not, the median counts for
all: what else the machine does falls into some. The same for a package without distributions.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Final

import msgspec
import numpy as np

from agent.serve.answered import Answered, Outcome, record
from agent.serve.worker.observing import Observer
from benchmarks.harness import Row, alone, main
from packager.judge.distributions import distributions
from runtime_adapters.protocol import Tensors
from telemetry.device.recorder import Recorder
from wire.clock import SystemClock
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

MODEL_S: Final = 0.001
ROUNDS, ROUND_S, QUICK_ROUND_S = 5, 5.0, 1.0
SAMPLES: Final = 60
AIM: Final = 0.02
KINDS: Final = {
    "8 x 8, 10 classes": ((8, 8), 10),
    "3 x 224 x 224, 1000 classes": ((3, 224, 224), 1000),
}
ANSWERED: Final = Answered(
    asked_model="m", variant="a", release="m:1", active=None, outcome=Outcome.OK, total_s=MODEL_S
)


def measure(quick: bool) -> list[Row]:
    """Look at requests for some seconds, of a small and of a large model."""
    rows = []
    for name, (shape, classes) in KINDS.items():
        chance = np.random.Generator(np.random.PCG64(1))
        inputs = {"x": chance.random((SAMPLES, *shape), np.float32)}
        outputs = {"scores": chance.random((SAMPLES, classes), np.float32)}
        info = VariantInfo(
            runtime="null",
            precision="fp32",
            model_file="m",
            inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, *shape)),),
            outputs=(TensorSpec(name="scores", datatype="FP32", shape=(-1, classes)),),
            size_bytes=1,
            distributions=distributions(inputs, outputs),
        )
        found = [_of(info, inputs, outputs, quick=quick) for _ in range(1 if quick else ROUNDS)]
        shares, longest_ms = zip(*found, strict=True)
        rows.append(alone(f"{name}: share of a 1 ms model", shares, unit="1", at_most=AIM))
        rows.append(alone(f"{name}: longest look", longest_ms, unit="ms"))
        older = msgspec.structs.replace(info, distributions=msgspec.UNSET)
        share, _ = _of(older, inputs, outputs, quick=quick)
        rows.append(alone(f"{name}: share, older package", [share], unit="1", at_most=AIM))
    return rows


def _of(
    info: VariantInfo, inputs: Tensors, outputs: Tensors, *, quick: bool
) -> tuple[float, float]:
    """Return the share of the model's time, and the longest look in milliseconds."""
    clock = SystemClock()
    observer, recorder = Observer(info, clock), Recorder(clock)
    requests = [
        ({"x": inputs["x"][at : at + 1]}, {"scores": outputs["scores"][at : at + 1]})
        for at in range(SAMPLES)
    ]
    passed_s: list[float] = []
    looked_s: list[float] = []
    count, longest_s = 0, 0.0
    end_s = time.perf_counter() + (QUICK_ROUND_S if quick else ROUND_S)
    while time.perf_counter() < end_s:
        computed_s = time.perf_counter() + MODEL_S
        while time.perf_counter() < computed_s:
            pass
        start_s = time.perf_counter()
        observer.look(*requests[count % SAMPLES])
        longest_s = max(longest_s, time.perf_counter() - start_s)
        found = observer.take()
        if found:
            record(recorder, msgspec.structs.replace(ANSWERED, seen=found))
        (looked_s if found else passed_s).append(time.perf_counter() - start_s)
        count += 1
    taken_s = statistics.median(passed_s) * len(passed_s)
    taken_s += statistics.median(looked_s) * len(looked_s) if looked_s else 0.0
    return taken_s / (count * MODEL_S), longest_s * 1000


if __name__ == "__main__":
    sys.exit(main("Drift: what counting costs a device", measure))
