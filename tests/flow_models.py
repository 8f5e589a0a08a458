"""Small models with control flow: a branch on an input, a loop, and a scan, each with products.

Names inside of bodies are deliberately the same in several bodies, and weights are inside of
bodies, outside, and in both: exporters write all of these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from runtime_adapters.protocol import Tensors

FEATURES: Final = 32
HIDDEN: Final = 64
STEPS: Final = 6
RATES: Final = (8000, 16000)
_FLOAT, _INT64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def branches(path: Path) -> Path:
    """Write an If on the input `sr`, in the manner of voice detectors that know two rates.

    One branch has its weights inside, the other takes one from outside; both compute with `x` of
    the outer graph.
    """
    fast = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("Gemm", ["r", "v", "c"], ["fast_y"]),
        ],
        "fast",
        [],
        [_value("fast_y", [1, HIDDEN])],
        [_weight("w", FEATURES, HIDDEN, 1), _weight("v", HIDDEN, HIDDEN, 2), _bias("c", 3)],
    )
    slow = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Tanh", ["a"], ["r"]),
            helper.make_node("MatMul", ["r", "shared"], ["slow_y"]),
        ],
        "slow",
        [],
        [_value("slow_y", [1, HIDDEN])],
        [_weight("w", FEATURES, HIDDEN, 4)],
    )
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is_fast"]),
        helper.make_node("If", ["is_fast"], ["h"], then_branch=fast, else_branch=slow),
        helper.make_node("MatMul", ["h", "shared"], ["m"]),
        helper.make_node("Add", ["m", "h"], ["y"]),
    ]
    return _write(
        path,
        nodes,
        [_value("x", [1, FEATURES]), helper.make_tensor_value_info("sr", _INT64, [])],
        [_value("y", [1, HIDDEN])],
        [
            numpy_helper.from_array(np.array(RATES[1], np.int64), "rate"),
            _weight("shared", HIDDEN, HIDDEN, 5),
        ],
    )


def loop(path: Path) -> Path:
    """Write a Loop that carries a state through a product, and gives each step's answer."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["a"]),
            helper.make_node("Add", ["a", "xw"], ["s"]),
            helper.make_node("Tanh", ["s"], ["h_next"]),
            helper.make_node("MatMul", ["h_next", "out"], ["step_y"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", _INT64, []),
            helper.make_tensor_value_info("going", _BOOL, []),
            _value("h", [1, HIDDEN]),
        ],
        [
            helper.make_tensor_value_info("goes_on", _BOOL, []),
            _value("h_next", [1, HIDDEN]),
            _value("step_y", [1, HIDDEN]),
        ],
        [_weight("w", HIDDEN, HIDDEN, 6)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["xw"]),
        helper.make_node("Loop", ["steps", "always", "start"], ["last", "all"], body=body),
        helper.make_node("Transpose", ["all"], ["y"], perm=[1, 0, 2]),
    ]
    return _write(
        path,
        nodes,
        [_value("x", [1, FEATURES])],
        [_value("last", [1, HIDDEN]), _value("y", [1, STEPS, HIDDEN])],
        [
            numpy_helper.from_array(np.array(STEPS, np.int64), "steps"),
            numpy_helper.from_array(np.array(1, np.bool_), "always"),
            numpy_helper.from_array(np.zeros((1, HIDDEN), np.float32), "start"),
            _weight("first", FEATURES, HIDDEN, 7),
            _weight("out", HIDDEN, HIDDEN, 8),
        ],
    )


def scan(path: Path) -> Path:
    """Write a Scan over the steps of a sequence, with the weights inside of its body."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["x_t", "w"], ["a"]),
            helper.make_node("MatMul", ["h", "v"], ["b"]),
            helper.make_node("Add", ["a", "b"], ["s"]),
            helper.make_node("Tanh", ["s"], ["h_next"]),
            helper.make_node("Identity", ["h_next"], ["step_y"]),
        ],
        "body",
        [_value("h", [1, HIDDEN]), _value("x_t", [1, FEATURES])],
        [_value("h_next", [1, HIDDEN]), _value("step_y", [1, HIDDEN])],
        [_weight("w", FEATURES, HIDDEN, 9), _weight("v", HIDDEN, HIDDEN, 10)],
    )
    nodes = [
        helper.make_node("Transpose", ["x"], ["by_step"], perm=[1, 0, 2]),
        helper.make_node(
            "Scan", ["start", "by_step"], ["last", "all"], body=body, num_scan_inputs=1
        ),
        helper.make_node("Transpose", ["all"], ["y"], perm=[1, 0, 2]),
    ]
    start = numpy_helper.from_array(np.zeros((1, HIDDEN), np.float32), "start")
    return _write(
        path,
        nodes,
        [_value("x", [1, STEPS, FEATURES])],
        [_value("last", [1, HIDDEN]), _value("y", [1, STEPS, HIDDEN])],
        [start],
    )


def loop_of_floats(path: Path) -> Path:
    """Write a Loop whose body has operators that stay in float32: on its own values and outer ones.

    A node lacks an input that its operator allows to be absent. Two of them read one value, an If
    within the body reads values of both graphs around it, and names of its branches are those of
    other bodies.
    """
    then = helper.make_graph(
        [
            helper.make_node("Max", ["s", "xw"], ["a"]),
            helper.make_node("Mul", ["a", "half"], ["r"]),
        ],
        "then",
        [],
        [_value("r", [1, HIDDEN])],
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["s", "w2"], ["a"]), helper.make_node("Tanh", ["a"], ["r"])],
        "other",
        [],
        [_value("r", [1, HIDDEN])],
        [_weight("w2", HIDDEN, HIDDEN, 15)],
    )
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["p"]),
            helper.make_node("Max", ["p", "xw"], ["q"]),
            helper.make_node("Min", ["p", "xw"], ["o"]),
            helper.make_node("Add", ["q", "o"], ["s"]),
            helper.make_node("Less", ["i", "two"], ["early"]),
            helper.make_node("If", ["early"], ["h_next"], then_branch=then, else_branch=other),
            helper.make_node("CumSum", ["h_next", "axis"], ["c"]),
            helper.make_node("Mul", ["c", "tenth"], ["step_y"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", _INT64, []),
            helper.make_tensor_value_info("going", _BOOL, []),
            _value("h", [1, HIDDEN]),
        ],
        [
            helper.make_tensor_value_info("goes_on", _BOOL, []),
            _value("h_next", [1, HIDDEN]),
            _value("step_y", [1, HIDDEN]),
        ],
        [_weight("w", HIDDEN, HIDDEN, 6)],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["xw"]),
        helper.make_node("Loop", ["steps", "always", "start"], ["last", "all"], body=body),
        helper.make_node("Transpose", ["all"], ["y"], perm=[1, 0, 2]),
    ]
    return _write(
        path,
        nodes,
        [_value("x", [1, FEATURES])],
        [_value("last", [1, HIDDEN]), _value("y", [1, STEPS, HIDDEN])],
        [
            numpy_helper.from_array(np.array(STEPS, np.int64), "steps"),
            numpy_helper.from_array(np.array(2, np.int64), "two"),
            numpy_helper.from_array(np.array(1, np.int64), "axis"),
            numpy_helper.from_array(np.array(1, np.bool_), "always"),
            numpy_helper.from_array(np.array(0.5, np.float32), "half"),
            numpy_helper.from_array(np.array(0.1, np.float32), "tenth"),
            numpy_helper.from_array(np.zeros((1, HIDDEN), np.float32), "start"),
            _weight("first", FEATURES, HIDDEN, 7),
        ],
    )


def samples(path: Path, count: int) -> Tensors:
    """Return samples for a model of this module, by input; `sr` is drawn."""
    rng = np.random.default_rng(11)
    names = {value.name: value for value in onnx.load(str(path)).graph.input}
    sizes = [d.dim_value for d in names["x"].type.tensor_type.shape.dim][1:]
    found = {"x": rng.normal(0, 1, (count, *sizes)).astype(np.float32)}
    if "sr" in names:
        found["x"] = found["x"][:, None]
        found["sr"] = rng.choice(np.array(RATES, np.int64), count)
    return found


def _value(name: str, shape: list[int]) -> Any:
    return helper.make_tensor_value_info(name, _FLOAT, shape)


def _weight(name: str, rows: int, columns: int, seed: int) -> Any:
    values = np.random.default_rng(seed).normal(0, rows**-0.5, (rows, columns))
    return numpy_helper.from_array(values.astype(np.float32), name)


def _bias(name: str, seed: int) -> Any:
    values = np.random.default_rng(seed).normal(0, 0.1, HIDDEN)
    return numpy_helper.from_array(values.astype(np.float32), name)


def _write(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]
) -> Path:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
