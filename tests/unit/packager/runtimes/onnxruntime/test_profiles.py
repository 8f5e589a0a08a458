"""Reading the profile of ONNX Runtime, within its bounds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.runtimes.onnxruntime.profiles import (
    EVENT_BYTES,
    MAX_PROFILE_BYTES,
    affordable_runs,
    read_inferences,
)
from wire.errors import WireFormatError


def event(name: str, ts: int, dur: int, cat: str = "Node", **args: object) -> dict[str, object]:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, "ph": "X"}


def read(*events: dict[str, object]) -> list[tuple[int, list[str]]]:
    found = read_inferences(json.dumps(events).encode())
    return [(run.time_us, [node.name for node in run.nodes]) for run in found]


def test_nodes_belong_to_the_inference_in_which_they_ran() -> None:
    found = read(
        event("session_initialization", 0, 50, "Session"),
        event("b_kernel_time", 160, 5),
        event("a_kernel_time", 105, 40),
        event("model_run", 100, 90, "Session"),
        event("a_kernel_time", 205, 30),
        event("model_run", 200, 60, "Session"),
        event("a_fence_before", 205, 0),
    )
    assert found == [(90, ["a", "b"]), (60, ["a"])]


def test_a_node_within_another_is_a_part_of_it() -> None:
    found = read(
        event("inner_kernel_time", 112, 10),
        event("last_kernel_time", 122, 18),
        event("loop_kernel_time", 110, 30),
        event("next_kernel_time", 140, 0),
        event("model_run", 100, 90, "Session"),
    )
    assert found == [(90, ["loop", "next"])]


def test_sizes_and_types_are_those_of_the_tensors() -> None:
    told = event(
        "q_kernel_time", 5, 1, op_name="QLinearConv", provider="CPUExecutionProvider",
        mem_in_use_peak="4096",
        input_type_shape=[{"uint8": [1, 3, 4, 4]}, {"float": []}, {"int8": [8, 3, 1, 1]}],
        output_type_shape=[{"uint8": [1, 8, 4, 4]}],
    )  # fmt: skip
    content = json.dumps([told, event("model_run", 0, 9, "Session")]).encode()
    (run,) = read_inferences(content)
    assert run.arena_bytes == 4096
    assert run.nodes[0].output_bytes == (128,)
    assert run.nodes[0].precision == "uint8, int8 → uint8"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'[{"cat": 1}]', b'[{"cat": "Node"', b"\xff"]
)
def test_what_is_no_profile_is_refused(content: bytes) -> None:
    with pytest.raises(WireFormatError):
        read_inferences(content)


def test_a_profile_beyond_the_bound_is_refused() -> None:
    with pytest.raises(WireFormatError):
        read_inferences(b" " * (MAX_PROFILE_BYTES + 1))


@given(st.integers(1, 10_000), st.integers(0, 100_000), st.integers(0, 10))
def test_a_profile_of_the_affordable_runs_can_be_read(runs: int, nodes: int, warm_ups: int) -> None:
    found = affordable_runs(runs, nodes, warm_ups)
    assert 1 <= found <= runs
    if found > 1:
        assert (found + warm_ups) * nodes * EVENT_BYTES <= MAX_PROFILE_BYTES
