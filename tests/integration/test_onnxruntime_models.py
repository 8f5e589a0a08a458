"""ONNX Runtime's tools on real models: what they write runs, agrees, and is the same each time."""

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
from packager.runtimes.common.onnx_files import session_of
from packager.runtimes.onnxruntime import models, qdq
from packager.runtimes.onnxruntime.offline_graphs import layout_class, optimize_offline
from runtime_adapters.processor import cpu_flags
from runtime_adapters.protocol import Tensors
from tests.models import DIGITS, ROOT, SATURATES, cifar_images, digits_data, trained

STATIC: dict[str, Any] = {"activations": "uint8", "reduce_range": SATURATES, "samples": 64}
INT4: dict[str, Any] = {"block_size": 32, "symmetric": True, "accuracy_level": 4}
DYNAMIC: dict[str, Any] = {"weights": "int8", "reduce_range": True, "operators": ["MatMul"]}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensors]:
    return digits_data(tmp_path_factory.mktemp("digits"))


def samples(digits: dict[str, Tensors]) -> Tensors:
    return {"input": digits["calibration"]["input"]}


def answers(path: Path, inputs: Tensors) -> NDArray[Any]:
    found: NDArray[Any] = session_of(path).run(None, inputs)[0]
    return found


def accuracy(path: Path, digits: dict[str, Tensors]) -> float:
    data = digits["evaluation"]
    return float(np.mean(answers(path, {"input": data["input"]}).argmax(1) == data["label"]))


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def write(path: Path, nodes: list[Any], weights: dict[str, NDArray[Any]], width: int) -> Path:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid(*o) for o in (("", 17), ("com.microsoft", 1), ("ai.onnx.ml", 3))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"method": "entropy"},
        {"method": "percentile", "percentile": 99.99},
        {"activations": "int8"},
        {"reduce_range": True},
    ],
    ids=str,
)
def test_static_int8_keeps_the_accuracy_in_a_quarter_of_the_size(
    more: dict[str, Any], digits: dict[str, Tensors], tmp_path: Path
) -> None:
    source = DIGITS
    models.quantize_static(source, samples(digits), STATIC | more, tmp_path / "a.onnx")
    models.quantize_static(source, samples(digits), STATIC | more, tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert (tmp_path / "a.onnx").stat().st_size < source.stat().st_size / 3
    assert accuracy(tmp_path / "a.onnx", digits) >= 0.99 * accuracy(source, digits)
    opsets = {opset.domain for opset in onnx.load(tmp_path / "a.onnx").opset_import}
    assert opsets <= {"", "ai.onnx"}


def test_equal_bytes_in_another_process_and_folder(
    digits: dict[str, Tensors], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", digits["calibration"]["input"])
    code = (
        "import sys, numpy as np; from pathlib import Path; "
        "from packager.runtimes.onnxruntime.models import quantize_static; "
        "quantize_static(Path(sys.argv[1]), {'input': np.load(sys.argv[2])}, "
        f"{STATIC!r}, Path(sys.argv[3]))"
    )
    source, ours, theirs = DIGITS, tmp_path / "m.onnx", tmp_path / "b" / "m.onnx"
    theirs.parent.mkdir()
    subprocess.run(
        [sys.executable, "-c", code, source, tmp_path / "x.npy", theirs],
        check=True, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "1"},
    )  # fmt: skip
    models.quantize_static(source, samples(digits), STATIC, ours)
    assert ours.read_bytes() == theirs.read_bytes()
    assert str(tmp_path).encode() not in ours.read_bytes()


def test_an_excluded_node_stays_in_float_and_an_unknown_one_is_refused(
    digits: dict[str, Tensors], tmp_path: Path
) -> None:
    source, target = DIGITS, tmp_path / "m.onnx"
    names = [n.name for n in qdq.prepare(source).graph.node if n.op_type == "Conv"]
    models.quantize_static(source, samples(digits), STATIC | {"exclude": names[:2]}, target)
    model = onnx.load(target)
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    fed = {n.name: made.get(n.input[1]) for n in model.graph.node if n.op_type == "Conv"}
    assert fed == dict.fromkeys(names[:2]) | dict.fromkeys(names[2:], "DequantizeLinear")
    with pytest.raises(StepError, match="no node 'elsewhere' to leave in float"):
        models.quantize_static(source, samples(digits), STATIC | {"exclude": ["elsewhere"]}, target)


def test_stale_shapes_and_nameless_nodes_do_no_harm(
    digits: dict[str, Tensors], tmp_path: Path
) -> None:
    model = onnx.load(DIGITS)
    stale = model.graph.node[0].output[0]
    model.graph.value_info.append(
        helper.make_tensor_value_info(stale, TensorProto.FLOAT, [1, 256, 3, 3])
    )
    for node in model.graph.node:
        node.name = ""
    (tmp_path / "stale.onnx").write_bytes(model.SerializeToString())
    names = [node.name for node in qdq.prepare(tmp_path / "stale.onnx").graph.node]
    assert len(set(names)) == len(names)
    assert "Conv_0" in names
    models.quantize_static(
        tmp_path / "stale.onnx", samples(digits), STATIC | {"exclude": ["Conv_0"]},
        tmp_path / "m.onnx",
    )  # fmt: skip
    assert accuracy(tmp_path / "m.onnx", digits) > 0.97
    models.quantize_dynamic(
        tmp_path / "stale.onnx", DYNAMIC | {"operators": ["Conv", "MatMul"]}, tmp_path / "d.onnx"
    )
    assert accuracy(tmp_path / "d.onnx", digits) > 0.97


def test_what_lies_behind_operators_of_onnxruntime_itself_is_quantized(tmp_path: Path) -> None:
    source = write(
        tmp_path / "gelu.onnx",
        [
            helper.make_node("MatMul", ["x", "a"], ["h"]),
            helper.make_node("Gelu", ["h"], ["g"], domain="com.microsoft"),
            helper.make_node("MatMul", ["g", "b"], ["y"]),
        ],
        {"a": normal(16, 64), "b": normal(64, 8)},
        16,
    )
    x = normal(32, 16)
    models.quantize_static(source, {"x": x}, STATIC, tmp_path / "m.onnx")
    weights = {t.name: t.data_type for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert [weights[f"{name}_quantized"] for name in "ab"] == [TensorProto.INT8] * 2
    expected = answers(source, {"x": x})
    error = answers(tmp_path / "m.onnx", {"x": x}) - expected
    assert np.abs(error).max() < 0.05 * np.abs(expected).max()


def test_a_model_with_classical_operators_is_quantized_around_them(tmp_path: Path) -> None:
    scaler = helper.make_node(
        "Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.5] * 16, scale=[2.0] * 16
    )
    source = write(
        tmp_path / "scaler.onnx",
        [scaler, helper.make_node("MatMul", ["s", "a"], ["y"])],
        {"a": normal(16, 64)},
        16,
    )
    models.quantize_static(source, {"x": normal(32, 16)}, STATIC, tmp_path / "m.onnx")
    assert operators(tmp_path / "m.onnx").count("Scaler") == 1
    assert {o.domain for o in onnx.load(tmp_path / "m.onnx").opset_import} == {"", "ai.onnx.ml"}
    models.to_fp16(source, {}, tmp_path / "h.onnx")
    assert "ai.onnx.ml" in {n.domain for n in onnx.load(tmp_path / "h.onnx").graph.node}


@pytest.mark.parametrize("shape", [(1, 6), (1, 1), (1,), (), (6,)])
def test_a_product_is_quantized_whatever_the_shape_of_its_bias(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    product = helper.make_node("Gemm", ["x", "a", "b"], ["y"])
    bias = np.reshape(normal(6)[: int(np.prod(shape))], shape)
    source = write(tmp_path / "gemm.onnx", [product], {"a": normal(16, 6), "b": bias}, 16)
    x = normal(64, 16)
    models.quantize_static(source, {"x": x}, STATIC, tmp_path / "m.onnx")
    error = answers(tmp_path / "m.onnx", {"x": x}) - answers(source, {"x": x})
    assert np.abs(error).max() < 0.3
    assert "QuantizeLinear" in operators(tmp_path / "m.onnx")


def test_a_tensor_that_is_infinite_stays_in_float(tmp_path: Path) -> None:
    source = write(
        tmp_path / "mask.onnx",
        [
            helper.make_node("MatMul", ["x", "a"], ["h"]),
            helper.make_node("Add", ["h", "mask"], ["masked"]),
            helper.make_node("Softmax", ["masked"], ["p"]),
            helper.make_node("MatMul", ["p", "b"], ["y"]),
        ],
        {
            "a": normal(16, 8),
            "mask": np.array([0, 0, 0, 0, 0, 0, -np.inf, -np.inf], np.float32),
            "b": normal(8, 4),
        },
        16,
    )
    x = normal(32, 16)
    for method in ("minmax", "percentile"):
        models.quantize_static(source, {"x": x}, STATIC | {"method": method}, tmp_path / "m.onnx")
        error = answers(tmp_path / "m.onnx", {"x": x}) - answers(source, {"x": x})
        assert np.abs(error).max() < 0.1
        assert "QuantizeLinear" in operators(tmp_path / "m.onnx")


def test_half_precision_halves_the_file_and_keeps_its_inputs_and_outputs(
    digits: dict[str, Tensors], tmp_path: Path
) -> None:
    source, target = DIGITS, tmp_path / "h.onnx"
    models.to_fp16(source, {"blocked": ["Gemm"]}, target)
    model = onnx.load(target)
    onnx.checker.check_model(model)
    types = [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]
    assert types == [TensorProto.FLOAT] * 2
    weights = {t.name: t.data_type for t in model.graph.initializer}
    gemm = next(node for node in model.graph.node if node.op_type == "Gemm")
    assert weights[gemm.input[1]] == TensorProto.FLOAT
    assert target.stat().st_size < source.stat().st_size * 0.55
    x = {"input": digits["evaluation"]["input"]}
    assert np.abs(answers(target, x) - answers(source, x)).max() < 0.05
    assert accuracy(target, digits) == pytest.approx(accuracy(source, digits), abs=0.005)


def test_int4_weights_where_there_are_matrix_products(tmp_path: Path) -> None:
    source = write(
        tmp_path / "mlp.onnx",
        [
            helper.make_node("Gemm", ["x", "a", "c"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "b"], ["y"]),
        ],
        {"a": normal(256, 128), "c": normal(256), "b": normal(256, 64)},
        128,
    )
    models.quantize_weights_int4(source, INT4, tmp_path / "m.onnx")
    assert operators(tmp_path / "m.onnx").count("MatMulNBits") == 2
    assert (tmp_path / "m.onnx").stat().st_size < source.stat().st_size / 5
    x = {"x": normal(8, 128)}
    expected = answers(source, x)
    error = answers(tmp_path / "m.onnx", x) - expected
    assert 0.0 < np.sqrt(np.mean(error**2)) < 0.25 * np.sqrt(np.mean(expected**2))
    models.quantize_dynamic(source, DYNAMIC, tmp_path / "d.onnx")
    assert (tmp_path / "d.onnx").stat().st_size < source.stat().st_size / 3
    error = answers(tmp_path / "d.onnx", x) - expected
    assert np.sqrt(np.mean(error**2)) < 0.05 * np.sqrt(np.mean(expected**2))


def test_a_tool_that_would_change_nothing_is_a_fault(tmp_path: Path) -> None:
    weight = {"w": normal(8, 1, 3, 3)}
    image = [
        helper.make_node("Reshape", ["x", "shape"], ["i"]),
        helper.make_node("Conv", ["i", "w"], ["y"]),
    ]
    conv = write(tmp_path / "conv.onnx", image, weight | {"shape": np.array([-1, 1, 4, 4])}, 16)
    target = tmp_path / "m.onnx"
    with pytest.raises(StepError, match="the model has no MatMul to quantize"):
        models.quantize_weights_int4(conv, INT4, target)
    with pytest.raises(StepError, match="no operator to quantize dynamically"):
        models.quantize_dynamic(conv, DYNAMIC, target)
    plain = write(tmp_path / "plain.onnx", [helper.make_node("Erf", ["x"], ["y"])], {}, 4)
    with pytest.raises(StepError, match="the model has no operator to quantize"):
        models.quantize_static(plain, {"x": normal(8, 4)}, STATIC, target)
    with pytest.raises(StepError, match="no float32 weights"):
        models.to_fp16(plain, {}, target)
    assert not target.exists()


def test_int4_of_a_classifier_behind_convolutions_is_not_worth_a_file(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="of the model's size"):
        models.quantize_weights_int4(DIGITS, INT4, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("more", "text"),
    [({"method": "luck"}, "'luck' is not known"), ({"samples": 0}, "0 calibration samples")],
)
def test_an_impossible_option_is_refused(
    more: dict[str, Any], text: str, digits: dict[str, Tensors], tmp_path: Path
) -> None:
    with pytest.raises(StepError, match=text):
        models.quantize_static(DIGITS, samples(digits), STATIC | more, tmp_path / "m.onnx")


def test_a_model_that_onnxruntime_refuses_is_one_line(tmp_path: Path) -> None:
    broken = write(tmp_path / "b.onnx", [helper.make_node("Nowhere", ["x"], ["y"])], {}, 4)
    with pytest.raises(StepError, match=r"^onnxruntime's pre-processing failed: ") as fault:
        models.to_fp16(broken, {}, tmp_path / "m.onnx")
    assert "\n" not in str(fault.value)


def test_an_optimised_graph_answers_as_before_and_is_the_same_each_time(
    digits: dict[str, Tensors], tmp_path: Path
) -> None:
    architecture = os.uname().machine
    if layout_class(architecture, cpu_flags()) is None:
        pytest.skip(f"no class is known for {architecture}")
    source = DIGITS
    for name in ("a", "b"):
        optimize_offline(
            source, tmp_path / f"{name}.onnx",
            architecture=architecture, isa_features=cpu_flags(),
        )  # fmt: skip
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert "com.microsoft.nchwc" in {n.domain for n in onnx.load(tmp_path / "a.onnx").graph.node}
    x = {"input": digits["evaluation"]["input"]}
    np.testing.assert_array_equal(answers(tmp_path / "a.onnx", x), answers(source, x))


def test_an_optimised_graph_is_never_made_for_another_class_of_processor(tmp_path: Path) -> None:
    ours = cpu_flags()
    others = [
        ("x86_64", ours - {"avx512f"} if "avx512f" in ours else ours | {"avx512f"}),
        ("aarch64", {"asimd"}),
        ("riscv64", set()),
    ]
    for architecture, features in others:
        with pytest.raises(StepError, match="cannot be made on"):
            optimize_offline(
                DIGITS, tmp_path / "m.onnx",
                architecture=architecture, isa_features=features,
            )  # fmt: skip
    assert not (tmp_path / "m.onnx").exists()


def test_a_residual_network_keeps_its_answers_in_int8(tmp_path: Path) -> None:
    source, target = trained("cifar10/cifar_resnet20.onnx"), tmp_path / "m.onnx"
    x = cifar_images("calib512", 160).x
    models.quantize_static(source, {"input": x[:64]}, STATIC, target)
    assert target.stat().st_size < source.stat().st_size / 3
    pairs = [
        (answers(source, {"input": row[None]}), answers(target, {"input": row[None]}))
        for row in x[64:]
    ]
    ideal, found = (np.concatenate(part) for part in zip(*pairs, strict=True))
    sqnr_db = 10 * np.log10(np.sum(ideal**2) / np.sum((found - ideal) ** 2))
    assert sqnr_db > 24.0
