"""Builds of a detector with its suppression inside: as many boxes as it finds, matched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager.package.directory import open_package
from runtime_adapters.golden import load_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.integration.builds import QUICK, built, candidate, proven, refused, write_profile
from wire.package.index import asset_directory

SIDE, BOX, STEP = 32, 8, 4
PLACES = (SIDE - BOX) // STEP + 1
METRIC = "boxes=map,scores=scores,classes=labels"


def model(folder: Path) -> Path:
    """Write a detector of bright squares: a convolution finds them, and suppression is inside."""
    rng = np.random.default_rng(3)
    corners = np.array(
        [
            [x * STEP, y * STEP, x * STEP + BOX, y * STEP + BOX]
            for y in range(PLACES)
            for x in range(PLACES)
        ],
        np.float32,
    )
    weights = {
        "blur": (np.ones((4, 1, 3, 3)) / 9 + rng.normal(0, 0.01, (4, 1, 3, 3))).astype(np.float32),
        "find": (np.ones((1, 4, BOX, BOX)) / (4 * BOX * BOX)).astype(np.float32) * 20,
        "bias": np.array([-9.0], np.float32),
        "corners": corners[None],
        "flat": np.array([1, 1, -1], np.int64),
        "most": np.array(10, np.int64),
        "overlap": np.array(0.2, np.float32),
        "least": np.array(0.5, np.float32),
        "second": np.array(1, np.int64),
        "third": np.array(2, np.int64),
        "line": np.array([-1], np.int64),
        "zero": np.array([0], np.int64),
    }
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Conv", ["x", "blur"], ["b"], pads=[1, 1, 1, 1]),
            node("Conv", ["b", "find", "bias"], ["f"], strides=[STEP, STEP]),
            node("Sigmoid", ["f"], ["p"]),
            node("Reshape", ["p", "flat"], ["all"]),
            node(
                "NonMaxSuppression", ["corners", "all", "most", "overlap", "least"], ["kept"],
                center_point_box=0,
            ),
            node("Gather", ["kept", "second"], ["labels"], axis=1),
            node("Gather", ["kept", "third"], ["places"], axis=1),
            node("Squeeze", ["corners", "zero"], ["grid"]),
            node("Gather", ["grid", "places"], ["boxes"], axis=0),
            node("Reshape", ["all", "line"], ["scored"]),
            node("Gather", ["scored", "places"], ["scores"], axis=0),
        ],
        "squares",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, SIDE, SIDE))],
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ("k", 4)),
            helper.make_tensor_value_info("labels", TensorProto.INT64, ("k",)),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ("k",)),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(found, full_check=True)
    onnx.save(found, str(folder / "squares.onnx"))
    return folder / "squares.onnx"


def pictures(path: Path, seed: int, count: int) -> Path:
    """Write pictures of none to three bright squares, with their boxes as labels."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 0.1, (count, 1, SIDE, SIDE)).astype(np.float32)
    label = np.full((count, 3, 5), -1.0, np.float32)
    for picture, truth in zip(x, label, strict=True):
        squares = rng.choice(4, rng.integers(0, 4), replace=False)
        for row, square in zip(truth, squares, strict=False):
            left, top = (np.array([square % 2, square // 2]) * 4 + rng.integers(0, 3, 2)) * STEP
            picture[0, top : top + BOX, left : left + BOX] += rng.uniform(0.7, 1.3)
            row[:] = (left, top, left + BOX, top + BOX, 0)
    np.savez(path, x=x, label=label)
    return path


def command(folder: Path, metric: str = METRIC, *more: str) -> list[str]:
    return [
        "build", str(folder / "squares.onnx"), "-p",
        str(write_profile(folder, "onnxruntime", "openvino")),
        "--calibration", str(folder / "calibration.npz"),
        "--evaluation", str(folder / "evaluation.npz"), "--cache", str(folder / "cache"),
        "--name", "squares", "--version", "1", "--metric", metric,
        "-o", str(folder / "package"), *QUICK, *more,
    ]  # fmt: skip


@pytest.fixture
def squares(tmp_path: Path) -> Path:
    model(tmp_path)
    pictures(tmp_path / "calibration.npz", 1, 32)
    pictures(tmp_path / "evaluation.npz", 2, 160)
    return tmp_path


@pytest.mark.thorough
def test_a_detector_that_suppresses_itself_is_judged_by_its_boxes(
    squares: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = built(capsys, command(squares, METRIC, "--min-retention", "0.8"))
    assert result["metric"] == "map,classes=labels,output=boxes,scores=scores"
    judged = {c["name"]: c["accuracy"] for c in result["candidates"] if c["accuracy"]}
    assert judged["onnxruntime-fp32"]["reference"] > 0.6
    assert judged["onnxruntime-fp32"]["retention"] == pytest.approx(1.0)
    assert judged["onnxruntime-fp32"]["agreement"] is None
    assert any("int8" in name for name in judged), result["candidates"]
    repairs = [one for one in result["impossible"] if "repair" in str(one)]
    assert any("repairs need outputs of one size" in str(one) for one in repairs)

    manifest = proven(squares / "package", min_retention=0.8)
    assert {variant.info.runtime for variant in manifest.variants} >= {"onnxruntime"}
    golden = manifest.variants[0].info.golden
    assert golden is not None
    inputs, outputs = load_golden(squares / "package" / asset_directory(golden.asset))
    assert len(inputs["x"]) == len(outputs["boxes"]) == len(outputs["scores"])
    assert outputs["boxes"].shape[1] > 0, "golden samples have boxes"


@pytest.mark.thorough
def test_the_figures_are_those_of_the_runtime_itself(
    squares: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every label is found or not: no metric is needed to count this."""
    result = built(capsys, command(squares, f"{METRIC},truth=reference"))
    assert candidate(result, "onnxruntime-fp32")["accuracy"]["value"] == 1.0
    manifest, _ = open_package(squares / "package")
    variant = next(v for v in manifest.variants if v.name == "onnxruntime-fp32")
    session = open_session(squares / "package" / variant.directory, variant.info, Limits())
    with np.load(squares / "evaluation.npz") as arrays:
        x, label = arrays["x"], arrays["label"]
    counts = [len(session.infer({"x": one[None]})["scores"]) for one in x]
    session.close()
    assert len(set(counts)) > 1, "the size of the answers varies"
    assert np.mean(np.array(counts) == (label[:, :, 4] >= 0).sum(axis=1)) > 0.9


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("metric", "more", "fault"),
    [
        ("cosine", (), "has shape"),
        ("map,scores=score", (), "the model has no output 'score'; its outputs are boxes"),
        (METRIC, ("--metric", "scores=cosine"), "further metrics cannot judge those"),
        ("map,order=xy", (), "has shape"),
    ],
)
def test_what_cannot_be_matched_is_refused_in_one_line(
    squares: Path,
    capsys: pytest.CaptureFixture[str],
    metric: str,
    more: tuple[str, ...],
    fault: str,
) -> None:
    assert fault in refused(capsys, command(squares, metric, *more))
