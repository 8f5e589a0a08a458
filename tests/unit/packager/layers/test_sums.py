"""Sums over the layers of a profile: nothing is lost by summing, sorting or leaving rows out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.layers.sums import bounded, by_time, faster_half, layers_us, precision_text, totals
from packager.layers.values import Layer, LayerProfile

TIMES = st.floats(0, 1e6, allow_nan=False)
LAYERS = st.lists(
    st.builds(
        Layer, name=st.text("abc", max_size=2), operator=st.sampled_from("xyz"), time_us=TIMES
    ),
    max_size=12,
).map(tuple)


def profile(layers: tuple[Layer, ...], removed: tuple[str, ...] = ()) -> LayerProfile:
    return LayerProfile(
        runtime="null", version="1", threads=1, machine="m", layers=layers, removed=removed
    )


@given(LAYERS)
def test_the_sums_by_operator_are_all_of_the_time(layers: tuple[Layer, ...]) -> None:
    whole = profile(layers)
    found = totals(whole)
    assert sum(total.layers for total in found) == len(layers)
    assert sum(total.time_us for total in found) == pytest.approx(layers_us(whole))
    if layers_us(whole):
        assert sum(total.share for total in found) == pytest.approx(1.0)
    assert [t.time_us for t in found] == sorted((t.time_us for t in found), reverse=True)


@given(LAYERS, st.integers(1, 12))
def test_a_bounded_profile_has_the_slowest_layers_and_the_whole_time(
    layers: tuple[Layer, ...], most: int
) -> None:
    whole = profile(layers, tuple("abcdef"))
    short = bounded(whole, most=most)
    assert len(short.layers) == min(most, len(layers))
    assert len(short.removed) == min(most, 6)
    assert len(short.layers) + short.left_out == len(layers)
    assert layers_us(short) == pytest.approx(layers_us(whole))
    slowest = [layer.time_us for layer in by_time(layers)[:most]]
    assert [layer.time_us for layer in by_time(short.layers)] == slowest
    positions = iter(layers)
    assert all(any(layer is other for other in positions) for layer in short.layers)


@given(st.lists(TIMES, max_size=40))
def test_no_inference_of_the_faster_half_is_slower_than_one_of_the_other(
    times: list[float],
) -> None:
    chosen = faster_half(times)
    assert len(chosen) == (len(times) + 1) // 2
    assert chosen == sorted(set(chosen))
    left = [times[i] for i in range(len(times)) if i not in chosen]
    assert min(left, default=1e6) >= max((times[i] for i in chosen), default=0.0)


def test_one_held_up_inference_does_not_count() -> None:
    assert faster_half([10.0, 5000.0, 11.0]) == [0, 2]


@pytest.mark.parametrize(
    ("inputs", "output", "text"),
    [
        (["float", "float"], "float", "fp32"),
        (["float"], "uint8", "fp32 → uint8"),
        (["uint8", "int8"], "uint8", "uint8, int8 → uint8"),
        (["u8"], "f32", "uint8 → fp32"),
        (["bf16"], "", "bf16"),
        ([], "i8", "int8"),
        ([], "", ""),
    ],
)
def test_precisions_have_the_names_of_variants(inputs: list[str], output: str, text: str) -> None:
    assert precision_text(inputs, output) == text
