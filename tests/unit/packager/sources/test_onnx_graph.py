"""Names of nodes, by which tools choose what to quantize."""

from __future__ import annotations

from onnx import NodeProto, TensorProto, helper

from packager.sources.onnx_graph import all_nodes, name_nodes


def relus(*names: str) -> list[NodeProto]:
    return [helper.make_node("Relu", ["x"], ["y"], name=name) for name in names]


def test_names_that_are_shared_are_made_unique_and_others_stay() -> None:
    graph = helper.make_graph(relus("a", "a", "", "Relu_2"), "g", [], [])
    name_nodes(graph)
    assert [node.name for node in graph.node] == ["a", "Relu_1", "Relu_2_", "Relu_2"]


def test_the_nodes_of_branches_get_names_too() -> None:
    body = helper.make_graph(
        relus("a", ""),
        "body",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    choice = helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body)
    graph = helper.make_graph([*relus("a"), choice], "g", [], [])
    name_nodes(graph)
    found = [node.name for node in all_nodes(graph)]
    assert found[0] == "a"
    assert len(set(found)) == len(found) == 6
    assert all(found)
