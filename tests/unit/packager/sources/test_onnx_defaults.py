"""Inputs with a default: which they are, which become required, and what is told of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from packager.sources.onnx_defaults import MAX_TOLD, default_names, told_defaults, with_inputs


def model(defaults: int, *, weight_is_input: bool = False) -> Any:
    """Return a model with an input x, a weight w, and inputs d0, d1, ... with defaults."""
    names = [f"d{index}" for index in range(defaults)]
    given = [*names, *(["w"] if weight_is_input else [])]
    nodes = [helper.make_node("Sum", ["x", "w", *names], ["y"])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name, TensorProto.FLOAT, [1, 2]) for name in ("x", *given)],
        [value("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(np.ones((1, 2), np.float32), name) for name in ("w", *names)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_defaults_are_inputs_with_an_initializer() -> None:
    assert default_names(model(2).graph) == ("d0", "d1")


def test_a_default_becomes_required_and_the_model_given_stays() -> None:
    given = model(2)
    changed = with_inputs(given, ["d1"])
    assert default_names(changed.graph) == ("d0",)
    assert [value.name for value in changed.graph.input] == ["x", "d0", "d1"]
    assert default_names(given.graph) == ("d0", "d1")


def test_each_default_gets_a_line_and_many_of_them_one_for_the_rest() -> None:
    constant, sent = told_defaults(model(2), ["d1"])
    assert "'d0' FP32 [1, 2] is its default, a constant" in constant
    assert "'d1'" in sent
    assert "must send it" in sent
    many = told_defaults(model(MAX_TOLD + 3), ())
    assert len(many) == MAX_TOLD + 1
    assert many[-1].startswith("3 more inputs")


def test_weights_that_an_old_exporter_lists_as_inputs_get_no_line_unless_samples_carry_one() -> (
    None
):
    listed = model(1, weight_is_input=True)
    assert told_defaults(listed, ()) == ()
    (line,) = told_defaults(listed, ["d0"])
    assert "'d0'" in line
