"""Reads the profile that ONNX Runtime writes: one JSON event for each node and each run. Pure.

Rules:
- A node within another one's time is part of it: the body of a loop or a branch.
- Times are whole microseconds, as ONNX Runtime writes them.

Source:
    ONNX Runtime 1.31, `profiler.cc` (the Trace Event Format of Chromium: `ts` and `dur` in
    microseconds) and `sequential_executor.cc` (`KernelScope`: the arguments of a node).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packager.layers.sums import precision_text
from wire.codec import from_json

MAX_PROFILE_BYTES: Final = 64 * 1024**2
EVENT_BYTES: Final = 2048
"""More than an event takes: 650 B for a convolution with its shapes."""

_SUFFIX: Final = "_kernel_time"
_RUN: Final = "model_run"
_ROWS: Final = 2
"""A tensor with so many axes is data; scales, zero points and sizes have fewer."""

_BYTES: Final = {
    "float": 4, "double": 8, "float16": 2, "bfloat16": 2, "bool": 1, "uint8": 1, "int8": 1,
    "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
}  # fmt: skip


class _Arguments(msgspec.Struct):
    op_name: str = ""
    provider: str = ""
    mem_in_use_peak: str = ""
    input_type_shape: list[dict[str, list[int]]] = []
    output_type_shape: list[dict[str, list[int]]] = []


class _Event(msgspec.Struct):
    cat: str
    name: str
    ts: int = 0
    dur: int = 0
    args: Any = None


class NodeRun(msgspec.Struct, frozen=True, kw_only=True):
    """A node of one inference."""

    name: str
    operator: str
    provider: str
    time_us: int
    precision: str
    output_bytes: tuple[int, ...] | None
    """Of each output that it made; None where a type has no fixed size."""


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the model."""

    time_us: int
    nodes: tuple[NodeRun, ...]
    """In the order in which they ran."""

    arena_bytes: int | None
    """The most that the runtime's allocator had in use until its end."""


def affordable_runs(runs: int, nodes: int, warm_ups: int) -> int:
    """Return how many inferences a profile may hold so that it can still be read.

    Args:
        runs: How many are wanted.
        nodes: Nodes of the graph that runs, each of which writes an event.
        warm_ups: Inferences before them, which write events too.

    Returns:
        The number, at least 1.
    """
    most = MAX_PROFILE_BYTES // (EVENT_BYTES * max(nodes, 1))
    return max(1, min(runs, most - warm_ups))


def read_inferences(content: bytes) -> tuple[Inference, ...]:
    """Read the inferences of a profile, in their order.

    Args:
        content: The file.

    Returns:
        What each of them took.

    Raises:
        WireFormatError: It is not such a file, or longer than `MAX_PROFILE_BYTES`.
    """
    events = from_json(content, list[_Event], limit_bytes=MAX_PROFILE_BYTES)
    runs = [event for event in events if event.name == _RUN and event.cat == "Session"]
    nodes = sorted(
        (e for e in events if e.cat == "Node" and e.name.endswith(_SUFFIX)),
        key=lambda event: (event.ts, -event.dur),
    )
    found: list[Inference] = []
    position = 0
    for run in sorted(runs, key=lambda event: event.ts):
        own: list[_Event] = []
        while position < len(nodes) and nodes[position].ts <= run.ts + run.dur:
            if nodes[position].ts >= run.ts:
                own.append(nodes[position])
            position += 1
        found.append(_inference(run, _outermost(own)))
    return tuple(found)


def _outermost(events: Sequence[_Event]) -> list[_Event]:
    """Leave out the nodes that ran within another one."""
    kept: list[_Event] = []
    end_us = -1
    for event in events:
        if kept and event.ts + event.dur <= end_us and event.ts < end_us:
            continue
        kept.append(event)
        end_us = event.ts + event.dur
    return kept


def _inference(run: _Event, events: Sequence[_Event]) -> Inference:
    nodes: list[NodeRun] = []
    arena_bytes: int | None = None
    for event in events:
        told = msgspec.convert(event.args or {}, _Arguments)
        if told.mem_in_use_peak.isdecimal():
            arena_bytes = max(arena_bytes or 0, int(told.mem_in_use_peak))
        types = [name for tensor in told.output_type_shape for name in tensor]
        nodes.append(
            NodeRun(
                name=event.name.removesuffix(_SUFFIX),
                operator=told.op_name,
                provider=told.provider,
                time_us=event.dur,
                precision=precision_text(_data_types(told), types[0] if types else ""),
                output_bytes=_sizes(told.output_type_shape),
            )
        )
    return Inference(time_us=run.dur, nodes=tuple(nodes), arena_bytes=arena_bytes)


def _data_types(told: _Arguments) -> list[str]:
    inputs = [(name, shape) for tensor in told.input_type_shape for name, shape in tensor.items()]
    data = [name for name, shape in inputs if len(shape) >= _ROWS]
    return data or [name for name, _ in inputs[:1]]


def _sizes(tensors: Sequence[dict[str, list[int]]]) -> tuple[int, ...] | None:
    try:
        return tuple(
            _BYTES[name] * math.prod(shape) for tensor in tensors for name, shape in tensor.items()
        )
    except KeyError:
        return None
