"""Profiles a variant by layer with OpenVINO's performance counters.

OpenVINO tells the time of each node of the graph that it runs, what it computes in, and which of
the model's layers it fused into the node (`benchmark_app -report_type detailed_counters` shows the
same).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, NamedTuple

from packager.layers.values import LayerProfile
from packager.runtimes.openvino.profiles import (
    RuntimeNode,
    layers_of,
    mean_times,
    memory_of,
    weights_bytes,
)
from packager.tools.quiet import tool
from runtime_adapters.openvino.adapter import compile_model
from runtime_adapters.openvino.library import openvino
from runtime_adapters.protocol import Limits, Tensors
from wire.clock import SystemClock
from wire.package.variant import VariantInfo

WARM_UP_RUNS: Final = 5
SERIES: Final = 3
"""The fastest one counts: what held up another one for milliseconds is not in it."""

_TOLD: Final = (
    "OpenVINO tells the times, the precision, and what it fused; it cuts each time to whole "
    "microseconds, so 0 stands for less than one, or for work in place"
)
US_PER_S: Final = 1e6
_SMALL_BITS: Final = {"u1": 1, "u2": 2, "u4": 4, "i4": 4, "nf4": 4, "f4e2m1": 4}


class _Series(NamedTuple):
    inference_us: float
    times: dict[str, float]
    nodes: list[RuntimeNode]


def profile_layers(
    directory: Path,
    info: VariantInfo,
    inputs: Tensors,
    *,
    limits: Limits,
    runs: int,
    machine: str,
    workspace: Path,  # noqa: ARG001 - OpenVINO writes no file
) -> LayerProfile:
    """Profile a variant; the protocol is `packager.steps.functions.ProfileLayers`."""
    runs = max(1, runs // SERIES)
    series = [_series(directory, info, inputs, limits, runs) for _ in range(SERIES)]
    inference_us, times, nodes = min(series, key=lambda one: one.inference_us)
    return LayerProfile(
        runtime=info.runtime,
        version=str(openvino.__version__).partition("-")[0],
        threads=limits.threads,
        machine=machine,
        runs=runs,
        inference_us=inference_us,
        layers=layers_of(nodes, times),
        memory=memory_of(nodes, times),
        weights_bytes=weights_bytes(nodes),
        notes=(_TOLD,),
    )


def _series(
    directory: Path, info: VariantInfo, inputs: Tensors, limits: Limits, runs: int
) -> _Series:
    """Compile the model and run it: counters begin anew only with the model."""
    found = compile_model(directory, info, limits, {"PERF_COUNT": True})
    clock = SystemClock()
    with tool("openvino"):
        request = found.compiled.create_infer_request()
        feeds = {position: inputs[name] for name, position in found.positions(info).items()}
        for _ in range(WARM_UP_RUNS):
            request.infer(feeds)
        before = _counters(request)
        began_s = clock.monotonic_s()
        for _ in range(runs):
            request.infer(feeds)
        seconds = clock.monotonic_s() - began_s
        times = mean_times(before, WARM_UP_RUNS, _counters(request), runs)
        return _Series(seconds * US_PER_S / runs, times, _nodes(found.compiled))


def _counters(request: openvino.InferRequest) -> dict[str, float]:
    """Return the mean microseconds so far of each node that runs."""
    executed = openvino.ProfilingInfo.Status.EXECUTED
    return {
        info.node_name: info.real_time.total_seconds() * US_PER_S
        for info in request.profiling_info
        if info.status == executed
    }


def _nodes(compiled: openvino.CompiledModel) -> list[RuntimeNode]:
    found = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        name, told = node.get_friendly_name(), _told(node)
        kinds = told.get("outputPrecisions", "").split(",")
        found.append(
            RuntimeNode(
                name=name,
                operator=told.get("layerType") or node.get_type_name(),
                kernel=told.get("primitiveType", ""),
                precision=told.get("runtimePrecision", ""),
                output_precision=kinds[0],
                originals=tuple(filter(None, told.get("originalLayersNames", "").split(","))),
                inputs=tuple(
                    f"{port.get_node().get_friendly_name()}:{port.get_index()}"
                    for port in node.input_values()
                ),
                outputs=tuple(
                    (f"{name}:{index}", _bytes(port)) for index, port in enumerate(node.outputs())
                ),
            )
        )
    return found


def _told(node: Any) -> dict[str, str]:  # noqa: ANN401 - openvino is untyped
    return {key: str(getattr(v, "value", v)) for key, v in node.get_rt_info().items()}


def _bytes(port: Any) -> int | None:  # noqa: ANN401 - openvino is untyped
    shape, kind = port.get_partial_shape(), port.get_element_type()
    if shape.is_dynamic:
        return None
    bits = _SMALL_BITS.get(kind.get_type_name(), kind.get_size() * 8)
    elements: int = math.prod(size.get_length() for size in shape)
    return -(-elements * int(bits) // 8)
