"""The tables of a profile by layer: what is shown, what is a dash, and what is left out."""

from __future__ import annotations

import msgspec

from packager.layers.values import Layer, LayerProfile, MemoryPlan
from packager.report.layers import (
    COLUMNS,
    MINOR,
    SHOWN,
    SHOWN_NAMES,
    layer_facts,
    layer_notes,
    layer_rows,
    left_text,
    total_rows,
)
from packager.report.text import UNKNOWN
from wire.package.performance import Performance

SLOW = Layer(
    name="c1", operator="Conv", precision="fp32", time_us=30.0, output_bytes=2048,
    fused=("conv", "relu"),
)  # fmt: skip
QUICK = Layer(name="f", operator="Flatten", time_us=10.0, fused=("f",))
PROFILE = LayerProfile(
    runtime="onnxruntime",
    version="1.31.0",
    threads=2,
    machine="x86_64 box",
    runs=50,
    inference_us=60.0,
    layers=(QUICK, SLOW),
    removed=("drop",),
    memory=MemoryPlan(peak_bytes=4096, at="c1", source="computed from shapes"),
    weights_bytes=1024,
)
FIGURES = Performance(
    latency_p50_ms=0.05, latency_p95_ms=0.06, load_ms=1.0, first_inference_ms=1.0,
    peak_memory_bytes=50 << 20, runs=200, threads=2, machine="x86_64 box",
)  # fmt: skip


def test_the_slowest_layer_comes_first_with_its_share_and_what_is_in_it() -> None:
    first, second = layer_rows(PROFILE)
    assert dict(zip(COLUMNS, first, strict=True)) == {
        "LAYER": "c1", "TIME US": "30.0", "SHARE": "75.0 %", "OPERATOR": "Conv",
        "PRECISION": "fp32", "OUTPUT": "2.00 KiB", "KERNEL": UNKNOWN, "FUSED": "conv, relu",
    }  # fmt: skip
    assert second[COLUMNS.index("FUSED")] == ""
    assert set(MINOR) < set(COLUMNS)
    assert total_rows(PROFILE) == [
        ("Conv", "1", "30.0", "75.0 %"),
        ("Flatten", "1", "10.0", "25.0 %"),
    ]


def test_the_sum_stands_beside_both_inferences_and_the_plan_beside_the_peak() -> None:
    facts = dict(layer_facts(PROFILE, FIGURES))
    assert facts["sum of the layers"] == "0.040 ms"
    assert facts["whole inference with the profiler on"] == "0.060 ms, mean of 50 runs"
    assert facts["measured without it"].startswith("0.050 ms")
    assert facts["greatest memory of values"] == "4.00 KiB at c1"
    assert facts["measured peak of the whole process"] == "50.0 MiB"
    assert facts["runtime"] == "onnxruntime 1.31.0, 2 threads"


def test_a_runtime_that_tells_no_times_has_dashes_and_no_sums() -> None:
    untold = msgspec.structs.replace(
        PROFILE,
        untold="it has no profiler",
        inference_us=None,
        layers=(msgspec.structs.replace(SLOW, time_us=None),),
    )
    assert layer_rows(untold)[0][1:3] == (UNKNOWN, UNKNOWN)
    assert total_rows(untold) == []
    assert "sum of the layers" not in dict(layer_facts(untold, FIGURES))


def test_what_the_rows_leave_out_is_counted() -> None:
    many = msgspec.structs.replace(
        PROFILE, layers=(SLOW,) * (SHOWN + 2), left_out=3, left_out_us=1.0
    )
    assert len(layer_rows(many)) == SHOWN
    assert left_text(many) == "5 more layers take 61.0 us together"
    assert left_text(PROFILE) == ""
    wide = msgspec.structs.replace(SLOW, fused=tuple(map(str, range(SHOWN_NAMES + 4))))
    assert layer_rows(msgspec.structs.replace(PROFILE, layers=(wide,)))[0][-1].endswith("4 more")


def test_notes_tell_the_source_of_the_memory_and_what_has_no_time() -> None:
    assert [note for note in layer_notes(PROFILE) if "computed from shapes" in note]
    assert [note for note in layer_notes(PROFILE) if note.startswith("1 of the model's layers")]
