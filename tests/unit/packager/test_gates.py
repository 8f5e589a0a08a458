"""Gates and the Pareto set: what is refused, beaten, kept."""

from __future__ import annotations

from typing import Any

import pytest

from packager.errors import QualityGateError
from packager.gates import MIB, Gates, Verdict, judge
from wire.manifest import Accuracy, Performance, Requirements, TensorSpec, Variant, VariantInfo
from wire.profile import DeviceProfile

SPEC = TensorSpec(name="t", datatype="FP32", shape=(-1, 3))


def variant(
    name: str,
    *,
    value: float = 0.9,
    latency_ms: float = 1.0,
    memory_mib: int = 60,
    size: int = 1000,
    metric: str = "top1",
    worst_error: float = 0.1,
    profiles: tuple[str, ...] = ("box",),
) -> Variant:
    return Variant(
        name=name,
        directory=name,
        info=VariantInfo(
            runtime="onnxruntime",
            precision="x",
            model_file="model.onnx",
            inputs=(SPEC,),
            outputs=(SPEC,),
            requirements=Requirements(memory_bytes=memory_mib * MIB),
            profiles=profiles,
            size_bytes=size,
            accuracy=Accuracy(
                metric=metric,
                value=value,
                reference=0.9,
                retention=value / 0.9,
                agreement=1.0,
                sqnr_db=30.0,
                worst_error=worst_error,
                samples=100,
            ),
            performance=Performance(
                latency_p50_ms=latency_ms,
                latency_p95_ms=latency_ms,
                load_ms=1.0,
                first_inference_ms=1.0,
                peak_memory_bytes=memory_mib * MIB,
                runs=200,
                threads=1,
                machine="x86_64 test",
            ),
        ),
    )


def profile(name: str = "box", **values: Any) -> DeviceProfile:
    defaults: dict[str, Any] = {
        "architecture": "x86_64",
        "memory_bytes": 2**30,
        "storage_bytes": 2**30,
        "runtimes": ("onnxruntime",),
    }
    return DeviceProfile(name=name, **(defaults | values))


def decide(*variants: Variant, gates: Gates | None = None, **options: Any) -> dict[str, Verdict]:
    device = options.pop("device", profile())
    return judge(
        variants,
        (device,),
        gates or Gates(),
        reference="float",
        architecture="x86_64",
        keep=options.pop("keep", frozenset()),
    )[device.name]


FLOAT = variant("float", latency_ms=2.0, size=4000)


def test_the_reference_is_kept_though_another_beats_it() -> None:
    found = decide(FLOAT, variant("int8"))
    assert found["float"].kept
    assert found["int8"].kept


def test_what_is_beaten_is_dropped_and_says_by_what() -> None:
    found = decide(FLOAT, variant("good"), variant("bad", latency_ms=1.5, size=1200))
    assert not found["bad"].kept
    assert found["bad"].reason.startswith("beaten by good: top1 0.9000 to 0.9000, 1.000 to 1.500")


def test_keep_overrides_being_beaten_but_no_gate() -> None:
    bad = variant("bad", latency_ms=1.5)
    assert decide(FLOAT, variant("good"), bad, keep=frozenset({"bad"}))["bad"].kept
    worse = variant("bad", value=0.5)
    found = decide(FLOAT, worse, keep=frozenset({"bad"}))
    assert found["bad"] == Verdict(kept=False, reason="retention 0.5556 < 0.9900")


def test_better_in_any_one_thing_is_enough() -> None:
    found = decide(
        FLOAT,
        variant("fast", latency_ms=0.5, memory_mib=100),
        variant("lean", memory_mib=40),
        variant("exact", value=0.91, memory_mib=200, size=9000, latency_ms=3.0),
    )
    assert all(verdict.kept for verdict in found.values())


def test_differences_within_noise_keep_nothing_alive() -> None:
    found = decide(FLOAT, variant("a"), variant("b", latency_ms=0.98, memory_mib=59, size=1200))
    assert [found[name].kept for name in ("a", "b")] == [True, False]


def test_of_two_equals_one_is_kept() -> None:
    found = decide(FLOAT, variant("a"), variant("b"))
    assert found["a"].kept
    assert found["b"].kept, "neither is better, so nothing is lost in silence"


def test_latency_measured_elsewhere_drops_nothing() -> None:
    found = decide(
        FLOAT,
        variant("good"),
        variant("slow", latency_ms=9.0),
        device=profile(architecture="aarch64"),
    )
    assert found["slow"] == Verdict(kept=True, reason="kept; its latency there is not known")


def test_closeness_counts_where_there_are_no_classes() -> None:
    near = variant("near", metric="cosine", worst_error=0.01, latency_ms=1.5)
    far = variant("far", metric="cosine", worst_error=0.5)
    found = decide(FLOAT, near, far)
    assert found["near"].kept
    assert found["far"].kept


@pytest.mark.parametrize(
    ("gates", "text"),
    [
        (Gates(max_size_bytes=3999), "size 4000 bytes > 3999 bytes"),
        (Gates(max_latency_ms=1.5), "latency 2.000 ms > 1.500 ms"),
        (Gates(max_memory_bytes=59 * MIB), "memory 62914560 bytes > 61865984 bytes"),
    ],
)
def test_each_gate_refuses_with_the_figure(gates: Gates, text: str) -> None:
    found = decide(FLOAT, variant("int8", memory_mib=50), gates=gates)
    assert found["float"] == Verdict(kept=False, reason=text)
    assert found["int8"].kept


def test_the_profile_limits_memory_and_storage() -> None:
    small = profile(memory_bytes=55 * MIB)
    assert "memory" in decide(FLOAT, variant("int8", memory_mib=50), device=small)["float"].reason
    full = profile(storage_bytes=2000)
    assert decide(FLOAT, variant("int8"), device=full)["float"].reason == (
        "storage 4000 bytes > 2000 bytes"
    )


def test_nothing_left_is_a_failed_build_with_the_nearest_miss() -> None:
    with pytest.raises(QualityGateError) as caught:
        decide(variant("a", value=0.5), variant("b", value=0.8))
    assert "none of 2 candidates passed; nearest is b with retention 0.8889" in str(caught.value)


def test_one_empty_profile_fails_the_whole_build() -> None:
    other = profile("other")
    with pytest.raises(QualityGateError, match="profile other: no candidate could be built"):
        judge((FLOAT,), (profile(), other), Gates(), reference="float", architecture="x86_64")


def test_the_order_of_candidates_does_not_matter() -> None:
    variants = [FLOAT, variant("a"), variant("b", latency_ms=0.5), variant("c", size=10)]
    assert decide(*variants) == decide(*reversed(variants))
