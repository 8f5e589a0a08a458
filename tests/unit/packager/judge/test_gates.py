"""Gates and the Pareto set: what is refused, beaten, kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from packager.errors import BuildError, QualityGateError
from packager.judge.gates import Gates, judge, require_variants, too_slow, vouched
from packager.judge.ranking import MIB, Span, spans
from packager.judge.verdicts import Verdict
from wire.package.accuracy import Accuracy, Certainty
from wire.package.performance import Performance, Relative
from wire.package.tensors import TensorSpec
from wire.package.variant import Requirements, Variant, VariantInfo
from wire.profile import DeviceProfile

SPEC = TensorSpec(name="t", datatype="FP32", shape=(-1, 3))


def variant(  # noqa: PLR0913 - one parameter per figure
    name: str,
    *,
    value: float = 0.9,
    latency_ms: float = 1.0,
    memory_mib: int = 60,
    size: int = 1000,
    metric: str = "top1",
    measured: bool = True,
    precision: str = "x",
    runtime: str = "onnxruntime",
    worst_error: float = 0.1,
    sqnr_db: float = 30.0,
    profiles: tuple[str, ...] = ("box",),
    agreement: float = 1.0,
    certainty: Certainty | None = None,
) -> Variant:
    return Variant(
        name=name,
        directory=name,
        info=VariantInfo(
            runtime=runtime,
            precision=precision,
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
                agreement=agreement,
                sqnr_db=sqnr_db,
                worst_error=worst_error,
                samples=100,
                certainty=certainty or msgspec.UNSET,
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
            )
            if measured
            else None,
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


HERE = frozenset({"box", "both"})
"""Profiles of such devices as the measuring machine is one."""


def decide(*variants: Variant, gates: Gates | None = None, **options: Any) -> dict[str, Verdict]:
    device = options.pop("device", profile())
    return judge(
        variants,
        (device,),
        gates or Gates(),
        references=frozenset({"float"}),
        here=options.pop("here", HERE),
        **options,
    )[device.name]


FLOAT = variant("float", latency_ms=2.0, size=4000)


def test_the_reference_is_kept_though_another_beats_it() -> None:
    found = decide(FLOAT, variant("int8"))
    assert found["float"].kept
    assert found["int8"].kept


def test_what_is_beaten_is_dropped_and_says_by_what() -> None:
    found = decide(FLOAT, variant("good"), variant("bad", latency_ms=1.5, size=1200))
    assert not found["bad"].kept
    assert found["bad"].reason.startswith(
        "good is as good in everything and better in something: top1 0.9000 against 0.9000, "
        "1.000 against 1.500 ms, 60 against 60 MiB, 1000 against 1200 B"
    )
    assert found["bad"].instead == "good"


def test_keep_overrides_being_beaten_but_no_gate() -> None:
    bad = variant("bad", latency_ms=1.5)
    assert decide(FLOAT, variant("good"), bad, keep=frozenset({"bad"}))["bad"].kept
    worse = variant("bad", value=0.5)
    found = decide(FLOAT, worse, keep=frozenset({"bad"}))
    assert not found["bad"].kept
    assert found["bad"].reason == "retention 0.5556 < 0.9900"
    assert found["bad"].excess == pytest.approx(0.99 - 0.5 / 0.9)


BOTH = profile(runtimes=("onnxruntime", "litert", "tvm"))


def test_the_fastest_of_each_runtime_is_kept_for_devices_that_have_it_alone() -> None:
    variants = (
        FLOAT,
        variant("ort-int8", value=0.899, latency_ms=1.2),
        variant("ort-other", value=0.899, latency_ms=1.3),
        variant("litert-int8", runtime="litert", value=0.899, latency_ms=0.5),
        variant("litert-float", runtime="litert", latency_ms=3.0, size=4500),
        variant("tvm", runtime="tvm", latency_ms=90.0, size=4500),
        variant("tvm-slow", runtime="tvm", latency_ms=95.0, size=4500),
    )
    found = decide(*variants, device=BOTH)
    kept = {name for name, verdict in found.items() if verdict.kept}
    assert kept == {"float", "ort-int8", "litert-int8", "tvm"}
    assert found["ort-int8"].reason == "kept: a device may have onnxruntime alone"
    assert found["ort-other"].reason.startswith("litert-int8 is as good")
    found = decide(*variants, device=BOTH, drop_beaten=True)
    assert {name for name, verdict in found.items() if verdict.kept} == {"float", "litert-int8"}


def test_no_runtime_keeps_what_a_gate_refuses() -> None:
    found = decide(FLOAT, variant("tvm", runtime="tvm", value=0.5), device=BOTH)
    assert not found["tvm"].kept


def test_the_fastest_of_a_runtime_is_evaluated_though_it_is_slow() -> None:
    variants = (
        FLOAT,
        variant("tvm", runtime="tvm", latency_ms=90.0),
        variant("tvm-int8", runtime="tvm", latency_ms=300.0),
        variant("tvm-slow", runtime="tvm", latency_ms=400.0),
    )
    references = frozenset({"float"})
    assert set(too_slow(variants, (BOTH,), Gates(), references=references, here=HERE)) == {
        "tvm-slow"
    }
    found = too_slow(variants, (BOTH,), Gates(), references=references, here=HERE, drop_beaten=True)
    assert set(found) == {"tvm", "tvm-int8", "tvm-slow"}


def test_smaller_and_leaner_is_kept_however_slow_it_is() -> None:
    slow = variant("slow", latency_ms=400.0, memory_mib=10, size=10)
    assert decide(FLOAT, variant("fast"), slow)["slow"].kept


def test_what_was_not_measured_neither_beats_nor_is_beaten() -> None:
    found = decide(FLOAT, variant("good"), variant("compiled", measured=False))
    assert found["compiled"].kept
    assert found["good"].kept


def test_better_in_any_one_thing_is_enough() -> None:
    found = decide(
        FLOAT,
        variant("fast", latency_ms=0.5, memory_mib=100),
        variant("lean", memory_mib=40),
        variant("small", memory_mib=200, size=900, latency_ms=1.9),
    )
    assert all(verdict.kept for verdict in found.values())


def test_to_be_better_than_the_reference_is_chance_and_keeps_nothing_alive() -> None:
    found = decide(FLOAT, variant("lucky", value=0.91, latency_ms=1.5, size=5000), variant("fast"))
    assert found["lucky"].instead == "fast"
    assert found["lucky"].reason.endswith("what is above the reference counts as chance")


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
        here=frozenset(),
    )
    assert found["slow"] == Verdict(
        kept=True, reason="kept; its latency cannot be measured on this machine"
    )
    gates = Gates(max_latency_ms=1.0)
    elsewhere = decide(FLOAT, gates=gates, here=frozenset())
    assert elsewhere["float"].kept, "a limit of latency is about the machine that measured"


def test_what_is_hopelessly_slow_is_not_even_evaluated() -> None:
    references = frozenset({"float"})
    slow = variant("slow", latency_ms=8.1, memory_mib=10)
    bearable = variant("bearable", latency_ms=7.9)
    found = too_slow(
        (FLOAT, slow, bearable), (profile(),), Gates(), references=references, here=HERE
    )
    assert found == {"slow": "not evaluated: 8.100 ms is over 4 times the 2.000 ms of float"}
    kept = too_slow(
        (FLOAT, slow),
        (profile(),),
        Gates(),
        references=references,
        here=HERE,
        keep=frozenset({"slow"}),
    )
    assert not kept


def test_slow_is_better_than_nothing_where_the_reference_does_not_fit() -> None:
    slow = variant("slow", latency_ms=80.0, memory_mib=10)
    small = profile(memory_bytes=50 * MIB)
    references = frozenset({"float"})
    assert not too_slow((FLOAT, slow), (small,), Gates(), references=references, here=HERE)


def beside(name: str, ratio: float, low: float, high: float, **values: Any) -> Variant:
    """Return a variant whose latency was measured in turn with the unchanged model."""
    made = variant(name, latency_ms=2.0 * ratio, **values)
    performance = made.info.performance
    assert performance is not None
    relative = Relative(reference="onnxruntime", ratio=ratio, low=low, high=high, pairs=8)
    timed = msgspec.structs.replace(performance, relative=relative)
    return msgspec.structs.replace(made, info=msgspec.structs.replace(made.info, performance=timed))


def test_noise_drops_nothing_before_it_is_evaluated() -> None:
    sure, noisy = beside("sure", 6.0, 5.9, 6.1), beside("noisy", 6.0, 3.0, 12.0)
    variants = (beside("float", 1.0, 0.99, 1.01), beside("fast", 1.0, 0.99, 1.01), sure, noisy)
    references = frozenset({"float"})
    assert set(too_slow(variants, (profile(),), Gates(), references=references, here=HERE)) == {
        "sure"
    }


def test_what_is_slow_here_is_evaluated_for_a_device_of_another_kind() -> None:
    references, slow = frozenset({"float"}), variant("slow", latency_ms=400.0)
    variants, fast = (FLOAT, slow), variant("fast")
    devices = (profile(),)
    all_ = (*variants, fast)
    assert too_slow(all_, devices, Gates(), references=references, here=HERE)
    assert not too_slow(all_, devices, Gates(), references=references, here=frozenset())


def test_what_devices_are_to_measure_is_judged_by_quality_alone() -> None:
    gates = Gates(untimed=True, max_variants=1)
    slow, bad = variant("slow", latency_ms=400.0, size=9000), variant("bad", value=0.1)
    all_ = (FLOAT, variant("fast"), slow, bad)
    assert not too_slow(all_, (profile(),), gates, references=frozenset({"float"}), here=HERE)
    found = decide(*all_, gates=gates)
    assert {name for name, verdict in found.items() if verdict.kept} == {"float", "fast", "slow"}


def test_a_latency_that_is_not_sure_beats_only_with_its_whole_range() -> None:
    exact = beside("float", 1.0, 0.99, 1.01, size=4000)
    worse = {"value": 0.899, "size": 1100}
    good = beside("good", 0.5, 0.49, 0.51)
    found = decide(exact, good, beside("noisy", 0.6, 0.5, 0.7, **worse))
    assert found["noisy"].kept, "it may be as fast"
    found = decide(exact, good, beside("noisy", 0.7, 0.55, 0.8, **worse))
    assert found["noisy"].instead == "good"
    found = decide(exact, good, beside("sure", 0.6, 0.59, 0.61, **worse))
    assert found["sure"].instead == "good"


def test_latencies_of_two_yardsticks_are_compared_in_milliseconds() -> None:
    old, new = variant("old", latency_ms=3.0), beside("new", 1.0, 0.9, 1.2)
    assert spans((old, new)) == [Span(3.0, 3.0, 3.0), Span(2.0, 2.0, 2.0)]
    assert spans((new, new)) == [Span(1.0, 0.9, 1.2)] * 2


def test_of_those_that_run_the_same_instructions_the_closest_is_kept() -> None:
    families = {"minmax": "int8", "entropy": "int8", "int4": "int4"}
    found = decide(
        FLOAT,
        variant("minmax", value=0.9, sqnr_db=28.0),
        variant("entropy", value=0.899, latency_ms=9.0),
        variant("int4", value=0.895),
        here=frozenset(),
        families=families,
    )
    assert {name for name, verdict in found.items() if verdict.kept} == {"float", "entropy", "int4"}
    assert found["minmax"].reason.startswith("it runs the same instructions as entropy")


def test_elsewhere_a_quantized_variant_must_be_smaller_or_better_than_its_float_one() -> None:
    plain = variant("plain", size=4000, precision="fp32")
    found = decide(
        FLOAT,
        plain,
        variant("folded", size=4000, precision="int8"),
        variant("small", size=1000, precision="int8"),
        variant("other", size=4000, precision="int8", runtime="tvm"),
        device=profile(runtimes=("onnxruntime", "tvm")),
        here=frozenset(),
    )
    assert {name for name, verdict in found.items() if verdict.kept} == {
        "float", "plain", "small", "other"
    }  # fmt: skip
    assert found["folded"].reason.startswith("it is neither smaller nor better than plain")


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
    assert not found["float"].kept
    assert found["float"].reason == text
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
        require_variants({"box": decide(variant("a", value=0.5), variant("b", value=0.8))}, {})
    assert (
        "none of the 2 candidates passed the gates; the nearest is b with retention 0.8889"
        in str(caught.value)
    )


def test_one_empty_profile_fails_the_whole_build() -> None:
    other = profile("other")
    verdicts = judge(
        (FLOAT,),
        (profile(), other),
        Gates(),
        references=frozenset({"float"}),
        here=HERE,
    )
    with pytest.raises(BuildError, match="profile other: no candidate could be built: a hung"):
        require_variants(verdicts, {"other": "a hung"})


def test_the_order_of_candidates_does_not_matter() -> None:
    variants = [FLOAT, variant("a"), variant("b", latency_ms=0.5), variant("c", size=10)]
    assert decide(*variants) == decide(*reversed(variants))


def certain(
    retention_low: float | None = 0.995, agreement_low: float | None = None, *, needed: int = 0
) -> Certainty:
    return Certainty(
        retention_low=retention_low,
        retention_high=None if retention_low is None else 1.01,
        agreement_low=agreement_low,
        agreement_high=None if agreement_low is None else 0.999,
        confidence=0.99,
        compared=5,
        samples_needed=needed,
    )


def test_a_gate_that_cannot_tell_says_so_and_keeps_the_variant() -> None:
    found = decide(FLOAT, variant("int8", certainty=certain(0.95, needed=1400)))["int8"]
    assert found.kept
    assert found.doubt == (
        "cannot tell: retention is 1.0000, but with 99.00% confidence only at least 0.9500, below "
        "0.9900; about 1,400 samples would be needed instead of 100"
    )
    assert found.reason == f"kept; {found.doubt}"
    assert decide(FLOAT, variant("int8", certainty=certain()))["int8"].doubt == ""


def test_a_strict_gate_refuses_what_the_samples_cannot_show() -> None:
    gates = Gates(strict=True)
    found = decide(FLOAT, variant("int8", certainty=certain(0.95, needed=1400)), gates=gates)
    assert not found["int8"].kept
    assert found["int8"].reason.startswith("cannot tell: retention is 1.0000")
    assert found["int8"].excess == pytest.approx(0.04)
    assert decide(FLOAT, variant("int8", certainty=certain()), gates=gates)["int8"].kept
    unknown = variant("int8", metric="my:own", certainty=certain(None, needed=1_000_000))
    assert decide(FLOAT, unknown)["int8"].doubt.endswith("100 samples give no bound for my:own")
    assert not decide(FLOAT, unknown, gates=gates)["int8"].kept
    # The reference is what the others are compared with: no sample is needed for it.
    reference = variant("float", certainty=certain(0.95))
    assert decide(reference, gates=gates)["float"].kept


def test_a_figure_that_fails_is_refused_whatever_its_bounds() -> None:
    found = decide(FLOAT, variant("int8", value=0.885, certainty=certain(0.95)))["int8"]
    assert not found.kept
    assert found.reason == (
        "retention 0.9833 < 0.9900 (0.9500 to 1.0100, each with 99.00% confidence)"
    )


def test_disagreement_has_a_gate_of_its_own() -> None:
    churning = variant("int8", value=0.909, agreement=0.911, certainty=certain(0.995, 0.88))
    found = decide(FLOAT, churning)["int8"]
    assert not found.kept
    assert found.reason == (
        "disagreement with the reference 0.0890 > 0.0500 (0.0010 to 0.1200, each with 99.00% "
        "confidence)"
    )
    assert decide(FLOAT, churning, gates=Gates(max_disagreement=0.15))["int8"].kept
    assert decide(FLOAT, churning, gates=Gates(min_retention=0.95))["int8"].kept, "5 times 0.05"
    unclear = variant("int8", agreement=0.96, certainty=certain(0.995, 0.93, needed=800))
    assert decide(FLOAT, unclear)["int8"].doubt == (
        "cannot tell: disagreement with the reference is 0.0400, but with 99.00% confidence up to "
        "0.0700, above 0.0500; about 800 samples would be needed instead of 100"
    )
    both = variant("int8", agreement=0.96, certainty=certain(0.95, 0.93, needed=1400))
    assert decide(FLOAT, both)["int8"].doubt == (
        "cannot tell: retention is 1.0000, but with 99.00% confidence only at least 0.9500, below "
        "0.9900, and disagreement with the reference is 0.0400, but with 99.00% confidence up to "
        "0.0700, above 0.0500; about 1,400 samples would be needed instead of 100"
    )
    images = variant("int8", metric="cosine", agreement=0.1, certainty=certain())
    assert decide(FLOAT, images)["int8"].kept, "an image has no one top answer"
    asked = Gates(max_disagreement=0.5)
    assert not decide(FLOAT, images, gates=asked)["int8"].kept


@pytest.mark.parametrize(
    ("value", "agreement", "words"),
    [
        (0.9, 1.0, ""),
        (0.892, 0.96, ""),
        (0.88, 1.0, "retention 0.9778 < 0.9900"),
        (0.9, 0.9, "disagreement with the reference 0.1000 > 0.0500"),
    ],
)
def test_other_kernels_are_vouched_for_where_they_pass_the_gates_of_quality(
    value: float, agreement: float, words: str
) -> None:
    known = Certainty(
        retention_low=0.98, retention_high=1.0, agreement_low=0.9, agreement_high=1.0,
        confidence=0.95, compared=1, samples_needed=0,
    )  # fmt: skip
    usual = variant("a", certainty=known)
    other = variant("a", value=value, agreement=agreement).info.accuracy
    assert other is not None
    assert vouched(usual, other, Gates()).startswith(words)
    assert bool(vouched(usual, other, Gates())) == bool(words)
