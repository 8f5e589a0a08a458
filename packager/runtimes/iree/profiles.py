"""Reads what IREE's profiler tells of a module: a row for each function that it dispatched. Pure.

Source:
    IREE 3.13, `iree-profile statistics --format=jsonl`, rows `host_execution_function`; the
    compiler names a function `<entry>$async_dispatch_<n>_<operation>_<sizes>_<types>`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from packager.layers.sums import precision_text
from packager.layers.values import Layer, MemoryPlan
from wire.codec import from_json

MAX_ROWS_BYTES: Final = 16 * 1024**2
NS_PER_US: Final = 1000.0
_NAME: Final = re.compile(
    r"(dispatch|encoding)_(?P<number>\d+)"
    r"(_(?P<operation>[a-z_]+?(?=_\d|_D|$)))?(_(?P<sizes>[\dDx]+))?(_(?P<types>[a-z]+\d\w*))?$"
)
_FUNCTION: Final = "host_execution_function"
_QUEUE: Final = "host_execution_queue_operation"
_ALLOCATION: Final = "alloca"
_SOURCE: Final = "the memory that the module asks for in one inference, as IREE reports it"


class _Row(msgspec.Struct):
    row_type: str = ""
    event_name: str | None = None
    function_name: str | None = None
    sample_count: int = 0
    payload_bytes: int = 0
    total_duration_ns: int = 0


class _Benchmark(msgspec.Struct):
    real_time: float
    time_unit: Literal["ns", "us", "ms", "s"]


class _Benchmarks(msgspec.Struct):
    benchmarks: Annotated[tuple[_Benchmark, ...], msgspec.Meta(min_length=1)]


def layers_of(statistics: bytes, runs: int) -> tuple[tuple[Layer, ...], MemoryPlan | None]:
    """Return a row for each function, and the memory of the values in between.

    Args:
        statistics: What `iree-profile statistics --format=jsonl` wrote.
        runs: How many inferences were profiled.

    Returns:
        The layers in the order in which the compiler numbered them; the memory, if it is told.

    Raises:
        WireFormatError: A line is no such row.
    """
    rows = [from_json(line, _Row) for line in statistics.splitlines() if line.strip()]
    layers = [_layer(row, runs) for row in rows if row.row_type == _FUNCTION and row.function_name]
    asked = [r for r in rows if r.row_type == _QUEUE and r.event_name == _ALLOCATION]
    peak_bytes = sum(row.payload_bytes for row in asked) // runs
    plan = MemoryPlan(peak_bytes=peak_bytes, at="", source=_SOURCE) if asked else None
    return tuple(sorted(layers, key=lambda layer: _number(layer.name))), plan


def inference_us(benchmark: bytes) -> float:
    """Return the mean time of an inference.

    Args:
        benchmark: What `iree-benchmark-module --benchmark_format=json` wrote.

    Returns:
        Microseconds.

    Raises:
        WireFormatError: It is no such text.
    """
    found = from_json(benchmark, _Benchmarks).benchmarks[0]
    return found.real_time * {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[found.time_unit]


def _layer(row: _Row, runs: int) -> Layer:
    name = row.function_name or ""
    found = _NAME.search(name)
    types = (found["types"] or "").split("x") if found else []
    return Layer(
        name=name.rpartition("$")[2],
        operator=(found["operation"] if found else None) or "dispatch",
        precision=precision_text(types[:-1] or types, types[-1] if types else ""),
        time_us=row.total_duration_ns / NS_PER_US / runs,
        calls=row.sample_count / runs,
    )


def _number(name: str) -> int:
    found = _NAME.search(name)
    return int(found["number"]) if found else 0
