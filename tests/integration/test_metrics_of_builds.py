"""Builds judged by the metrics that people deploy by: boxes and masks, with labels and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.integration.builds import QUICK, built, candidate, proven, refused, write_profile
from tests.simulators.detectors import (
    FACE_CELL,
    FACE_SIZE,
    SHAPE_BOX,
    SHAPE_CELL,
    SHAPE_SIZE,
    face_anchors,
    face_detector,
    picture,
    shape_detector,
)

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)
SHAPES = """\
[columns.suppression]
scores = "columns"
boxes = "centre"
score_threshold = 0.3
"""
FACES = """\
[boxes.suppression]
scores = "scores"
layout = "classes_last"
activation = "softmax"
background = "first"
anchors = "priors.npy"
variances = [0.1, 0.2]
score_threshold = 0.5
"""
SAMPLES = 24


def command(folder: Path, model: Path, *more: str) -> list[str]:
    """Return the arguments of a build that is judged by `evaluation.npz`."""
    return [
        "build", str(model), "-p", str(write_profile(folder, "onnxruntime")),
        "--evaluation", str(folder / "evaluation.npz"), "--cache", str(folder / "cache"),
        "-o", str(folder / "package"), *QUICK, *more,
    ]  # fmt: skip


def shapes(folder: Path) -> tuple[Path, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a detector, its pictures, and the boxes on them; the last picture is empty."""
    rng = np.random.default_rng(5)
    images, labels = [], []
    width, height = SHAPE_BOX
    for _ in range(SAMPLES - 1):
        cells = rng.permutation(24)[:3]
        squares = {(int(c) // 6, int(c) % 6): RED if c % 2 else BLUE for c in cells}
        images.append(picture(SHAPE_SIZE, SHAPE_CELL, squares).astype(np.float32) / 255)
        boxes = np.full((4, 5), -1.0, np.float32)  # three boxes and one that pads
        for row, ((y, x), colour) in zip(boxes, squares.items(), strict=False):
            middle = np.array([(x + 0.5) * SHAPE_CELL, (y + 0.5) * SHAPE_CELL])
            half = np.array([width, height]) / 2
            row[:] = [*(middle - half), *(middle + half), float(colour == BLUE)]
        labels.append(boxes)
    images.append(np.zeros_like(images[0]))
    labels.append(np.full((4, 5), -1.0, np.float32))
    pixels = np.stack(images).transpose(0, 3, 1, 2)
    return shape_detector(folder / "shapes.onnx"), pixels, np.stack(labels)


@pytest.mark.thorough
def test_a_detector_is_judged_by_the_boxes_on_its_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, pixels, labels = shapes(tmp_path)
    np.savez(tmp_path / "evaluation.npz", image=pixels, labels=labels)
    (tmp_path / "after.toml").write_text(SHAPES)
    arguments = command(
        tmp_path, model, "--float-only", "--postprocessing", str(tmp_path / "after.toml")
    )
    result = built(capsys, arguments)
    assert result["metric"] == "map"
    assert (
        "the postprocessing declares boxes, and the labels are float32" in result["metric_reason"]
    )
    reference = candidate(result, "onnxruntime-fp32")["accuracy"]
    assert reference["value"] == reference["reference"] == pytest.approx(1.0)
    assert reference["agreement"] is None
    manifest = proven(tmp_path / "package")
    assert all(v.info.accuracy and v.info.accuracy.metric == "map" for v in manifest.variants)
    assert all(v.info.accuracy and v.info.accuracy.certainty for v in manifest.variants)

    np.savez(tmp_path / "evaluation.npz", image=pixels, labels=labels[..., [1, 0, 3, 2, 4]])
    said = refused(capsys, [*arguments, "--force"])
    assert "map,order=yx" in said


@pytest.mark.thorough
def test_boxes_are_judged_by_a_further_metric_with_labels_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, pixels, labels = shapes(tmp_path)
    np.savez(tmp_path / "evaluation.npz", image=pixels, boxes=labels)
    (tmp_path / "after.toml").write_text(SHAPES)
    more = ("--metric", "cosine", "--metric", "columns=map,labels=boxes,min-retention=0.9")
    after = ("--float-only", "--postprocessing", str(tmp_path / "after.toml"))
    result = built(capsys, command(tmp_path, model, *more, *after))
    accuracy = candidate(result, "onnxruntime-fp32")["accuracy"]
    assert accuracy["metric"] == "cosine"
    (boxes,) = accuracy["further"]
    assert (boxes["metric"], boxes["labels"]) == ("map", "boxes")
    assert boxes["value"] == boxes["reference"] == pytest.approx(1.0)


@pytest.mark.thorough
def test_boxes_from_anchors_are_compared_with_those_of_the_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    face_detector(tmp_path / "faces.onnx")
    np.save(tmp_path / "priors.npy", face_anchors())
    cells = [{(1 + n, 2 * n): WHITE} for n in range(9)]
    pixels = np.stack([picture(FACE_SIZE, FACE_CELL, squares) for squares in cells])
    image = ((pixels.astype(np.float32) - 127) / 128).transpose(0, 3, 1, 2)
    np.savez(tmp_path / "evaluation.npz", image=image)
    (tmp_path / "after.toml").write_text(FACES)
    after = str(tmp_path / "after.toml")
    result = built(
        capsys,
        command(tmp_path, tmp_path / "faces.onnx", "--float-only", "--postprocessing", after),
    )
    assert result["metric"] == "map"
    assert "the boxes that the reference finds are the truth" in result["metric_reason"]
    for one in result["candidates"]:
        assert 0.5 < one["accuracy"]["value"] <= 1.0
        assert one["accuracy"]["agreement"] is None


def segmenter(path: Path, *, last: bool) -> Path:
    """Write a model whose classes are the greatest of red, green and blue at each place."""
    size = (1, 3, 8, 12)
    kernel = numpy_helper.from_array(np.eye(3, dtype=np.float32)[..., None, None], "w")
    nodes = [helper.make_node("Conv", ["image", "w"], ["maps"])]
    if last:
        nodes.append(helper.make_node("Transpose", ["maps"], ["masks"], perm=[0, 2, 3, 1]))
    else:
        nodes.append(helper.make_node("Identity", ["maps"], ["masks"]))
    graph = helper.make_graph(
        nodes,
        "segmenter",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info("masks", TensorProto.FLOAT, None)],
        [kernel],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), str(path))
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("last", [False, True])
def test_a_segmenter_is_judged_by_the_masks_of_its_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], last: bool
) -> None:
    rng = np.random.default_rng(2)
    image = rng.random((32, 3, 8, 12), np.float32)
    masks = image.argmax(axis=1).astype(np.uint8)
    masks[:, 0] = 255
    masks[:, 1] = (masks[:, 1] + 1) % 3  # of 7 rows that count, the model has one wrong
    np.savez(tmp_path / "evaluation.npz", image=image, labels=masks)
    model = segmenter(tmp_path / "segmenter.onnx", last=last)
    report = tmp_path / "report.html"
    result = built(capsys, command(tmp_path, model, "--float-only", "--report", str(report)))
    assert result["metric"] == f"miou,axis={3 if last else 1}"
    assert f"has its classes on axis {3 if last else 1}" in result["metric_reason"]
    reference = candidate(result, "onnxruntime-fp32")["accuracy"]
    assert reference["metric"] == "miou"
    # Of n places of a class 6/7 are right, 1/7 are another's, and 1/7 of others are taken for it.
    assert reference["value"] == pytest.approx(6 / 8, abs=0.02)
    assert reference["agreement"] is None
    assert all(0.5 < one["accuracy"]["value"] < 0.8 for one in result["candidates"])
    assert "miou" in report.read_text()
