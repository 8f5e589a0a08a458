"""The compiled forms give what the NumPy forms give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

pytest.importorskip("numba")

from runtime_adapters.processing import numba_kernels as compiled
from runtime_adapters.processing import numpy_forms as plain

ULPS = 64
"""Softmax adds up in another order, and another library has its exponential."""

SIDES = st.integers(1, 9)
ANY_FLOAT = st.floats(width=32)


def equal(one: Any, other: Any) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def images(dtype: Any, shape: tuple[int, ...]) -> Any:
    elements = ANY_FLOAT if dtype is np.float32 else None
    return arrays.arrays(dtype, shape, elements=elements)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float16])
@given(data=st.data())
def test_resized_images_are_the_same(dtype: Any, data: st.DataObject) -> None:
    height, width, rows, columns, channels, count = (data.draw(SIDES) for _ in range(6))
    given_images = data.draw(images(dtype, (count % 3, height, width, channels)))
    equal(
        compiled.resize_bilinear(given_images, rows, columns),
        plain.resize_bilinear(given_images, rows, columns),
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("first", [True, False])
@given(data=st.data())
def test_normalised_values_are_the_same(dtype: Any, first: bool, data: st.DataObject) -> None:
    samples, pixels, channels = data.draw(st.tuples(st.integers(0, 2), SIDES, SIDES))
    values = data.draw(images(dtype, (samples, pixels, channels)))
    constants = arrays.arrays(np.float32, (channels,), elements=st.floats(0.125, 1e6, width=32))
    mean, std, scale = data.draw(st.tuples(constants, constants, st.floats(-1e6, 1e6)))
    equal(
        compiled.normalise(values, scale, mean, std, channels_first=first),
        plain.normalise(values, scale, mean, std, channels_first=first),
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@given(data=st.data())
def test_quantised_values_are_the_same(dtype: Any, data: st.DataObject) -> None:
    values = data.draw(images(np.float32, data.draw(arrays.array_shapes(min_side=0))))
    scale = np.array([data.draw(st.floats(1e-30, 1e30))], np.float32)
    bounds = np.iinfo(dtype)
    zero = np.array([data.draw(st.integers(int(bounds.min), int(bounds.max)))], np.int32)
    found = compiled.quantize(values, scale, zero, np.dtype(dtype))
    equal(found, plain.quantize(values, scale, zero, np.dtype(dtype)))
    equal(compiled.dequantize(found, scale, zero), plain.dequantize(found, scale, zero))


def test_several_scales_are_the_same() -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    scale = np.array([[0.1], [0.2], [0.3]], np.float32)
    zero = np.array([[1], [2], [3]], np.int32)
    found = compiled.quantize(values, scale, zero, np.dtype(np.int8))
    equal(found, plain.quantize(values, scale, zero, np.dtype(np.int8)))
    equal(compiled.dequantize(found, scale, zero), plain.dequantize(found, scale, zero))


@given(
    arrays.arrays(np.float32, arrays.array_shapes(min_dims=3, max_dims=3), elements=ANY_FLOAT),
    st.integers(0, 2),
)
def test_probabilities_are_the_same_within_some_units_in_the_last_place(
    scores: Any, axis: int
) -> None:
    found, expected = compiled.softmax(scores, axis), plain.softmax(scores, axis)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    normal = np.nan_to_num(expected) > np.finfo(np.float32).tiny * ULPS
    np.testing.assert_array_almost_equal_nulp(found[normal], expected[normal], ULPS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)


@given(data=st.data())
def test_the_greatest_are_the_same(data: st.DataObject) -> None:
    rows, classes = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 90))
    elements = ANY_FLOAT | st.sampled_from([0.0, -0.0, 1.0])
    scores = data.draw(arrays.arrays(np.float32, (rows, classes), elements=elements))
    k = data.draw(st.integers(0, classes))
    for found, expected in zip(compiled.top_k(scores, k), plain.top_k(scores, k), strict=True):
        equal(found, expected)


@pytest.mark.parametrize("centre", [True, False])
@given(data=st.data())
def test_the_same_boxes_are_kept(centre: bool, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 12))
    some = ANY_FLOAT | st.integers(-3, 3)
    boxes = data.draw(arrays.arrays(np.float32, (2, count, 4), elements=some))
    scores = data.draw(arrays.arrays(np.float32, (2, 2, count), elements=some))
    wanted: Any = {
        "iou_threshold": data.draw(st.floats(0, 1)),
        "score_threshold": data.draw(st.floats(-1, 1)),
        "max_per_class": data.draw(st.integers(0, 5)),
        "centre": centre,
    }
    equal(compiled.nms(boxes, scores, **wanted), plain.nms(boxes, scores, **wanted))


def test_many_boxes_that_overlap_are_the_same() -> None:
    random = np.random.default_rng(0)
    boxes = random.random((1, 3000, 4)).astype(np.float32)
    boxes[..., 2:] = boxes[..., :2] + 0.1
    scores = random.random((1, 2, 3000)).astype(np.float32)
    wanted: Any = {"iou_threshold": 0.4, "score_threshold": 0.2, "max_per_class": 200}
    found = compiled.nms(boxes, scores, **wanted)
    assert len(found) == 400
    equal(found, plain.nms(boxes, scores, **wanted))
