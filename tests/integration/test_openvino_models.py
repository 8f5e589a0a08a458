"""OpenVINO's converter and NNCF on real models: what they write runs, agrees, is repeatable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from packager.errors import StepError
from packager.runtimes.openvino import models
from runtime_adapters.protocol import Limits, Tensors
from runtime_adapters.registry import open_session
from tests.models import DIGITS, ROOT, digits_data, trained
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

IMAGE = TensorSpec(name="input", datatype="FP32", shape=(-1, 1, 8, 8))
INT8: dict[str, Any] = {
    "preset": "mixed",
    "bias_correction": "none",
    "range": "minmax",
    "overflow_fix": "disable",
    "transformer": False,
    "samples": 64,
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensors]:
    return digits_data(tmp_path_factory.mktemp("digits"))


def run(path: Path, inputs: Tensors, specs: tuple[TensorSpec, TensorSpec]) -> NDArray[Any]:
    info = VariantInfo(
        runtime="openvino",
        precision="test",
        model_file=path.name,
        inputs=specs[:1],
        outputs=specs[1:],
        size_bytes=path.stat().st_size,
    )
    session = open_session(path.parent, info, Limits())
    assert not session.describe().fallback
    outputs = session.infer(inputs)
    session.close()
    return outputs[specs[1].name]


def scores_of(path: Path, digits: dict[str, Tensors]) -> NDArray[Any]:
    name = onnx.load(DIGITS).graph.output[0].name
    specs = (IMAGE, TensorSpec(name=name, datatype="FP32", shape=(-1, 10)))
    return run(path, {"input": digits["evaluation"]["input"]}, specs)


def accuracy(path: Path, digits: dict[str, Tensors]) -> float:
    scores = scores_of(path, digits)
    return float(np.mean(scores.argmax(1) == digits["evaluation"]["label"]))


def size(path: Path) -> int:
    return path.stat().st_size + path.with_suffix(".bin").stat().st_size


def content(path: Path) -> tuple[bytes, bytes]:
    return path.read_bytes(), path.with_suffix(".bin").read_bytes()


def matrices(path: Path) -> Path:
    rng = np.random.default_rng(7)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "b"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 64])],
        [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
            for name, shape in (("a", (128, 256)), ("b", (256, 64)))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def test_half_precision_weights_halve_the_file(digits: dict[str, Tensors], tmp_path: Path) -> None:
    source = DIGITS
    models.convert(source, tmp_path / "m.xml")
    assert size(tmp_path / "m.xml") < 0.6 * source.stat().st_size
    assert accuracy(tmp_path / "m.xml", digits) > 0.98
    assert b"digits.onnx" not in (tmp_path / "m.xml").read_bytes()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"bias_correction": "fast", "range": "mean"},
        {"bias_correction": "full", "preset": "performance"},
        {"overflow_fix": "enable"},
        {"transformer": True},
    ],
    ids=str,
)
def test_int8_keeps_the_accuracy_in_less_than_half_the_size(
    more: dict[str, Any], digits: dict[str, Tensors], tmp_path: Path
) -> None:
    source = DIGITS
    inputs = {"input": digits["calibration"]["input"]}
    models.quantize(source, inputs, INT8 | more, tmp_path / "model.xml")
    assert size(tmp_path / "model.xml") < 0.4 * source.stat().st_size
    assert accuracy(tmp_path / "model.xml", digits) > 0.98
    assert str(tmp_path).encode() not in (tmp_path / "model.xml").read_bytes()


@pytest.mark.few(1)
@pytest.mark.parametrize("correction", ["none", "full"])
def test_equal_bytes_in_another_process_and_folder(
    correction: str, digits: dict[str, Tensors], tmp_path: Path
) -> None:
    options = INT8 | {"bias_correction": correction, "samples": 16}
    code = (
        "import sys, numpy as np; from pathlib import Path; "
        "from packager.runtimes.openvino.models import quantize; "
        "quantize(Path(sys.argv[1]), {'input': np.load(sys.argv[2])}, "
        f"{options!r}, Path(sys.argv[3]))"
    )
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    x = digits["calibration"]["input"][:16]
    np.save(tmp_path / "x.npy", x)
    source, ours, theirs = (
        DIGITS, tmp_path / "here" / "m.xml", tmp_path / "there" / "m.xml",
    )  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", code, source, tmp_path / "x.npy", theirs],
        check=True, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "1"}, capture_output=True,
    )  # fmt: skip
    models.quantize(source, {"input": x}, options, ours)
    assert content(ours) == content(theirs)


def test_accuracy_control_stays_within_the_drop_on_its_own_samples(
    digits: dict[str, Tensors], tmp_path: Path
) -> None:
    half = {name: array[:120] for name, array in digits["evaluation"].items()}

    def quality(answers: Tensors, indices: list[int]) -> float:
        scores = next(iter(answers.values()))
        return float(np.mean(scores.argmax(1) == half["label"][indices]))

    found = models.quantize_with_accuracy_control(
        DIGITS,
        {"input": digits["calibration"]["input"]},
        {"input": half["input"]},
        quality,
        INT8 | {"max_drop": 0.01, "iterations": 4, "ranking": 32},
        tmp_path / "m.xml",
    )
    assert found.evaluations >= 2
    assert found.quality_after >= 0.99 * found.quality_before > 0.9
    assert accuracy(tmp_path / "m.xml", digits) > 0.98


def test_accuracy_control_puts_layers_back_that_cost_too_much(
    digits: dict[str, Tensors], tmp_path: Path
) -> None:
    inputs = {"input": digits["calibration"]["input"][:64]}
    models.convert(DIGITS, tmp_path / "float.xml")
    ideal = scores_of(tmp_path / "float.xml", digits)[:64]
    tuning = {"input": digits["evaluation"]["input"][:64]}

    def closeness(answers: Tensors, indices: list[int]) -> float:
        error = next(iter(answers.values())) - ideal[indices]
        return 1.0 - float(np.sum(error**2) / np.sum(ideal[indices] ** 2))

    models.quantize(DIGITS, inputs, INT8, tmp_path / "plain.xml")
    found = models.quantize_with_accuracy_control(
        DIGITS, inputs, tuning, closeness,
        INT8 | {"max_drop": 1e-6, "iterations": 2, "ranking": 8}, tmp_path / "m.xml",
    )  # fmt: skip
    assert found.quality_after < 1.0
    weights = [(tmp_path / f"{name}.bin").stat().st_size for name in ("m", "plain")]
    assert weights[0] > weights[1]
    rounded = scores_of(tmp_path / "plain.xml", digits)[:64]
    kept = scores_of(tmp_path / "m.xml", digits)[:64]
    assert np.sum((kept - ideal) ** 2) < np.sum((rounded - ideal) ** 2)


@pytest.mark.parametrize(("mode", "share"), [("int8_asym", 0.3), ("int4_sym", 0.18)])
def test_weights_are_stored_in_few_bits(mode: str, share: float, tmp_path: Path) -> None:
    source = matrices(tmp_path / "mlp.onnx")
    models.compress_weights(source, {"mode": mode, "group_size": 32}, tmp_path / "m.xml")
    weights = (tmp_path / "m.bin").stat().st_size
    assert weights < share * source.stat().st_size
    specs = (
        TensorSpec(name="x", datatype="FP32", shape=(-1, 128)),
        TensorSpec(name="y", datatype="FP32", shape=(-1, 64)),
    )
    x = {"x": np.random.default_rng(1).normal(size=(4, 128)).astype(np.float32)}
    models.convert(source, tmp_path / "float.xml")
    ideal = run(tmp_path / "float.xml", x, specs)
    error = run(tmp_path / "m.xml", x, specs) - ideal
    assert 0.0 < np.sqrt(np.mean(error**2)) < 0.3 * np.sqrt(np.mean(ideal**2))


def test_a_tool_that_would_change_nothing_is_a_fault(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Erf", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = tmp_path / "erf.onnx"
    source.write_bytes(model.SerializeToString())
    with pytest.raises(StepError, match="no operator to quantize"):
        models.quantize(source, {"x": np.ones((8, 4), np.float32)}, INT8, tmp_path / "m.xml")
    for mode in ("int8_asym", "int4_sym"):
        with pytest.raises(StepError, match="no MatMul to quantize to"):
            models.compress_weights(source, {"mode": mode, "group_size": 32}, tmp_path / "m.xml")
    assert not (tmp_path / "m.xml").exists()


def test_what_openvino_does_not_take_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes((DIGITS).read_bytes()[:-5000])
    with pytest.raises(StepError, match=r"^openvino's converter failed: ") as fault:
        models.convert(broken, tmp_path / "m.xml")
    assert "\n" not in str(fault.value)
    options = INT8 | {"bias_correction": "some"}
    with pytest.raises(StepError, match="'some' is not known"):
        models.quantize(DIGITS, {"input": np.ones((8, 1, 8, 8))}, options, broken)


def test_operators_that_openvino_cannot_convert_are_named(tmp_path: Path) -> None:
    scaler = helper.make_node(
        "Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0]
    )
    graph = helper.make_graph(
        [scaler],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 4])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(StepError, match=r"cannot convert the operators ai\.onnx\.ml\.Scaler$"):
        models.convert(tmp_path / "m.onnx", tmp_path / "m.xml")


def test_a_tflite_model_is_converted_under_its_declared_names(tmp_path: Path) -> None:
    source = trained("mlperf_tiny/ic_resnet8_fp32.tflite")
    names = {"input_1": "image", "Identity": "scores"}
    specs = (
        TensorSpec(name="image", datatype="FP32", shape=(-1, 32, 32, 3)),
        TensorSpec(name="scores", datatype="FP32", shape=(-1, 10)),
    )
    x = np.random.default_rng(3).uniform(0, 255, size=(32, 32, 32, 3)).astype(np.float32)
    models.convert(source, tmp_path / "m.xml", names=names)
    ideal = run(tmp_path / "m.xml", {"image": x}, specs)
    assert ideal.shape == (32, 10)
    np.testing.assert_allclose(ideal.sum(1), 1.0, atol=1e-3)
    models.quantize(source, {"image": x}, INT8, tmp_path / "q.xml", names=names)
    found = run(tmp_path / "q.xml", {"image": x}, specs)
    assert size(tmp_path / "q.xml") < size(tmp_path / "m.xml")
    assert np.mean(found.argmax(1) == ideal.argmax(1)) > 0.9
