"""Which figures count for a profile, of what its devices measured."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.field_figures import Answered, by_profile
from tests.unit.wire.test_measuring import GOOD
from wire.measuring import MAX_MS, MeasuredVariant, is_possible
from wire.package.performance import Performance, Relative

NAMES = ("v0", "v1", "v2")


def answered(
    name: str,
    *latencies_ms: float,
    at_s: float = 1.0,
    whole: bool = True,
    profile: str = "box",
    release: str = "r",
) -> Answered:
    return Answered(
        device=name,
        profile=profile,
        release=release,
        answered_at_s=at_s,
        whole=whole,
        variants=tuple(
            MeasuredVariant(
                name=f"v{n}", performance=msgspec.structs.replace(GOOD, latency_p50_ms=latency_ms)
            )
            for n, latency_ms in enumerate(latencies_ms)
        ),
    )


def counted(*answers: Answered) -> list[tuple[str, float, int]]:
    return [
        (found.variant, found.performance.latency_p50_ms, found.devices)
        for found in by_profile(answers)
    ]


def test_each_variant_has_the_middle_figure_of_its_devices() -> None:
    found = counted(answered("a", 9.0, 1.0), answered("b", 5.0, 2.0), answered("c", 1.0, 3.0))
    assert found == [("v0", 5.0, 3), ("v1", 2.0, 3)]


def test_of_two_devices_the_lower_figure_counts() -> None:
    assert counted(answered("a", 9.0, 1.0), answered("b", 5.0, 2.0)) == [
        ("v0", 5.0, 2),
        ("v1", 1.0, 2),
    ]


def test_of_fewer_than_three_devices_all_that_was_measured_counts() -> None:
    found = counted(answered("some", 1.0), answered("all", 9.0, 9.0))
    assert found == [("v0", 1.0, 2), ("v1", 9.0, 1)]


def test_of_three_devices_what_fewer_measured_does_not_count() -> None:
    found = counted(answered("a", 1.0), answered("b", 2.0), answered("liar", 3.0, 0.1))
    assert found == [("v0", 2.0, 3)]


def test_of_one_device_the_newest_answer_counts() -> None:
    (found,) = by_profile([answered("a", 2.0, at_s=5.0), answered("a", 1.0, at_s=4.0)])
    assert (found.at_s, found.devices) == (5.0, 1)


def test_a_whole_answer_counts_before_newer_ones_that_broke_off() -> None:
    whole = answered("a", 2.0, 3.0, at_s=1.0)
    broken = [answered("a", 7.0, at_s=at_s, whole=False) for at_s in (2.0, 3.0)]
    assert counted(whole, *broken) == [("v0", 2.0, 1), ("v1", 3.0, 1)]
    (found,) = by_profile(broken)
    assert found.at_s == 3.0


def test_the_time_is_that_of_the_newest_answer_with_the_variant() -> None:
    found = by_profile([answered("a", 1.0, 1.0, at_s=3.0), answered("b", 1.0, at_s=7.0)])
    assert [(each.variant, each.at_s) for each in found] == [("v0", 7.0), ("v1", 3.0)]


def test_profiles_and_releases_are_kept_apart() -> None:
    found = by_profile(
        [answered("a", 1.0), answered("b", 1.0, profile="y"), answered("a", 1.0, release="s")]
    )
    assert [(each.profile, each.release) for each in found] == [
        ("box", "r"),
        ("box", "s"),
        ("y", "r"),
    ]


def test_an_answer_without_figures_counts_for_nothing() -> None:
    silent = Answered(
        device="c",
        profile="box",
        release="r",
        answered_at_s=1.0,
        whole=True,
        variants=(MeasuredVariant(name="v0", reason="too large"),),
    )
    assert not by_profile([silent])
    assert counted(silent, answered("a", 1.0), answered("b", 2.0, 3.0)) == [
        ("v0", 1.0, 2),
        ("v1", 3.0, 1),
    ]


def test_ratios_to_the_most_common_reference_count() -> None:
    def with_ratio(name: str, reference: str, ratio: float) -> Answered:
        relative = Relative(reference=reference, ratio=ratio, low=ratio, high=ratio, pairs=8)
        performance = msgspec.structs.replace(GOOD, relative=relative)
        variants = (MeasuredVariant(name="v0", performance=performance),)
        return replace(answered(name), variants=variants)

    (found,) = by_profile(
        [with_ratio("a", "ours", 0.5), with_ratio("b", "ours", 0.6), with_ratio("c", "ours", 0.7)]
    )
    assert found.performance.relative
    assert found.performance.relative.ratio == 0.6
    (found,) = by_profile(
        [with_ratio("a", "ours", 0.5), with_ratio("b", "ours", 0.6), with_ratio("c", "its", 0.1)]
    )
    assert found.performance.relative is msgspec.UNSET, "of three devices two have such a ratio"


def performances(low: float, high: float) -> st.SearchStrategy[Performance]:
    """Figures within a range; what need not be there may be missing."""
    values = st.floats(low, high)
    counts = st.integers(int(low) + 1, int(high))
    bounds = st.lists(values, min_size=3, max_size=3).map(sorted)
    ratios = st.builds(
        lambda name, three, pairs: Relative(
            reference=name, low=three[0], ratio=three[1], high=three[2], pairs=pairs
        ),
        st.sampled_from(("ours", "theirs")),
        bounds,
        counts,
    )
    return st.builds(
        Performance,
        latency_p50_ms=values,
        latency_p95_ms=values,
        latency_iqr_ms=st.none() | values,
        load_ms=values,
        first_inference_ms=values,
        peak_memory_bytes=counts,
        runs=counts,
        threads=counts,
        machine=st.sampled_from(("m", "n")),
        relative=st.just(msgspec.UNSET) | ratios,
        background_cpus=st.just(msgspec.UNSET) | values,
        energy_j=st.just(msgspec.UNSET) | values,
    )


def devices(prefix: str, low: float, high: float) -> st.SearchStrategy[Answered]:
    told = st.dictionaries(st.sampled_from(NAMES), performances(low, high), min_size=1)
    return st.builds(
        lambda figures, at_s: Answered(
            device=prefix,
            profile="box",
            release="r",
            answered_at_s=at_s,
            whole=True,
            variants=tuple(MeasuredVariant(name=n, performance=p) for n, p in figures.items()),
        ),
        told,
        st.floats(0, 1e9),
    )


def ranges(answers: list[Answered], name: str) -> dict[str, tuple[float, float]]:
    """Return between which values each figure of a variant lies; a ratio by its reference."""
    found: dict[str, list[float]] = {}
    for answer in answers:
        for variant in answer.variants:
            if variant.name == name and variant.performance is not None:
                for key, value in numbers(variant.performance).items():
                    found.setdefault(key, []).append(value)
    return {key: (min(values), max(values)) for key, values in found.items()}


def numbers(performance: Performance) -> dict[str, float]:
    told = msgspec.to_builtins(performance)
    ratio = told.pop("relative", None) or {}
    reference = ratio.pop("reference", "")
    told |= {f"{reference} {key}": value for key, value in ratio.items()}
    return {key: value for key, value in told.items() if isinstance(value, int | float)}


@given(st.lists(devices("honest", 2.0, 9.0), min_size=2, max_size=5), devices("liar", 1e-3, MAX_MS))
def test_of_three_devices_one_that_lies_moves_no_figure_outside_of_what_the_others_say(
    others: list[Answered], liar: Answered
) -> None:
    honest = [replace(each, device=f"d{n}") for n, each in enumerate(others)]
    for each in by_profile([*honest, liar]):
        honest_ranges = ranges(honest, each.variant)
        assert is_possible(each.performance)
        assert each.devices >= 3
        for key, value in numbers(each.performance).items():
            low, high = honest_ranges[key]
            assert low <= value <= high, key


@given(devices("d", 1e-3, MAX_MS))
def test_the_figures_of_one_device_alone_are_what_it_said(alone: Answered) -> None:
    told = {v.name: v.performance for v in alone.variants}
    assert {each.variant: each.performance for each in by_profile([alone])} == told
