"""Models whose weights stay in a file beside them: read and checked without holding the weights."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from packager.errors import ModelError
from packager.plan.recipes import MODEL_FILE, WEIGHTS_FILE
from packager.sources import onnx_model
from packager.sources.onnx_apart import load_apart
from packager.sources.onnx_weights import PAGE_BYTES, PART_BYTES, data_bytes, place_of
from packager.sources.parity import answers

MIB = 1024**2
X = {"x": np.ones((2, 32), np.float32)}


def weight(seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((32, 32), np.float32)


def model(*weights: Any, nodes: list[Any] | None = None, opset: int = 17) -> Any:
    graph = helper.make_graph(
        nodes or [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
        weights,
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def apart(path: Path, made: Any) -> Path:
    onnx.save(made, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def loaded(path: Path, name: str = "out") -> Path:
    folder = path.parent / name
    folder.mkdir()
    load_apart(path, folder)
    return folder


@pytest.mark.parametrize("inside", [False, True])
def test_the_graph_keeps_small_tensors_and_computes_the_same(tmp_path: Path, inside: bool) -> None:
    made = model(
        numpy_helper.from_array(weight(), "w"),
        numpy_helper.from_array(np.array([-1, 32]), "shape"),
        nodes=[
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Reshape", ["h", "shape"], ["y"]),
        ],
    )
    path = tmp_path / "m.onnx"
    whole = tmp_path / "whole.onnx"
    whole.write_bytes(made.SerializeToString())
    path.write_bytes(whole.read_bytes()) if inside else apart(path, onnx.load(str(whole)))
    folder = loaded(path)
    (w, shape) = onnx.load(str(folder / MODEL_FILE), load_external_data=False).graph.initializer
    assert place_of(w, folder).offset % PAGE_BYTES == 0
    assert not shape.external_data
    assert (folder / WEIGHTS_FILE).read_bytes() == weight().tobytes()
    assert (folder / MODEL_FILE).stat().st_size < 1024
    expected = answers(whole, made, X)["y"]
    np.testing.assert_array_equal(answers(folder / MODEL_FILE, made, X)["y"], expected)


def test_a_large_constant_becomes_a_weight(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(weight())
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    made = model(nodes=nodes)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    folder = loaded(tmp_path / "m.onnx")
    assert (folder / WEIGHTS_FILE).read_bytes() == weight().tobytes()
    graph = onnx.load(str(folder / MODEL_FILE), load_external_data=False).graph
    assert [node.op_type for node in graph.node] == ["MatMul"]


def test_weights_in_typed_fields_are_written_as_bytes(tmp_path: Path) -> None:
    made = model(helper.make_tensor("w", TensorProto.FLOAT, [32, 32], weight().reshape(-1)))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    assert (loaded(tmp_path / "m.onnx") / WEIGHTS_FILE).read_bytes() == weight().tobytes()


def test_no_more_than_a_few_parts_of_the_weights_are_in_memory(tmp_path: Path) -> None:
    rows = 12 * PART_BYTES // 128
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[32, rows])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(12 * PART_BYTES)
    made = model(tensor)
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_value = rows
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    tracemalloc.start()
    folder = loaded(tmp_path / "m.onnx")
    facts = onnx_model.facts_of(load_apart(folder / MODEL_FILE, empty(tmp_path / "again")), ())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert facts.parameters == 32 * rows
    assert facts.weights["MatMul"] > 0.99
    assert peak_bytes < 4 * PART_BYTES


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("value", "text"), [(np.nan, "NaN"), (-np.inf, "infinity")])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, value: float, text: str) -> None:
    values = weight()
    values[-1, -1] = value
    path = apart(tmp_path / "m.onnx", model(numpy_helper.from_array(values, "w")))
    with pytest.raises(ModelError, match=f"weight 'w' holds {text}"):
        loaded(path)


@pytest.mark.parametrize(
    ("entry", "value", "text"),
    [
        ("location", "../w.bin", "outside its folder"),
        ("location", "/etc/passwd", "outside its folder"),
        ("location", "a/../../w.bin", "outside its folder"),
        ("location", "missing.bin", "'missing.bin', at least 4096 bytes"),
        ("offset", "1", "has 4096 bytes, but the model needs 4097"),
        ("length", "4000", "has 4000 bytes of external data, which do not fit"),
        ("length", "many", "is not a number"),
    ],
)
def test_data_in_no_place_are_refused_in_one_line(
    tmp_path: Path, entry: str, value: str, text: str
) -> None:
    path = apart(tmp_path / "m.onnx", model(numpy_helper.from_array(weight(), "w")))
    made = onnx.load(str(path), load_external_data=False)
    (tensor,) = made.graph.initializer
    places = {found.key: found.value for found in tensor.external_data} | {entry: value}
    del tensor.external_data[:]
    for key, place in places.items():
        tensor.external_data.add(key=key, value=place)
    path.write_bytes(made.SerializeToString())
    with pytest.raises(ModelError, match=text) as caught:
        loaded(path)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_what_onnx_finds_invalid_is_one_line(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], unknown=1)]
    made = model(numpy_helper.from_array(weight(), "w"), nodes=nodes)
    path = apart(tmp_path / "m.onnx", made)
    with pytest.raises(ModelError, match="not valid ONNX"):
        loaded(path)


def test_an_opset_that_would_have_to_be_converted_is_refused(tmp_path: Path) -> None:
    path = apart(tmp_path / "m.onnx", model(numpy_helper.from_array(weight(), "w"), opset=6))
    with pytest.raises(ModelError, match="opset 6, and a model of this size is not converted"):
        loaded(path)


@pytest.mark.parametrize(
    ("kind", "dims", "size"),
    [
        (TensorProto.FLOAT, [3, 5], 60),
        (TensorProto.BFLOAT16, [3], 6),
        (TensorProto.INT4, [5], 3),
        (TensorProto.BOOL, [], 1),
        (TensorProto.STRING, [3], None),
        (TensorProto.FLOAT, [-3], None),
    ],
)
def test_the_size_of_data_follows_from_type_and_shape(
    kind: int, dims: list[int], size: int | None
) -> None:
    assert data_bytes(TensorProto(data_type=kind, dims=dims)) == size
