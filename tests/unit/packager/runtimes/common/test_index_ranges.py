"""Which inputs of a graph are indices, and how far they may reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from packager.runtimes.common.index_ranges import index_ranges

ROWS = 10
COLUMNS = 4


def constant(name: str, value: object, dtype: type = np.int64) -> TensorProto:
    return numpy_helper.from_array(np.array(value, dtype), name)


def model(
    *nodes: NodeProto,
    constants: tuple[TensorProto, ...] = (),
    inputs: dict[str, tuple[int, tuple[int | str, ...]]] | None = None,
    output: tuple[int | str | None, ...] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "indexing",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (kind, shape) in (inputs or {"ids": (TensorProto.INT64, (3,))}).items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [
            numpy_helper.from_array(np.ones((ROWS, COLUMNS), np.float32), "table"),
            constant("axes", [0]),
            *constants,
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def node(kind: str, *inputs: str, to: str = "y", **attributes: Any) -> NodeProto:
    return helper.make_node(kind, inputs, [to], **attributes)


def gather(index: str, **attributes: Any) -> NodeProto:
    return node("Gather", "table", index, **attributes)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([gather("ids")], (-10, 9), id="rows"),
        pytest.param([gather("ids", axis=1)], (-4, 3), id="columns"),
        pytest.param([gather("ids", axis=-1)], (-4, 3), id="axis from the end"),
        pytest.param([node("GatherElements", "table", "ids", axis=1)], (-4, 3), id="elements"),
        pytest.param([node("GatherND", "table", "ids")], (-4, 3), id="nd takes the least axis"),
        pytest.param(
            [node("ScatterElements", "table", "ids", "table")], (-10, 9), id="scatter elements"
        ),
        pytest.param(
            [
                node("Cast", "ids", to="a"),
                node("Reshape", "a", "axes", to="b"),
                node("Unsqueeze", "b", "axes", to="c"),
                gather("c"),
            ],
            (-10, 9),
            id="through operators that keep values",
        ),
        pytest.param([node("Add", "ids", "two", to="a"), gather("a")], (-12, 7), id="add"),
        pytest.param([node("Sub", "ids", "two", to="a"), gather("a")], (-8, 11), id="subtract"),
        pytest.param(
            [node("Sub", "two", "ids", to="a"), gather("a")], (-7, 12), id="subtract from"
        ),
        pytest.param([node("Mul", "ids", "two", to="a"), gather("a")], (-5, 4), id="multiply"),
        pytest.param([node("Neg", "ids", to="a"), gather("a")], (-9, 10), id="negate"),
        pytest.param(
            [node("Add", "ids", "offsets", to="a"), gather("a")], (-10, 4), id="greatest offset"
        ),
        pytest.param(
            [node("Max", "ids", "two", to="a"), gather("a")], (np.iinfo(np.int64).min, 9), id="max"
        ),
        pytest.param(
            [node("Min", "ids", "two", to="a"), gather("a")],
            (-10, np.iinfo(np.int64).max),
            id="min",
        ),
        pytest.param(
            [gather("ids", to="a"), gather("ids", axis=1, to="b"), node("MatMul", "a", "b")],
            (-4, 3),
            id="all uses",
        ),
        pytest.param(
            [
                node("Less", "ids", "two", to="small"),
                node("Add", "ids", "two", to="more"),
                node("Where", "small", "more", "ids", to="a"),
                gather("a"),
            ],
            (-12, 9),
            id="a choice spans both forms",
        ),
    ],
)
def test_an_index_has_the_range_of_its_axis(
    nodes: list[NodeProto], expected: tuple[int, int]
) -> None:
    constants = (constant("two", 2), constant("offsets", [0, 2, 5]))
    for item in nodes:
        if item.op_type == "Cast":
            item.attribute.append(helper.make_attribute("to", TensorProto.INT32))
    assert index_ranges(model(*nodes, constants=constants)) == {"ids": expected}


def test_a_bound_index_is_safe_whatever_the_input() -> None:
    bounded = model(
        node("Clip", "ids", "zero", "nine", to="a"),
        gather("a"),
        constants=(constant("zero", 0), constant("nine", 9)),
    )
    assert index_ranges(bounded) == {}


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([node("Cast", "ids", to="y")], id="not an index"),
        pytest.param([node("Gather", "ids", "axes", to="y")], id="indexed, not an index"),
        pytest.param([node("Mul", "ids", "ids", to="a"), gather("a")], id="computed"),
    ],
)
def test_what_is_no_plain_index_has_no_range(nodes: list[NodeProto]) -> None:
    for item in nodes:
        if item.op_type == "Cast":
            item.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    assert index_ranges(model(*nodes)) == {}


def test_several_inputs_have_their_own_ranges() -> None:
    joined = model(
        node("Concat", "ids", "more", to="a", axis=0),
        gather("a", to="b"),
        node("Gather", "b", "rows"),
        inputs={
            "ids": (TensorProto.INT64, (3,)),
            "more": (TensorProto.INT64, (2,)),
            "rows": (TensorProto.INT32, (1,)),
        },
    )
    assert index_ranges(joined) == {"ids": (-10, 9), "more": (-10, 9), "rows": (-5, 4)}


def test_an_axis_of_unknown_size_gives_no_range() -> None:
    open_axis = model(
        node("Gather", "data", "ids"),
        inputs={"data": (TensorProto.FLOAT, ("n", 2)), "ids": (TensorProto.INT64, (3,))},
    )
    assert index_ranges(open_axis) == {}


def test_indices_are_found_in_branches_and_through_them() -> None:
    def branch(*nodes: NodeProto, name: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.INT64, (3,))
        return helper.make_graph(list(nodes), name, [], [out])

    chosen = model(
        node(
            "If",
            "flag",
            to="a",
            then_branch=branch(node("Add", "ids", "two", to="then_out"), name="t"),
            else_branch=branch(node("Identity", "ids", to="else_out"), name="e"),
        ),
        gather("a"),
        constants=(constant("two", 2),),
        inputs={"flag": (TensorProto.BOOL, ()), "ids": (TensorProto.INT64, (3,))},
    )
    assert index_ranges(chosen) == {"ids": (-12, 9)}


def test_the_model_stays_as_it_was_and_its_ranges_are_those_of_the_reference() -> None:
    import onnxruntime

    embedding = model(gather("ids"))
    before = embedding.SerializeToString()
    low, high = index_ranges(embedding)["ids"]
    assert embedding.SerializeToString() == before
    session = onnxruntime.InferenceSession(before, providers=["CPUExecutionProvider"])
    session.run(None, {"ids": np.array([low, 0, high])})
    for outside in (low - 1, high + 1):
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
            session.run(None, {"ids": np.array([0, 0, outside])})


def test_a_chain_without_end_is_not_followed() -> None:
    links = [node("Identity", "ids" if i == 0 else f"l{i - 1}", to=f"l{i}") for i in range(5000)]
    assert index_ranges(model(*links, gather("l4999"))) == {}
    assert index_ranges(model(*links[:30], gather("l29"))) == {"ids": (-10, 9)}


def test_functions_of_the_model_are_looked_into() -> None:
    plain = model(helper.make_node("Look", ["table", "ids"], ["y"], domain="own"))
    function = helper.make_function(
        "own", "Look", ["t", "i"], ["o"], [helper.make_node("Gather", ["t", "i"], ["o"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    plain.functions.append(function)
    plain.opset_import.append(helper.make_opsetid("own", 1))
    assert index_ranges(plain) == {"ids": (-10, 9)}
