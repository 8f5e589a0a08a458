"""What it costs a device to remember answers for feedback: time of a request, and memory.

The time is that of one request with one sample: in the worker an id, the class and what goes to the
supervisor with the answer, in the supervisor the reading of that and a place among the known
answers, which are as many as there may be. Other work of the machine falls into some requests, so
the median counts. Memory is that of as many answers as are kept by default.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from agent.serve.answered import Answered, Outcome
from agent.serve.feedback.intake import Feedback
from agent.serve.feedback.kept import KeptAnswers
from agent.serve.feedback.settings import FeedbackSettings
from agent.serve.frames import Given, Reply
from agent.serve.worker.naming import Namer
from benchmarks.harness import Row, alone, main
from telemetry.device.recorder import Recorder
from wire.clock import SystemClock
from wire.health import HealthSnapshot
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

ROUNDS, REQUESTS, QUICK_REQUESTS = 5, 20_000, 2_000
CLASSES: Final = (10, 1000)
SETTINGS: Final = FeedbackSettings(enabled=True)
HEALTH: Final = HealthSnapshot(at_s=0.0, headroom=0.4)
AIM_US: Final = 50.0
"""A twentieth of a model of a millisecond."""

AIM_BYTES: Final = 400


def measure(quick: bool) -> list[Row]:
    """Remember answers of a small and of a larger classifier."""
    requests = QUICK_REQUESTS if quick else REQUESTS
    rows = []
    for classes in CLASSES:
        rounds = [_round(classes, requests) for _ in range(1 if quick else ROUNDS)]
        worker_us, supervisor_us = zip(*rounds, strict=True)
        rows.append(alone(f"{classes} classes: in the worker", worker_us, unit="us"))
        rows.append(alone(f"{classes} classes: in the supervisor", supervisor_us, unit="us"))
        both = [sum(each) for each in rounds]
        rows.append(alone(f"{classes} classes: a request", both, unit="us", at_most=AIM_US))
    rows.append(alone("memory of an answer", [_bytes()], unit="B", at_most=AIM_BYTES))
    return rows


def _round(classes: int, requests: int) -> tuple[float, float]:
    """Return the time of a request in the worker and in the supervisor, in microseconds."""
    info = _info(classes)
    namer, feedback = Namer(info), _feedback()
    scores = np.random.Generator(np.random.PCG64(1)).random((64, 1, classes), np.float32)
    outputs = [{"scores": each} for each in scores]
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Reply)
    empty = Reply(status=200, headers={}, body=memoryview(b""))
    plain_us = _median_us(lambda _: encoder.encode(empty), requests)
    decoded = encoder.encode(empty)
    read_us = _median_us(lambda _: decoder.decode(decoded), requests)

    def in_worker(at: int) -> bytes:
        given = namer.given(namer.name(), outputs[at % len(outputs)])
        return encoder.encode(Reply(status=200, headers={}, body=memoryview(b""), given=given))

    frames = [in_worker(at) for at in range(requests)]
    answered = _answered(info)

    def in_supervisor(at: int) -> None:
        given = decoder.decode(frames[at]).given
        feedback.remember(msgspec.structs.replace(answered, given=given))

    for at in range(SETTINGS.answers):
        feedback.remember(msgspec.structs.replace(answered, given=Given(id=f"before-{at}")))
    copied_us = _median_us(lambda _: msgspec.structs.replace(answered, given=None), requests)
    worker_us = _median_us(in_worker, requests) - plain_us
    return worker_us, _median_us(in_supervisor, requests) - read_us - copied_us


def _median_us(call: Callable[[int], object], requests: int) -> float:
    taken_s = []
    for at in range(requests):
        start_s = time.perf_counter()
        call(at)
        taken_s.append(time.perf_counter() - start_s)
    return statistics.median(taken_s) * 1e6


def _bytes() -> float:
    """Return the memory that one known answer takes."""
    feedback, answered, numbers = _feedback(), _answered(_info(10)), itertools.count()
    feedback.remember(msgspec.structs.replace(answered, given=Given(id="first", classes=(1,))))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(SETTINGS.answers):
        given = Given(id=f"abcdef-{next(numbers):x}", classes=(7,))
        feedback.remember(msgspec.structs.replace(answered, given=given))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / SETTINGS.answers


def _feedback() -> Feedback:
    clock = SystemClock()
    recorder = Recorder(clock)
    kept = KeptAnswers(Path(tempfile.gettempdir()), recorder, clock)  # nothing is written
    return Feedback(SETTINGS, kept, lambda: HEALTH, recorder, clock)


def _info(classes: int) -> VariantInfo:
    return VariantInfo(
        runtime="null",
        precision="fp32",
        model_file="m",
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
        outputs=(TensorSpec(name="scores", datatype="FP32", shape=(-1, classes)),),
        size_bytes=1,
    )


def _answered(info: VariantInfo) -> Answered:
    return Answered(
        asked_model="m",
        variant="a",
        release="m:1",
        active=None,
        outcome=Outcome.OK,
        total_s=0.001,
        info=info,
    )


if __name__ == "__main__":
    sys.exit(main("Feedback: what remembering answers costs a device", measure))
