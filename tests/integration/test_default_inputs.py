"""Builds of models with inputs that have a default: constants, unless the samples carry them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from runtime_adapters.protocol import Limits, Tensors
from runtime_adapters.registry import open_session
from tests.integration.builds import QUICK, built, proven, refused, write_profile
from wire.package.manifest import Manifest

FEATURES, GAIN = 32, 0.5
HALF = ("--keep", "onnxruntime-fp16", "--keep", "openvino-fp16")


def scaled(path: Path) -> Path:
    """Write y = gain * tanh(x w), where `gain` is an input with the default 0.5."""
    weight = np.random.default_rng(1).normal(0, FEATURES**-0.5, (FEATURES, FEATURES))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Tanh", ["a"], ["t"]),
            helper.make_node("Mul", ["t", "gain"], ["y"]),
        ],
        "scaled",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, FEATURES]),
            helper.make_tensor_value_info("gain", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, FEATURES])],
        [
            numpy_helper.from_array(weight.astype(np.float32), "w"),
            numpy_helper.from_array(np.array([GAIN], np.float32), "gain"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def command(folder: Path, *more: str, gains: bool) -> list[str]:
    """Return the arguments of a build, with samples that carry the gain or do not."""
    rng = np.random.default_rng(2)
    samples: dict[str, Any] = {"x": rng.normal(0, 1, (160, FEATURES)).astype(np.float32)}
    if gains:
        samples["gain"] = rng.uniform(0.1, 2, 160).astype(np.float32)
    np.savez(folder / "evaluation.npz", **samples)
    return [
        "build", str(scaled(folder / "model.onnx")),
        "-p", str(write_profile(folder, "onnxruntime", "openvino")),
        "--evaluation", str(folder / "evaluation.npz"), "--cache", str(folder / "cache"),
        "-o", str(folder / "package"), "--metric", "mae", "--min-retention", "0.9", *QUICK, *more,
    ]  # fmt: skip


def answers(package: Path, manifest: Manifest, inputs: Tensors) -> dict[str, Any]:
    """Return what each variant answers."""
    found = {}
    for variant in manifest.variants:
        session = open_session(package / variant.directory, variant.info, Limits())
        found[variant.name] = np.array(session.infer(inputs)["y"])
        session.close()
    return found


@pytest.mark.thorough
def test_a_default_becomes_a_constant_of_all_variants_and_the_manifest_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = built(capsys, command(tmp_path, *HALF, gains=False))
    manifest = proven(tmp_path / "package", min_retention=0.9)
    line = (
        "input 'gain' FP32 [1] is its default, a constant, because no samples carry it: "
        "applications cannot send it"
    )
    assert manifest.metadata["interface"] == [line]
    assert line in result["notes"]
    assert {spec.name for v in manifest.variants for spec in v.info.inputs} == {"x"}
    ones = np.ones((1, FEATURES), np.float32)
    for name, answer in answers(tmp_path / "package", manifest, {"x": ones}).items():
        assert np.abs(answer).max() <= GAIN + 1e-3, name


@pytest.mark.thorough
def test_a_default_that_the_samples_carry_is_an_input_of_all_variants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built(capsys, command(tmp_path, *HALF, gains=True))
    manifest = proven(tmp_path / "package", min_retention=0.9)
    assert "applications must send it" in manifest.metadata["interface"][0]
    assert {spec.name for v in manifest.variants for spec in v.info.inputs} == {"x", "gain"}
    x = np.ones((1, FEATURES), np.float32)
    one, two = (
        answers(tmp_path / "package", manifest, {"x": x, "gain": np.array([gain], np.float32)})
        for gain in (1.0, 2.0)
    )
    for name, answer in one.items():
        # Sums of int8 that may saturate, where the build keeps them, are not twice as large.
        atol = 0.3 if "reduced" in name else 1e-3
        assert np.allclose(2 * answer, two[name], atol=atol), name


def test_the_plan_says_what_becomes_of_a_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for gains, text in ((False, "applications cannot send it"), (True, "must send it")):
        plan = built(capsys, command(tmp_path, "--dry-run", gains=gains))
        assert len(plan["interface"]) == 1
        assert text in plan["interface"][0]


def test_a_set_that_lacks_a_default_that_another_set_carries_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(tmp_path, gains=True)
    x = np.random.default_rng(3).normal(0, 1, (64, FEATURES)).astype(np.float32)
    np.savez(tmp_path / "calibration.npz", x=x)
    arguments += ["--calibration", str(tmp_path / "calibration.npz")]
    assert "calibration.npz has no array 'gain'" in refused(capsys, arguments)


def test_a_typed_optional_input_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(tmp_path, gains=False)
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, FEATURES])
    graph = helper.make_graph(
        [helper.make_node("OptionalGetElement", ["x"], ["y"])],
        "optional",
        [helper.make_value_info("x", helper.make_optional_type_proto(kind))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, FEATURES])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    line = refused(capsys, arguments)
    assert "input 'x' is optional" in line
    assert "export the model with that tensor always there, or without it" in line
