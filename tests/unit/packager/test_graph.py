"""ONNX graphs: broken ones are refused in one line, good ones come out clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager import graph
from packager.errors import ModelError


def model(
    *, operator: str = "Relu", weight: float = 1.0, weight_is_input: bool = False, opset: int = 17
) -> Any:
    tensor = numpy_helper.from_array(np.full((4, 3), weight, np.float32), "w")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    if weight_is_input:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], doc_string="/home/somebody/train.py"),
        helper.make_node(operator, ["h"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])]
    made = helper.make_graph(nodes, "g", inputs, outputs, [tensor])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def save(path: Path, made: Any) -> Path:
    path.write_bytes(made.SerializeToString())
    return path


def test_a_good_model_comes_out_clean(tmp_path: Path) -> None:
    loaded = graph.load_checked(save(tmp_path / "m.onnx", model(weight_is_input=True)))
    cleaned, notes = graph.clean(loaded)
    assert [value.name for value in cleaned.graph.input] == ["x"]
    assert any("weights were inputs" in note for note in notes)
    assert b"/home/somebody" not in graph.model_bytes(cleaned)
    facts = graph.facts_of(cleaned, notes)
    assert facts.inputs[0].shape == (-1, 4)
    assert facts.outputs[0].datatype == "FP32"
    assert facts.parameters == 12
    assert {"MatMul", "Gemm"} & set(facts.operators)


def test_the_format_is_lowered_and_the_opset_raised(tmp_path: Path) -> None:
    made = model(opset=11)
    made.ir_version = 13
    cleaned, _ = graph.clean(graph.load_checked(save(tmp_path / "m.onnx", made)))
    assert cleaned.ir_version <= graph.NEWEST_IR
    assert cleaned.opset_import[0].version >= graph.OLDEST_OPSET


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", model())
    first, second = (graph.clean(graph.load_checked(path))[0] for _ in range(2))
    assert graph.model_bytes(first) == graph.model_bytes(second)


def cyclic() -> Any:
    made = model()
    made.graph.node[0].input[0] = "y"
    return made


def empty() -> Any:
    made = model()
    del made.graph.node[:]
    return made


def outside() -> Any:
    made = model()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    return made


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (cyclic(), "not valid ONNX"),
        (empty(), "graph is empty"),
        (model(operator="NoSuchOperator"), "not valid ONNX"),
        (model(weight=float("nan")), "weight 'w' holds NaN"),
        (model(opset=27), "opset 27, newer than 26"),
    ],
)
def test_broken_models_are_refused_in_one_line(tmp_path: Path, made: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        graph.load_checked(save(tmp_path / "m.onnx", made))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xff not a model", b""])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError):
        graph.external_files(path)


def test_a_truncated_model_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", model())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ModelError, match="truncated"):
        graph.external_files(path)


def test_external_data_are_listed_and_may_not_leave_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert graph.external_files(path) == ("w.bin",)
    assert graph.load_checked(path).graph.initializer[0].raw_data
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError):
        graph.load_checked(path)
    with pytest.raises(ModelError, match="outside its folder"):
        graph.external_files(save(tmp_path / "o.onnx", outside()))


def test_a_fixed_batch_of_many_is_refused(tmp_path: Path) -> None:
    made = model()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 4
    cleaned, notes = graph.clean(graph.load_checked(save(tmp_path / "m.onnx", made)))
    with pytest.raises(ModelError, match="batch axis") as caught:
        graph.facts_of(cleaned, notes)
    assert caught.value.remedy
