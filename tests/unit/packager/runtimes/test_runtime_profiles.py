"""What OpenVINO and IREE tell, as rows: within the accuracy of their counters and names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.runtimes.iree.profiles import inference_us
from packager.runtimes.iree.profiles import layers_of as functions_of
from packager.runtimes.openvino.profiles import (
    RuntimeNode,
    layers_of,
    mean_times,
    memory_of,
    weights_bytes,
)
from wire.errors import WireFormatError


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=5),
    st.lists(st.integers(0, 500), min_size=1, max_size=60),
)
def test_a_mean_without_the_warm_up_is_true_within_the_counters_rounding(
    warm_ups: list[int], runs: list[int]
) -> None:
    before = sum(warm_ups) // len(warm_ups)
    after = (sum(warm_ups) + sum(runs)) // (len(warm_ups) + len(runs))
    found = mean_times({"n": before}, len(warm_ups), {"n": after}, len(runs))["n"]
    below = (len(warm_ups) + len(runs)) / len(runs)
    above = len(warm_ups) / len(runs)
    mean = sum(runs) / len(runs)
    assert mean - below <= found <= mean + above


def node(operator: str, name: str, inputs: str, size: int | None = 8) -> RuntimeNode:
    return RuntimeNode(
        name=name, operator=operator, kernel="k", precision="u8", output_precision="f32",
        originals=(name, f"{name}/relu"), inputs=tuple(f"{i}:0" for i in inputs.split()),
        outputs=((f"{name}:0", size),),
    )  # fmt: skip


GRAPH = [
    node("Input", "x", ""),
    node("Const", "w", "", 100),
    node("Reorder", "w2", "w", 100),
    node("Convolution", "c", "x w2", 32),
    node("Reshape", "view", "w c", 32),
    node("Output", "y", "view"),
]


def test_what_follows_from_constants_is_no_layer() -> None:
    found = layers_of(GRAPH, {"c": 5.0})
    assert [(layer.name, layer.time_us) for layer in found] == [("c", 5.0), ("view", 0.0)]
    assert found[0].fused == ("c", "c/relu")
    assert found[0].precision == "uint8 → fp32"
    assert weights_bytes(GRAPH) == 100


def test_a_reshape_that_takes_no_time_needs_no_memory() -> None:
    still, busy = memory_of(GRAPH, {"c": 5.0}), memory_of(GRAPH, {"c": 5.0, "view": 1.0})
    assert still is not None
    assert busy is not None
    assert (still.peak_bytes, busy.peak_bytes) == (40, 64)
    assert memory_of([*GRAPH[:3], node("Convolution", "c", "x", None)], {}) is None


def row(name: str, samples: int, total_ns: int) -> str:
    return json.dumps({
        "type": "statistics_row", "row_type": "host_execution_function", "function_name": name,
        "sample_count": samples, "total_duration_ns": total_ns, "event_name": None,
    })  # fmt: skip


def test_the_name_of_a_function_tells_its_operation_and_types() -> None:
    rows = [
        row("main$async_dispatch_10_matmul_like_64x8x8x576_f32", 4, 8000),
        row("main$async_dispatch_2_elementwise_8x8_f32xi8", 8, 2000),
        row("main$async_dispatch_19_matvec_like_10x64_i8xi8xi32", 4, 400),
        row("main$async_dispatch_0_slow_memcpy", 4, 4),
        row("_encoding_5_encode_64x64xi8_to_64x64xi8", 4, 4),
        row("something else", 4, 4),
    ]
    allocation = {"row_type": "host_execution_queue_operation", "event_name": "alloca"}
    rows.append(json.dumps(allocation | {"payload_bytes": 4096}))
    layers, memory = functions_of("\n".join(rows).encode(), 4)
    found = {layer.name: layer for layer in layers}
    assert [layer.name.split("_")[0] for layer in layers[-1:]] == ["async"]
    matmul = found["async_dispatch_10_matmul_like_64x8x8x576_f32"]
    assert (matmul.operator, matmul.precision, matmul.time_us) == ("matmul_like", "fp32", 2.0)
    cast = found["async_dispatch_2_elementwise_8x8_f32xi8"]
    assert (cast.operator, cast.precision, cast.calls) == ("elementwise", "fp32 → int8", 2.0)
    assert found["async_dispatch_19_matvec_like_10x64_i8xi8xi32"].precision == "int8 → int32"
    assert found["async_dispatch_0_slow_memcpy"].operator == "slow_memcpy"
    assert found["something else"].operator == "dispatch"
    assert memory is not None
    assert memory.peak_bytes == 1024


@pytest.mark.parametrize(("unit", "microseconds"), [("ns", 0.002), ("us", 2.0), ("ms", 2000.0)])
def test_the_time_of_an_inference_is_in_microseconds(unit: str, microseconds: float) -> None:
    told = json.dumps({"benchmarks": [{"real_time": 2.0, "time_unit": unit}]}).encode()
    assert inference_us(told) == pytest.approx(microseconds)


def test_what_is_no_statistics_is_refused() -> None:
    with pytest.raises(WireFormatError):
        functions_of(b"no row", 1)
    for content in (b"{}", b'{"benchmarks": []}'):
        with pytest.raises(WireFormatError):
            inference_us(content)
