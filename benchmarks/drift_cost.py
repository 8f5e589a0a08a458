"""What it costs a device to count how requests and answers are distributed, beside a 1 ms model.

Requests come one after the other, each after a millisecond of computing, as a model that is never
idle has them. The figures are the processor time of looking, of handing over what was counted and
of making telemetry of it, as a share of the model's time; and the longest look, which the request
that comes next waits for. Without a distribution in the package, as older packages are, the same.
"""

from __future__ import annotations

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
from wire.package.manifest import TensorSpec, VariantInfo

MODEL_S: Final = 0.001
ROUNDS, ROUND_S, QUICK_ROUND_S = 5, 10.0, 1.0
SAMPLES: Final = 60
CLOCK_READINGS: Final = 10_000
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
    taken_s, longest_s, count, clock_s = 0.0, 0.0, 0, _clock_s()
    end_s = time.perf_counter() + (QUICK_ROUND_S if quick else ROUND_S)
    while time.perf_counter() < end_s:
        computed_s = time.thread_time() + MODEL_S
        while time.thread_time() < computed_s:
            pass
        start_s = time.thread_time()
        observer.look(*requests[count % SAMPLES])
        looked_s = time.thread_time() - start_s
        found = observer.take()
        if found:
            record(recorder, msgspec.structs.replace(ANSWERED, seen=found))
        taken_s += time.thread_time() - start_s
        longest_s = max(longest_s, looked_s)
        count += 1
    return max(taken_s / count - clock_s, 0.0) / MODEL_S, longest_s * 1000


def _clock_s() -> float:
    """Return what reading the clock adds to the time of a request."""
    spent_s = []
    for _ in range(CLOCK_READINGS):
        start_s = time.thread_time()
        time.thread_time()
        spent_s.append(time.thread_time() - start_s)
    return sum(spent_s) / CLOCK_READINGS


if __name__ == "__main__":
    sys.exit(main("Drift: what counting costs a device", measure))
