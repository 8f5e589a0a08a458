"""The NumPy forms do what ONNX says of the operators of those names."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from runtime_adapters.onnxruntime.library import onnxruntime
from runtime_adapters.processing import numpy_forms as forms

QUANTIZED: dict[str, tuple[Any, int]] = {
    "UINT8": (np.uint8, TensorProto.UINT8),
    "INT8": (np.int8, TensorProto.INT8),
    "UINT16": (np.uint16, TensorProto.UINT16),
    "INT16": (np.int16, TensorProto.INT16),
}
ONE = np.array([0], np.int32)


@functools.cache
def model(operator: str, inputs: tuple[tuple[str, int], ...], outputs: int, items: Any) -> bytes:
    """Return a model of one operator; an input of type 0 is left out."""
    node = helper.make_node(
        operator,
        [name if kind else "" for name, kind in inputs],
        [f"out{i}" for i in range(outputs)],
        **dict(items),
    )
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs if kind],
        [helper.make_empty_tensor_value_info(f"out{i}") for i in range(outputs)],
    )
    opset = [helper.make_opsetid("", 21)]
    content: bytes = helper.make_model(
        graph, opset_imports=opset, ir_version=10
    ).SerializeToString()
    return content


@functools.cache
def session(content: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(engine: str, content: bytes, feeds: dict[str, Any]) -> list[Any]:
    if engine == "reference":
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(onnx.load_from_string(content)).run(None, feeds))
    return list(session(content).run(None, feeds))


SIDES = st.integers(1, 9)


@pytest.mark.parametrize("engine", ["reference", "onnxruntime"])
@settings(max_examples=40)
@given(data=st.data())
def test_images_are_resized_as_onnx_resizes_them(engine: str, data: st.DataObject) -> None:
    height, width, rows, columns = (data.draw(SIDES) for _ in range(4))
    seed = data.draw(st.integers(0, 99))
    images = np.random.default_rng(seed).normal(size=(2, height, width, 3)).astype(np.float32)
    for mode, extra in (("linear", {}), ("nearest", {"nearest_mode": "round_prefer_ceil"})):
        items = {"mode": mode, "coordinate_transformation_mode": "half_pixel", **extra}
        inputs = (("x", TensorProto.FLOAT), ("roi", 0), ("scales", 0), ("sizes", TensorProto.INT64))
        content = model("Resize", inputs, 1, tuple(sorted(items.items())))
        sizes = np.array([2, 3, rows, columns])
        feeds = {"x": images.transpose(0, 3, 1, 2).copy(), "sizes": sizes}
        expected = run(engine, content, feeds)[0].transpose(0, 2, 3, 1)
        if mode == "linear":
            found = forms.resize_bilinear(images, rows, columns)
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
        elif not _has_ties((height, rows), (width, columns)):
            assert np.array_equal(forms.resize_nearest(images, rows, columns), expected)


def _has_ties(*axes: tuple[int, int]) -> bool:
    """Tell whether a centre falls halfway between two, where ONNX's engines differ by rounding."""
    return any(
        (2 * i + 1) * source % (2 * target) == 0 for source, target in axes for i in range(target)
    )


def test_halfway_between_two_pixels_is_the_later_one() -> None:
    row = np.arange(4, dtype=np.uint8).reshape(1, 1, 4, 1)
    assert forms.resize_nearest(row, 1, 2).ravel().tolist() == [1, 3]


@given(st.integers(0, 255), SIDES, SIDES, SIDES, SIDES)
def test_an_image_of_one_colour_keeps_it(
    colour: int, height: int, width: int, rows: int, columns: int
) -> None:
    image = np.full((1, height, width, 3), colour, np.uint8)
    found = forms.resize_bilinear(image, rows, columns)
    assert found.shape == (1, rows, columns, 3)
    assert (found == colour).all()


def test_an_image_of_its_own_size_is_unchanged() -> None:
    image = np.random.default_rng(0).normal(size=(1, 7, 5, 2)).astype(np.float32)
    assert np.array_equal(forms.resize_bilinear(image, 7, 5), image)
    assert np.array_equal(forms.resize_nearest(image, 7, 5), image)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("channels", [1, 3, 9])
def test_values_are_normalised_by_channel(first: bool, channels: int) -> None:
    random = np.random.default_rng(channels)
    values = random.integers(0, 256, (2, 6, channels), np.uint8)
    mean, std = random.random((2, channels)).astype(np.float32) + 0.5
    found = forms.normalise(values, 0.1, mean, std, channels_first=first)
    expected = (values.astype(np.float32) * np.float32(0.1) - mean) / std
    assert np.array_equal(found, expected.transpose(0, 2, 1) if first else expected)
    assert found.flags.c_contiguous


FLOATS = st.floats(-1e4, 1e4, width=32) | st.sampled_from(
    [0.5, 1.5, -2.5, 3e38, -3e38, np.inf, -np.inf]
)


@pytest.mark.parametrize("kind", QUANTIZED)
@given(data=st.data())
def test_quantisation_is_onnx_s(kind: str, data: st.DataObject) -> None:
    dtype, code = QUANTIZED[kind]
    values = data.draw(arrays.arrays(np.float32, (2, 3, 4), elements=FLOATS))
    along = data.draw(st.booleans())
    count = 3 if along else 1
    scale = data.draw(arrays.arrays(np.float32, (count,), elements=st.floats(0.125, 100, width=32)))
    bounds = np.iinfo(dtype)
    zeros = arrays.arrays(
        np.int32, (count,), elements=st.integers(int(bounds.min), int(bounds.max))
    )
    zero = data.draw(zeros)
    shape = (3, 1) if along else (1,)
    found = forms.quantize(values, scale.reshape(shape), zero.reshape(shape), np.dtype(dtype))
    inputs = (("x", TensorProto.FLOAT), ("scale", TensorProto.FLOAT), ("zero", code))
    parameters = {"scale": scale, "zero": zero.astype(dtype)}
    if not along:
        parameters = {name: array.reshape(()) for name, array in parameters.items()}
    content = model("QuantizeLinear", inputs, 1, (("axis", 1),))
    assert found.dtype == dtype
    assert np.array_equal(found, run("onnxruntime", content, {"x": values, **parameters})[0])
    inputs = (("x", code), ("scale", TensorProto.FLOAT), ("zero", code))
    content = model("DequantizeLinear", inputs, 1, (("axis", 1),))
    back = forms.dequantize(found, scale.reshape(shape), zero.reshape(shape))
    for engine in ("reference", "onnxruntime"):
        assert np.array_equal(back, run(engine, content, {"x": found, **parameters})[0])


def test_half_goes_to_even_and_nan_to_the_zero_point() -> None:
    values = np.array([0.5, 1.5, 2.5, -0.5, np.nan, 300, -300], np.float32)
    found = forms.quantize(
        values, np.array([1], np.float32), np.array([7], np.int32), np.dtype(np.int8)
    )
    assert found.tolist() == [7, 9, 9, 7, 7, 127, -128]


def test_accumulators_of_32_bits_become_real_numbers() -> None:
    values = np.array([-(2**31), 0, 2**31 - 1], np.int32)
    found = forms.dequantize(values, np.array([0.5], np.float32), ONE)
    assert found.tolist() == [-(2.0**30), 0.0, 2.0**30]


@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=3, max_dims=3),
        elements=st.floats(-(2.0**99), 2.0**99, width=32),
    ),
    st.integers(0, 2),
)
def test_probabilities_are_onnx_s(scores: Any, axis: int) -> None:
    found = forms.softmax(scores, axis)
    content = model("Softmax", (("x", TensorProto.FLOAT),), 1, (("axis", axis),))
    for engine in ("reference", "onnxruntime"):
        np.testing.assert_allclose(
            found, run(engine, content, {"x": scores})[0], rtol=3e-6, atol=1e-30
        )
    np.testing.assert_allclose(found.sum(axis=axis), 1, rtol=1e-5)


@given(arrays.arrays(np.float32, (2, 3), elements=FLOATS))
def test_a_probability_of_each_score_is_onnx_s(scores: Any) -> None:
    found = forms.sigmoid(scores)
    content = model("Sigmoid", (("x", TensorProto.FLOAT),), 1, ())
    expected = run("reference", content, {"x": scores})[0]
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-30)


SIZES = st.floats(0.0625, 4, width=32)


@given(
    arrays.arrays(np.float32, (3, 4), elements=SIZES),
    arrays.arrays(np.float32, (3, 4), elements=SIZES),
    st.tuples(SIZES, SIZES),
)
def test_boxes_from_anchors_undo_their_offsets(
    boxes: Any, anchors: Any, variances: tuple[float, float]
) -> None:
    centre = (boxes[:, :2] - anchors[:, :2]) / (anchors[:, 2:] * np.float32(variances[0]))
    size = np.log(boxes[:, 2:] / anchors[:, 2:]) / np.float32(variances[1])
    offsets = np.concatenate([centre, size], axis=1)[None]
    found = forms.from_anchors(offsets, anchors, variances, centre=True)
    np.testing.assert_allclose(found[0], boxes, rtol=1e-3, atol=1e-4)
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    found = forms.from_anchors(offsets, anchors, variances, centre=False)
    np.testing.assert_allclose(found[0], np.concatenate([low, high], axis=1), rtol=1e-3, atol=1e-3)


def test_softmax_of_nothing_and_of_what_is_no_number() -> None:
    assert forms.softmax(np.zeros((2, 0), np.float32), -1).shape == (2, 0)
    odd = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, 1]], np.float32)
    found = forms.softmax(odd, -1)
    assert np.isnan(found[:2, 0]).all()
    assert found[2].tolist() == [0, 1]


@given(
    arrays.arrays(
        st.sampled_from([np.float32, np.int64, np.uint8, np.float16]),
        st.tuples(st.integers(0, 3), st.integers(1, 20)),
    ),
    st.integers(1, 20),
)
def test_the_greatest_come_first_and_of_equals_the_lower_index(scores: Any, k: int) -> None:
    k = min(k, scores.shape[1])
    values, indices = forms.top_k(scores, k)
    for row, value, index in zip(scores, values, indices, strict=True):
        keys = [(-np.inf if np.isnan(x) else x.item()) for x in row]
        expected = sorted(range(len(keys)), key=lambda i: (-keys[i], i))[:k]
        assert index.tolist() == expected
        assert np.array_equal(value, row[expected], equal_nan=scores.dtype.kind == "f")


@given(arrays.arrays(np.float32, (3, 12), elements=st.integers(-4, 4)), st.integers(1, 12))
def test_the_greatest_are_onnx_s(scores: Any, k: int) -> None:
    inputs = (("x", TensorProto.FLOAT), ("k", TensorProto.INT64))
    content = model("TopK", inputs, 2, (("axis", 1),))
    values, indices = run("onnxruntime", content, {"x": scores, "k": np.array([k])})
    found = forms.top_k(scores, k)
    assert np.array_equal(found[0], values)
    assert np.array_equal(found[1], indices)


def boxes_of(random: np.random.Generator, count: int, centre: bool) -> Any:
    if centre:
        return random.random((2, count, 4)).astype(np.float32) * np.float32(0.4)
    return random.random((2, count, 4)).astype(np.float32)  # any diagonal


@pytest.mark.parametrize("engine", ["reference", "onnxruntime"])
@pytest.mark.parametrize("centre", [False, True])
@settings(max_examples=30)
@given(
    st.integers(0, 999), st.integers(0, 30), st.floats(0, 1), st.floats(-0.5, 1), st.integers(0, 8)
)
def test_boxes_are_kept_as_onnx_keeps_them(
    engine: str, centre: bool, seed: int, count: int, iou: float, least: float, most: int
) -> None:
    if engine == "reference" and not count:
        return  # it does not take none
    random = np.random.default_rng(seed)
    boxes = boxes_of(random, count, centre)
    scores = (random.integers(-9, 10, (2, 3, count)) / 10).astype(np.float32)  # ties, too
    inputs = (
        ("boxes", TensorProto.FLOAT),
        ("scores", TensorProto.FLOAT),
        ("most", TensorProto.INT64),
        ("iou", TensorProto.FLOAT),
        ("least", TensorProto.FLOAT),
    )
    content = model("NonMaxSuppression", inputs, 1, (("center_point_box", int(centre)),))
    feeds = {
        "boxes": boxes,
        "scores": scores,
        "most": np.array([most]),
        "iou": np.array([iou], np.float32),
        "least": np.array([least], np.float32),
    }
    found = forms.nms(
        boxes, scores, iou_threshold=iou, score_threshold=least, max_per_class=most, centre=centre
    )
    assert found.dtype == np.int64
    assert found.tolist() == run(engine, content, feeds)[0].reshape(-1, 3).tolist()


def test_a_box_that_is_no_box_overlaps_none_and_a_score_that_is_none_is_left_out() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, np.nan], [0, 0, 0, 1], [0, 0, 1, 1]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7, np.nan]]], np.float32)
    found = forms.nms(boxes, scores, iou_threshold=0, score_threshold=0, max_per_class=9)
    assert found[:, 2].tolist() == [0, 1, 2]
