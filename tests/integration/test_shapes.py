"""Builds whose samples have several shapes: judged over all of them, and told by shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from controller.cli import main
from packager.package.directory import open_package
from packager.samples.store import load_inputs
from runtime_adapters.golden import load_golden
from tests.integration.builds import QUICK, built, candidate, proven, refused, write_profile
from wire.package.index import asset_directory
from wire.package.tensors import TensorSpec

WIDTHS = {12: 90, 20: 60, 33: 30}
"""Samples of each width."""

CLASSES = 5


def model(folder: Path) -> Path:
    """Write a small convolutional network that takes signals of any width."""
    rng = np.random.default_rng(5)
    weights = {
        "w": rng.normal(0, 0.5, (16, 3, 3)).astype(np.float32),
        "b": rng.normal(0, 0.1, 16).astype(np.float32),
        "g": rng.normal(0, 1.0, (16, CLASSES)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("MatMul", ["f", "g"], ["scores"]),
        ],
        "signals",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3, "w"))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ("n", CLASSES))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(found, str(folder / "signals.onnx"))
    return folder / "signals.onnx"


def samples(path: Path, seed: int, *widths: int, share: int = 1) -> Path:
    """Write a folder with an archive for each width; the labels are the reference's, with noise."""
    rng = np.random.default_rng(seed)
    path.mkdir()
    for width in widths:
        count = WIDTHS[width] // share
        x = rng.normal(0, 1, (count, 3, width)) * rng.uniform(0.2, 2.0, (count, 3, 1))
        np.savez(
            path / f"{width}.npz",
            x=x.astype(np.float32),
            label=rng.integers(0, CLASSES, count),
        )
    return path


def command(folder: Path, *more: str) -> list[str]:
    return [
        "build", str(folder / "signals.onnx"), "-p",
        str(write_profile(folder, "onnxruntime", "openvino")),
        "--evaluation", str(folder / "evaluation"), "--cache", str(folder / "cache"),
        "--name", "signals", "--version", "1", "--repair-trials", "0",
        "--metric", "agreement", "-o", str(folder / "package"), *QUICK, *more,
    ]  # fmt: skip


@pytest.mark.thorough
def test_samples_of_several_shapes_are_judged_together_and_told_by_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path)
    samples(tmp_path / "calibration", 1, *WIDTHS)
    samples(tmp_path / "evaluation", 2, *WIDTHS)
    report = tmp_path / "report.html"
    result = built(
        capsys,
        command(
            tmp_path, "--calibration", str(tmp_path / "calibration"), "--report", str(report),
            "--min-retention", "0.8", "--max-disagreement", "0.5",
            "--keep", "onnxruntime-int8-reduced",
        ),
    )  # fmt: skip
    assert result["samples"] == sum(WIDTHS.values())
    note = next(note for note in result["notes"] if "samples of 3 shapes are judged" in note)
    assert "90 of the most frequent" in note
    assert "x [3, 20] (60)" in note
    quantized = [
        c for c in result["candidates"] if c["precision"] != "fp32" and c["accuracy"] is not None
    ]
    assert quantized
    for one in [candidate(result, "onnxruntime-fp32"), *quantized]:
        accuracy = one["accuracy"]
        shapes = accuracy["shapes"]
        assert [s["sizes"]["x"] for s in shapes] == [[3, 12], [3, 20], [3, 33]]
        assert [s["samples"] for s in shapes] == [90, 60, 30]
        pooled = sum(s["value"] * s["samples"] for s in shapes) / result["samples"]
        assert accuracy["value"] == pytest.approx(pooled)
        assert accuracy["samples"] == result["samples"]
    assert "3x33" in report.read_text()

    manifest = proven(tmp_path / "package", min_retention=0.8)
    assert all(v.info.accuracy and v.info.accuracy.shapes for v in manifest.variants)
    assert {v.info.inputs[0].shape for v in manifest.variants} == {(-1, 3, -1)}
    capsys.readouterr()
    assert main(["package", "show", str(tmp_path / "package")]) == 0
    shown = capsys.readouterr().out
    assert "x 3x12" in shown
    assert "x 3x33" in shown


@pytest.mark.thorough
def test_one_set_is_shared_by_calibration_and_gate_at_every_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path)
    samples(tmp_path / "evaluation", 2, *WIDTHS)
    result = built(capsys, command(tmp_path, "--min-retention", "0.8", "--max-disagreement", "0.5"))
    shapes = candidate(result, "onnxruntime-fp32")["accuracy"]["shapes"]
    shares = [one["samples"] / WIDTHS[one["sizes"]["x"][1]] for one in shapes]
    assert len(shares) == 3
    assert max(shares) - min(shares) < 0.1, "the gate's mixture of shapes is that of the set"


@pytest.mark.thorough
def test_golden_samples_are_those_of_the_most_frequent_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path)
    folder = samples(tmp_path / "evaluation", 2, 20, 33)
    built(capsys, command(tmp_path))
    manifest, _ = open_package(tmp_path / "package")
    golden = manifest.variants[0].info.golden
    assert golden is not None
    inputs, _ = load_golden(tmp_path / "package" / asset_directory(golden.asset))
    with np.load(folder / "20.npz") as arrays:
        known = {row.tobytes() for row in arrays["x"]}
    assert all(row.tobytes() in known for row in inputs["x"])


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (("--metric", "scores=cosine"), "the samples have 2 shapes, which further metrics cannot"),
        (("--preprocessing", "{folder}/scale.toml"), "has samples of several shapes, and a pre"),
    ],
)
def test_what_takes_one_shape_alone_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], fault: str
) -> None:
    model(tmp_path)
    samples(tmp_path / "evaluation", 2, 20, 33)
    (tmp_path / "scale.toml").write_text('[x]\nsource_datatype = "FP32"\nscale = 0.5\n')
    said = refused(
        capsys, command(tmp_path, *(word.replace("{folder}", str(tmp_path)) for word in more))
    )
    assert fault in said


def test_a_function_of_the_user_gets_no_samples_of_several_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path)
    samples(tmp_path / "evaluation", 2, 20, 33)
    (tmp_path / "own.py").write_text("def mine(answers, labels): return 1.0\n")
    arguments = command(tmp_path)
    arguments[arguments.index("agreement")] = f"{tmp_path}/own.py:mine"
    assert "it gets all samples in one array" in refused(capsys, arguments)


@pytest.mark.thorough
def test_a_package_of_one_shape_says_nothing_of_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path)
    samples(tmp_path / "evaluation", 2, 20)
    result = built(capsys, command(tmp_path))
    assert "shapes" not in candidate(result, "onnxruntime-fp32")["accuracy"]
    assert not any("shapes" in note for note in result["notes"])
    assert b'"shapes"' not in (tmp_path / "package" / "manifest.json").read_bytes()


def test_the_folders_of_the_gate_hold_what_was_given(tmp_path: Path) -> None:
    spec = (TensorSpec(name="x", datatype="FP32", shape=(-1, 3, -1)),)
    from packager.samples.parts import make_parts
    from packager.samples.readers import SampleSource
    from packager.samples.shapes import folders_of, sizes_of

    folder = samples(tmp_path / "evaluation", 2, *WIDTHS)
    target = tmp_path / "data"
    target.mkdir()
    found = make_parts({"evaluation": SampleSource(folder)}, spec, target, calibrated=False)
    assert found.samples == {"gate": sum(WIDTHS.values())}
    gate = target / "gate"
    assert [sizes_of(one, spec)["x"] for one in folders_of(gate)] == [(3, 20), (3, 33)]
    for width, place in ((12, gate), (20, gate / "shape-1"), (33, gate / "shape-2")):
        with np.load(folder / f"{width}.npz") as arrays:
            assert np.array_equal(load_inputs(place, spec)["x"], arrays["x"])


def test_labels_that_one_shape_alone_has_wrong_end_the_build_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path)
    folder = samples(tmp_path / "evaluation", 2, 20, 33)
    with np.load(folder / "33.npz") as arrays:
        x, label = arrays["x"], arrays["label"]
    np.savez(folder / "33.npz", x=x, label=label + CLASSES)
    arguments = command(tmp_path)
    arguments[arguments.index("agreement")] = "top1"
    assert f"the model's classes go from 0 to {CLASSES - 1}" in refused(capsys, arguments)


@pytest.mark.parametrize("name", ["20.npz", "x.npy"])
def test_a_folder_with_a_link_to_a_device_is_refused_and_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    model(tmp_path)
    folder = samples(tmp_path / "evaluation", 2, 33)
    (folder / name).symlink_to("/dev/zero")
    assert "is not a regular file" in refused(capsys, command(tmp_path))
