"""Real models through onnx2tf, AI Edge Quantizer and LiteRT; skips where onnx2tf is not set up."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from examples.digits.data import Splits, load_splits
from packager.errors import StepError
from packager.runtimes.litert import (
    models as litert_models,
)
from packager.runtimes.litert import (
    parity as litert_parity,
)
from packager.runtimes.litert import (
    quantize as litert_quantize,
)
from packager.sources import tflite
from packager.tools import environments
from runtime_adapters.litert.adapter import ADAPTER
from runtime_adapters.protocol import Limits, Tensors
from tests.models import DIGITS, cifar_images, trained
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo


@pytest.fixture(scope="module")
def python() -> Path:
    found = environments.environment_python("onnx2tf", environments.default_root())
    if found is None:
        pytest.skip(f"onnx2tf is not set up in {environments.default_root()}")
    return found


@pytest.fixture(scope="module")
def digits() -> Splits:
    """Return the demo's splits."""
    return load_splits()


@pytest.fixture(scope="module")
def converted(python: Path, digits: Splits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the digits model in LiteRT's format."""
    target = tmp_path_factory.mktemp("litert") / "digits.tflite"
    litert_models.convert(DIGITS, target, python=python)
    return target


def session_answers(path: Path, inputs: Tensors, output: str) -> np.ndarray[Any, Any]:
    """Run a whole batch on a model that takes one sample."""
    facts = tflite.read(path)
    info = VariantInfo(
        runtime="litert",
        precision="any",
        model_file=path.name,
        inputs=tuple(batched(spec) for spec in facts.inputs),
        outputs=tuple(batched(spec) for spec in facts.outputs),
        size_bytes=1,
    )
    session = ADAPTER.load(path.parent, info, Limits())
    try:
        return session.infer(inputs)[output]
    finally:
        session.close()


def batched(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(name=spec.name, datatype=spec.datatype, shape=(-1, *spec.shape[1:]))


def accuracy(path: Path, digits: Splits) -> float:
    scores = session_answers(path, {"input": digits.evaluation.images}, "logits")
    return float(np.mean(scores.argmax(axis=-1) == digits.evaluation.labels))


def test_the_digits_model_stays_the_same(converted: Path, digits: Splits) -> None:
    error = litert_parity.check_parity(
        DIGITS, converted, {"input": digits.calibration.images}, count=32
    )
    assert error < 1e-5
    assert accuracy(converted, digits) > 0.98
    found = tflite.read(converted)
    assert found.inputs == (TensorSpec(name="input", datatype="FP32", shape=(1, 1, 8, 8)),)
    assert found.outputs == (TensorSpec(name="logits", datatype="FP32", shape=(1, 10)),)
    assert found.custom == ()


def test_a_conversion_only_reads_its_source_and_repeats_itself(
    python: Path, converted: Path, tmp_path: Path
) -> None:
    source = tmp_path / "other name.onnx"
    source.write_bytes((DIGITS).read_bytes())
    before = hashlib.sha256(source.read_bytes()).hexdigest()
    litert_models.convert(source, tmp_path / "again.tflite", python=python)
    assert hashlib.sha256(source.read_bytes()).hexdigest() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.tflite", "other name.onnx"]
    content = (tmp_path / "again.tflite").read_bytes()
    assert content == converted.read_bytes()
    assert b"reduced_precision_support" not in content


def picture_model(names: tuple[str, str], outputs: tuple[str, str]) -> onnx.ModelProto:
    """Return a model from a picture and a vector to a picture and a vector, batch open."""
    chance = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((chance.standard_normal(shape) * 0.2).astype("f4"), name)

    picture, vector = names
    nodes = [
        helper.make_node("Conv", [picture, "w1", "b1"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("ConvTranspose", ["s", "w2"], ["t"], strides=[2, 2]),
        helper.make_node("Concat", ["t", picture], ["cc"], axis=1),
        helper.make_node("Conv", ["cc", "w3"], [outputs[0]], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w4"], ["p"]),
        helper.make_node("Add", ["p", vector], [outputs[1]]),
    ]
    graph = helper.make_graph(
        nodes,
        "pictures",
        [
            helper.make_tensor_value_info(picture, TensorProto.FLOAT, ("n", 3, 8, 8)),
            helper.make_tensor_value_info(vector, TensorProto.FLOAT, ("n", 5)),
        ],
        [
            # As many channels as rows and columns, so that its shape does not tell a wrong layout.
            helper.make_tensor_value_info(outputs[0], TensorProto.FLOAT, ("n", 8, 8, 8)),
            helper.make_tensor_value_info(outputs[1], TensorProto.FLOAT, ("n", 5)),
        ],
        [
            weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 4, 2, 2),
            weight("w3", 8, 7, 3, 3), weight("w4", 8, 5),
        ],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(
    ("names", "outputs"),
    [
        (("picture", "vector"), ("mask", "scores")),
        (("serving_default_x:0", "/in.1"), ("a/b/Sigmoid:0", "--scores")),
    ],
)
def test_pictures_keep_their_layout_and_tensors_their_names(
    python: Path, tmp_path: Path, names: tuple[str, str], outputs: tuple[str, str]
) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "m.tflite"
    onnx.save(picture_model(names, outputs), str(source))
    litert_models.convert(source, target, python=python)
    found = tflite.read(target)
    assert {spec.name: spec.shape for spec in (*found.inputs, *found.outputs)} == {
        names[0]: (1, 3, 8, 8),
        names[1]: (1, 5),
        outputs[0]: (1, 8, 8, 8),
        outputs[1]: (1, 5),
    }
    chance = np.random.default_rng(1)
    samples = {
        names[0]: chance.standard_normal((8, 3, 8, 8)).astype("f4"),
        names[1]: chance.standard_normal((8, 5)).astype("f4"),
    }
    assert litert_parity.check_parity(source, target, samples) < 1e-5


def test_another_model_fails_the_parity_check(
    converted: Path, digits: Splits, tmp_path: Path
) -> None:
    model = onnx.load(str(DIGITS))
    weight = next(t for t in model.graph.initializer if len(t.dims) == 4)
    values = numpy_helper.to_array(weight).copy()
    values.flat[0] += 0.1 * np.abs(values).max()
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, str(tmp_path / "other.onnx"))
    with pytest.raises(StepError, match="gives other answers"):
        litert_parity.check_parity(
            tmp_path / "other.onnx", converted, {"input": digits.calibration.images}
        )


def test_sizes_that_vary_beside_the_batch_are_refused(python: Path, tmp_path: Path) -> None:
    model = picture_model(("picture", "vector"), ("mask", "scores"))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(StepError, match="varies in more than its batch"):
        litert_models.convert(tmp_path / "m.onnx", tmp_path / "m.tflite", python=python)


def test_an_operator_that_litert_lacks_is_refused(python: Path, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("DFT", ["x"], ["y"])],
        "spectrum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 1))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 2))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(StepError, match="has operators that LiteRT does not have: ONNX_DFT"):
        litert_models.convert(tmp_path / "m.onnx", tmp_path / "m.tflite", python=python)


def test_a_type_that_would_change_is_refused(python: Path, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "whole",
        [helper.make_tensor_value_info("x", TensorProto.INT64, (1, 8))],
        [helper.make_tensor_value_info("y", TensorProto.INT64, (1, 8))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(
        StepError, match=r"made output 'y' INT32 \[1, 8\], in the model it is INT64"
    ):
        litert_models.convert(tmp_path / "m.onnx", tmp_path / "m.tflite", python=python)


def test_an_environment_that_is_gone_is_said(tmp_path: Path) -> None:
    onnx.save(picture_model(("picture", "vector"), ("mask", "scores")), str(tmp_path / "m.onnx"))
    with pytest.raises(StepError, match="onnx2tf cannot be started"):
        litert_models.convert(
            tmp_path / "m.onnx", tmp_path / "m.tflite", python=tmp_path / "no" / "python"
        )


def quantized(converted: Path, digits: Splits, scheme: str, target: Path, **options: Any) -> Path:
    litert_quantize.quantize(
        converted,
        {"input": digits.calibration.images},
        {"scheme": scheme, "samples": 128, **options},
        target,
    )
    return target


SHARES = {
    "static-int8": 0.3,
    "dynamic-int8": 0.3,
    "weights-int8": 0.3,
    "dynamic-int4": 0.16,
    "weights-int4": 0.16,
    "fp16": 0.52,
}


@pytest.mark.few(3)
@pytest.mark.parametrize("scheme", litert_quantize.SCHEMES)
def test_a_scheme_saves_what_it_promises_and_keeps_the_answers(
    converted: Path, digits: Splits, scheme: str, tmp_path: Path
) -> None:
    target = quantized(converted, digits, scheme, tmp_path / "one.tflite")
    assert target.stat().st_size < SHARES[scheme] * converted.stat().st_size
    before, after = tflite.read(converted), tflite.read(target)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert after.quantized is (scheme != "fp16")
    assert accuracy(target, digits) > accuracy(converted, digits) - 0.02
    again = quantized(converted, digits, scheme, tmp_path / "two.tflite")
    assert again.read_bytes() == target.read_bytes()
    assert str(tmp_path).encode() not in target.read_bytes()


def test_a_layer_can_be_kept_in_float(converted: Path, digits: Splits, tmp_path: Path) -> None:
    names = litert_quantize.layers(converted)
    assert len(names) == len(set(names)) == 8
    sizes = [
        quantized(converted, digits, "static-int8", tmp_path / "m.tflite", keep=keep).stat().st_size
        for keep in ((), names[:1], names[:4])
    ]
    assert sizes == sorted(set(sizes))
    assert accuracy(tmp_path / "m.tflite", digits) > 0.98
    with pytest.raises(StepError, match="nothing to quantize"):
        quantized(converted, digits, "weights-int8", tmp_path / "m.tflite", keep=names)


def test_wrong_options_and_missing_samples_are_said(converted: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.tflite"
    with pytest.raises(StepError, match="no scheme 'int3'"):
        litert_quantize.quantize(converted, {}, {"scheme": "int3"}, target)
    with pytest.raises(StepError, match="no calibration data for input 'input'"):
        litert_quantize.quantize(converted, {}, {"scheme": "static-int8", "samples": 8}, target)


@pytest.mark.parametrize("name", ["cifar_resnet20", "cifar_resnet20_dyn"])
def test_a_residual_network_is_converted_and_quantized(
    python: Path, tmp_path: Path, name: str
) -> None:
    source = trained(f"cifar10/{name}.onnx")
    images = {"input": cifar_images("calib512", 256).x}
    target, small = tmp_path / "m.tflite", tmp_path / "s.tflite"
    litert_models.convert(source, target, python=python)
    assert litert_parity.check_parity(source, target, images) < 1e-5
    litert_quantize.quantize(target, images, {"scheme": "static-int8", "samples": 64}, small)
    answers = [session_answers(path, images, "logits").argmax(-1) for path in (target, small)]
    assert np.mean(answers[0] == answers[1]) > 0.95
    assert small.stat().st_size < 0.3 * target.stat().st_size


def test_a_given_model_is_quantized_as_it_is(tmp_path: Path) -> None:
    source = trained("mlperf_tiny/ic_resnet8_fp32.tflite")
    images = np.random.default_rng(0).uniform(0, 255, (16, 32, 32, 3)).astype("f4")
    target = tmp_path / "m.tflite"
    options = {"scheme": "static-int8", "samples": 16}
    litert_quantize.quantize(source, {"input_1": images}, options, target)
    before, after = tflite.read(source), tflite.read(target)
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert target.stat().st_size < 0.4 * source.stat().st_size
