"""Two variants for ONNX Runtime in a signed package, which declares how long they take here.

Rules:
- Latency is measured where the package is to serve, in quiet: as a builder measures it, one sample
  at a time, nothing else in the process.
- The retentions are made up: the weights are noise, so that there is no quality to keep.
"""

from __future__ import annotations

import platform
import statistics
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import helper, numpy_helper

from agent.packages import Package, open_package
from benchmarks.servers.models import session_of
from tests.simulators.packages import TRUST, package, variant
from wire.package.performance import Performance
from wire.package.tensors import TensorSpec
from wire.package.variant import Variant
from wire.profile import DeviceProfile

RETENTIONS: Final = {"large": 1.0, "small": 0.9}
"""Made up."""

LAYERS: Final = {"large": 52, "small": 12}
CHANNELS: Final = 32
SIDE: Final = 48
INPUT: Final = TensorSpec(name="x", datatype="FP32", shape=(-1, 3, SIDE, SIDE))
OUTPUT: Final = TensorSpec(name="y", datatype="FP32", shape=(-1, CHANNELS, 1, 1))
WORKER_BYTES: Final = 96 * 1024 * 1024
"""About what a worker with ONNX Runtime and one of these models holds."""

WARM_UP_RUNS: Final = 10
MS_PER_S: Final = 1000.0


class Made(NamedTuple):
    """A package that is ready to be served."""

    package: Package
    latency_ms: dict[str, float]
    """Of each variant, as declared."""


def make(folder: Path, profile: DeviceProfile, measure_s: float) -> Made:
    """Build, measure, sign and open a package.

    Args:
        folder: Where it goes; it is made.
        profile: Where it is to run.
        measure_s: For how long each variant is measured.

    Returns:
        The package and its latencies.
    """
    latency_ms, variants = {}, []
    for name, layers in LAYERS.items():
        content = _model(layers)
        timed = _measured(content, profile, measure_s)
        latency_ms[name] = timed.latency_p50_ms
        variants.append((_declared(name, content, timed), content))
    signed = package("1", variants, name="live")
    signed.write_to(folder)
    return Made(open_package(folder, signed.digest, TRUST), latency_ms)


def sample(seed: int) -> bytes:
    """Return the raw bytes of one sample of seeded noise."""
    return np.random.default_rng(seed).random((1, *INPUT.shape[1:]), np.float32).tobytes()


def _model(layers: int) -> bytes:
    random = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []
    before = "x"
    for layer in range(layers):
        shape = (CHANNELS, CHANNELS if layer else 3, 3, 3)
        kernel = random.standard_normal(shape, np.float32) * np.float32(
            (2 / np.prod(shape[1:])) ** 0.5
        )
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [before, f"w{layer}"], [f"c{layer}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        before = f"r{layer}"
    nodes.append(helper.make_node("GlobalAveragePool", [before], ["y"]))
    value, floats = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "live",
        [value("x", floats, ["n", 3, SIDE, SIDE])],
        [value("y", floats, ["n", CHANNELS, 1, 1])],
        weights,
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(model.SerializeToString())


def _measured(content: bytes, profile: DeviceProfile, measure_s: float) -> Performance:
    start_s = time.perf_counter()
    session = session_of(content)
    loaded_s = time.perf_counter()
    feeds = {"x": np.frombuffer(sample(0), np.float32).reshape(1, *INPUT.shape[1:])}
    taken_ms: list[float] = []
    while not taken_ms or time.perf_counter() < loaded_s + measure_s:
        began_s = time.perf_counter()
        session.run(None, feeds)
        taken_ms.append((time.perf_counter() - began_s) * MS_PER_S)
    kept = taken_ms[WARM_UP_RUNS:] or taken_ms
    return Performance(
        latency_p50_ms=statistics.median(kept),
        latency_p95_ms=float(np.percentile(kept, 95)),
        load_ms=(loaded_s - start_s) * MS_PER_S,
        first_inference_ms=taken_ms[0],
        peak_memory_bytes=WORKER_BYTES,
        runs=len(kept),
        threads=profile.threads,
        machine=platform.machine(),
    )


def _declared(name: str, content: bytes, timed: Performance) -> Variant:
    plain = variant(
        name, accuracy=RETENTIONS[name], memory_bytes=WORKER_BYTES, size_bytes=len(content)
    )
    info = replace(
        plain.info,
        runtime="onnxruntime",
        model_file="model.onnx",
        inputs=(INPUT,),
        outputs=(OUTPUT,),
        performance=timed,
    )
    return replace(plain, info=info)
