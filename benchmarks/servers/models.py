"""The models that serving is measured with, made as they are needed."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

AIM_MS: Final = 5.0
MS_PER_S: Final = 1000.0
WIDE: Final = 2048


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    """Load a model for one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def deep_model() -> bytes:
    """Return a chain of convolutions that takes 5 ms."""
    took_ms = [_typical_ms(_chain(layers)) for layers in (4, 12)]
    per_layer_ms = (took_ms[1] - took_ms[0]) / 8
    return _chain(max(1, round((AIM_MS - took_ms[0]) / per_layer_ms) + 4))


def _chain(layers: int, channels: int = 32, side: int = 48) -> bytes:
    random = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for layer in range(layers):
        shape = (channels, channels if layer else 3, 3, 3)
        kernel = random.standard_normal(shape, np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [before, f"w{layer}"], [f"c{layer}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        before = f"r{layer}"
    nodes.append(helper.make_node("GlobalAveragePool", [before], ["y"]))
    return _model(nodes, weights, ["n", 3, side, side], ["n", channels, 1, 1])


def wide_model() -> bytes:
    """Return two layers so wide that reading their weights takes most of the time."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal((WIDE, WIDE), np.float32) / WIDE, name)
        for name in ("a", "b")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    return _model(nodes, weights, ["n", WIDE], ["n", WIDE])


def _model(
    nodes: list[Any], weights: list[Any], shape_in: list[Any], shape_out: list[Any]
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape_in)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape_out)],
        weights,
    )
    opset = helper.make_opsetid("", 17)
    content: bytes = helper.make_model(
        graph, opset_imports=[opset], ir_version=8
    ).SerializeToString()
    return content


def _typical_ms(model: bytes) -> float:
    session = session_of(model)
    feeds = {t.name: np.zeros([1, *t.shape[1:]], np.float32) for t in session.get_inputs()}
    taken = []
    for _ in range(40):
        start_s = time.perf_counter()
        session.run(None, feeds)
        taken.append((time.perf_counter() - start_s) * MS_PER_S)
    return statistics.median(taken)
