"""Bodies of If, Loop and Scan: names of their own, shares of weights, casts where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from packager.runtimes.common.onnx_files import session_of
from packager.sources.onnx_bodies import (
    has_bodies,
    name_values_apart,
    parameters,
    settle_casts,
    weight_shares,
)
from packager.sources.onnx_graph import all_graphs, sort_nodes, stored_names
from tests import flow_models

WRITERS = (
    flow_models.branches,
    flow_models.loop,
    flow_models.scan,
    flow_models.loop_of_floats,
)


def made(graph: Any) -> list[str]:
    """Return all names that a graph and its bodies give."""
    return [
        name
        for inner in all_graphs(graph)
        for name in (
            *(value.name for value in inner.input),
            *stored_names(inner),
            *(name for node in inner.node for name in node.output),
        )
    ]


@pytest.mark.parametrize("write", WRITERS)
def test_names_apart_are_unique_and_the_answers_stay(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path / "model.onnx")
    model = onnx.load(str(path))
    feeds = {name: np.asarray(array[0]) for name, array in flow_models.samples(path, 2).items()}
    if "sr" not in feeds:  # there a sample is a whole call
        feeds["x"] = feeds["x"][None]
    before = session_of(path).run(None, feeds)
    name_values_apart(model.graph)
    onnx.checker.check_model(model, full_check=True)
    assert len(set(made(model.graph))) == len(made(model.graph))
    assert [value.name for value in model.graph.output] == [
        value.name for value in onnx.load(str(path)).graph.output
    ]
    for one, two in zip(
        before, session_of(model.SerializeToString()).run(None, feeds), strict=True
    ):
        np.testing.assert_array_equal(one, two)


def test_a_new_name_is_none_that_another_graph_uses(tmp_path: Path) -> None:
    model = onnx.load(str(flow_models.branches(tmp_path / "model.onnx")))
    _, _, slow = all_graphs(model.graph)
    slow.node[0].output[0] = slow.node[1].input[0] = "w_2"
    name_values_apart(model.graph)
    assert len(set(made(model.graph))) == len(made(model.graph))


def test_shares_tell_which_weights_are_within_bodies(tmp_path: Path) -> None:
    model = onnx.load(str(flow_models.branches(tmp_path / "model.onnx")))
    shares, inner = weight_shares(model)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert inner["Gemm"] == shares["Gemm"]
    # `shared` is read first by the outer graph; both `w` are within.
    assert shares["MatMul"] - inner["MatMul"] == pytest.approx(1 / 3, abs=0.02)
    assert parameters(model.graph) == 1 + 2 * 64 * 64 + 2 * 32 * 64 + 64
    assert has_bodies(model.graph)


def test_weights_that_are_constants_of_a_body_count(tmp_path: Path) -> None:
    model = onnx.load(str(flow_models.scan(tmp_path / "model.onnx")))
    before, _ = weight_shares(model)
    _, body = all_graphs(model.graph)
    tensors = [*body.initializer]
    del body.initializer[:]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in tensors]
    nodes += [onnx.NodeProto.FromString(node.SerializeToString()) for node in body.node]
    del body.node[:]
    body.node.extend(nodes)
    shares, inner = weight_shares(model)
    assert shares["MatMul"] == inner["MatMul"] == pytest.approx(before["MatMul"], abs=0.01)
    assert parameters(model.graph) == 64 + 32 * 64 + 64 * 64


def test_a_graph_without_bodies_has_nothing_within() -> None:
    weight = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [1, 2])],
        [value("y", TensorProto.FLOAT, [1, 2])],
        [weight],
    )
    assert weight_shares(helper.make_model(graph)) == ({"MatMul": 1.0}, {})
    assert not has_bodies(graph)


def test_casts_of_values_of_a_body_go_into_it_and_doubles_go(tmp_path: Path) -> None:
    model = onnx.load(str(flow_models.loop(tmp_path / "model.onnx")))
    name_values_apart(model.graph)
    cast = helper.make_node("Cast", ["s"], ["s_wide"], to=TensorProto.FLOAT)
    outer = helper.make_node("Cast", ["xw"], ["xw_wide"], to=TensorProto.FLOAT)
    model.graph.node.extend([cast, cast, outer, outer])
    _, body = all_graphs(model.graph)
    body.node[2].input[0] = "s_wide"
    settle_casts(model.graph)
    sort_nodes(model.graph)
    onnx.checker.check_model(model, full_check=True)
    graph, body = all_graphs(model.graph)
    assert [n.output[0] for n in body.node if n.op_type == "Cast"] == ["s_wide"]
    assert [n.output[0] for n in graph.node if n.op_type == "Cast"] == ["xw_wide"]
