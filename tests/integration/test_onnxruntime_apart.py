"""Variants made weight by weight answer like those of ONNX Runtime's tools on the whole model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from packager.errors import StepError
from packager.plan.recipes import MODEL_FILE, WEIGHTS_FILE
from packager.runtimes.common.onnx_files import session_of
from packager.runtimes.onnxruntime import apart, models
from packager.runtimes.onnxruntime.spec import SPEC
from packager.sources import onnx_model
from packager.sources.onnx_apart import load_apart

WIDTH = 64
NODE = helper.make_node
RECIPES = {recipe.name: recipe for recipe in SPEC.recipes}
INT4 = RECIPES["onnxruntime-int4"].options
DYNAMIC = RECIPES["onnxruntime-int8-dynamic-reduced"].options

Make = Callable[[Path, dict[str, Any], Path], None]


def normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    values: NDArray[np.float32] = rng.standard_normal(shape, np.float32)
    return values / np.float32(shape[0] ** 0.5)


NODES = (
    NODE("MatMul", ["x", "a"], ["h"], name="first"),
    NODE("MatMul", ["x", "b"], ["g"], name="second"),
    NODE("Mul", ["h", "g"], ["m"], name="mix"),
    NODE("Gemm", ["m", "c", "bias"], ["k"], name="third", transB=1),
    NODE("MatMul", ["k", "a"], ["y"], name="fourth"),
)
WEIGHTS = {
    "a": normal(WIDTH, WIDTH, seed=1), "b": normal(WIDTH, WIDTH, seed=2),
    "c": normal(WIDTH, WIDTH, seed=3), "bias": normal(WIDTH, seed=4),
}  # fmt: skip


def write(
    folder: Path, nodes: tuple[Any, ...] = NODES, weights: dict[str, Any] | None = None
) -> tuple[Path, Path]:
    """Write a model in one piece and as the build prepares a large one; return both."""
    given = WEIGHTS if weights is None else weights
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in given.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "whole.onnx").write_bytes(made.SerializeToString())
    prepared = folder / "prepared"
    prepared.mkdir()
    model, _ = onnx_model.clean(load_apart(folder / "whole.onnx", prepared), apart=True)
    (prepared / MODEL_FILE).write_bytes(onnx_model.model_bytes(model))
    return folder / "whole.onnx", prepared


def made_of(make: Make, prepared: Path, options: dict[str, Any], name: str = "out") -> Path:
    output = prepared.parent / name
    output.mkdir()
    make(prepared, options, output)
    return output / MODEL_FILE


def answer(model: Path) -> NDArray[Any]:
    x = normal(5, WIDTH, seed=9)
    answers: list[NDArray[Any]] = session_of(model).run(["y"], {"x": x})
    return answers[0]


def operators(model: Path) -> list[str]:
    graph = onnx.load(str(model), load_external_data=False).graph
    return sorted(node.op_type for node in graph.node)


@pytest.mark.parametrize(
    ("weightwise", "whole", "options"),
    [
        (apart.quantize_weights_int4, models.quantize_weights_int4, INT4),
        (apart.quantize_dynamic, models.quantize_dynamic, DYNAMIC),
        (apart.to_fp16, models.to_fp16, {}),
    ],
)
def test_weight_by_weight_gives_the_same_operators_and_answers(
    tmp_path: Path, weightwise: Make, whole: Make, options: dict[str, Any]
) -> None:
    model, prepared = write(tmp_path)
    ours = made_of(weightwise, prepared, options)
    whole(model, options, tmp_path / "theirs.onnx")
    assert operators(ours) == operators(tmp_path / "theirs.onnx")
    np.testing.assert_allclose(answer(ours), answer(tmp_path / "theirs.onnx"), atol=1e-5)
    again = made_of(weightwise, prepared, options, "again")
    for name in (MODEL_FILE, WEIGHTS_FILE):
        assert ours.with_name(name).read_bytes() == again.with_name(name).read_bytes()


def test_a_weight_that_two_products_share_is_stored_once(tmp_path: Path) -> None:
    _, prepared = write(tmp_path)
    graph = onnx.load(str(made_of(apart.quantize_weights_int4, prepared, INT4)),
                      load_external_data=False).graph  # fmt: skip
    packed = [t for t in graph.initializer if t.data_type == TensorProto.UINT8]
    assert len(packed) == 3
    assert not {"a", "b", "c"} & {tensor.name for tensor in graph.initializer}


def test_what_is_excluded_stays_in_float_with_its_weight(tmp_path: Path) -> None:
    _, prepared = write(tmp_path)
    options = {**INT4, "exclude": ["second"]}
    made = made_of(apart.quantize_weights_int4, prepared, options)
    graph = onnx.load(str(made), load_external_data=False).graph
    assert [node.name for node in graph.node if node.op_type == "MatMul"] == ["second"]
    assert "b" in {tensor.name for tensor in graph.initializer}
    np.testing.assert_allclose(answer(made), answer(prepared / MODEL_FILE), atol=0.3)


def test_a_product_in_a_body_stays_in_float(tmp_path: Path) -> None:
    def body(name: str, *nodes: Any) -> Any:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH])
        return helper.make_graph(nodes, name, [], [out])

    nodes = (
        NODE("MatMul", ["x", "a"], ["h"], name="outer"),
        NODE("If", ["on"], ["y"], name="if",
             then_branch=body("t", NODE("MatMul", ["h", "b"], ["t"], name="inner")),
             else_branch=body("e", NODE("Identity", ["h"], ["e"], name="same"))),
    )  # fmt: skip
    weights = {"a": WEIGHTS["a"], "b": WEIGHTS["b"], "on": np.ones((), np.bool_)}
    _, prepared = write(tmp_path, nodes, weights)
    for make, options in ((apart.quantize_weights_int4, INT4), (apart.quantize_dynamic, DYNAMIC)):
        made = made_of(make, prepared, options, make.__name__)
        graph = onnx.load(str(made), load_external_data=False).graph
        names = {tensor.name for tensor in graph.initializer}
        assert "b" in names
        assert "a" not in names
        np.testing.assert_allclose(answer(made), answer(prepared / MODEL_FILE), atol=0.3)


def test_weights_in_a_body_are_copied_as_they_are(tmp_path: Path) -> None:
    rows = numpy_helper.from_array(np.arange(WIDTH * 4)[::-1].copy() % WIDTH, "rows")
    first = numpy_helper.from_array(np.arange(WIDTH), "first")
    body = helper.make_graph(
        [NODE("Gather", ["rows", "first"], ["i"]), NODE("Gather", ["h", "i"], ["t"], axis=1)],
        "t", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, ["n", WIDTH])],
        [rows, first],
    )  # fmt: skip
    nodes = (
        NODE("MatMul", ["x", "a"], ["h"], name="outer"),
        NODE("If", ["on"], ["y"], name="if", then_branch=body, else_branch=body),
    )
    weights = {"a": WEIGHTS["a"], "on": np.ones((), np.bool_)}
    whole, prepared = write(tmp_path, nodes, weights)
    np.testing.assert_allclose(answer(prepared / MODEL_FILE), answer(whole), atol=1e-5)
    for make, options in (
        (apart.quantize_weights_int4, INT4), (apart.quantize_dynamic, DYNAMIC), (apart.to_fp16, {}),
    ):  # fmt: skip
        made = made_of(make, prepared, options, make.__name__)
        np.testing.assert_allclose(answer(made), answer(whole), atol=0.3)


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (apart.quantize_weights_int4, INT4, "has no MatMul to quantize"),
        (apart.quantize_dynamic, DYNAMIC, "has no operator to quantize dynamically"),
    ],
)
def test_a_model_without_products_is_refused(
    tmp_path: Path, make: Make, options: dict[str, Any], text: str
) -> None:
    nodes = (NODE("Add", ["x", "bias"], ["y"], name="add"),)
    _, prepared = write(tmp_path, nodes, {"bias": normal(4, WIDTH)[:1], "unused": normal(64, 64)})
    with pytest.raises(StepError, match=text):
        made_of(make, prepared, options)


def test_weights_that_are_hardly_smaller_are_not_worth_a_variant(tmp_path: Path) -> None:
    nodes = (
        NODE("MatMul", ["x", "a"], ["h"], name="product"),
        NODE("Gather", ["table", "zero"], ["row"], name="look"),
        NODE("Add", ["h", "row"], ["y"], name="add"),
    )
    weights = {"a": WEIGHTS["a"], "table": normal(9000, WIDTH), "zero": np.array([0])}
    _, prepared = write(tmp_path, nodes, weights)
    with pytest.raises(StepError, match="of the model's size"):
        made_of(apart.quantize_weights_int4, prepared, INT4)
