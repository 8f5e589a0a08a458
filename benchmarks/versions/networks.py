"""A network of the shape of ResNet-18, 11 million weights, and the digits that it is trained on.

Its batch normalisations are folded away, as in every model that is shipped; so it starts with
residual branches that are near zero.

Source:
    He et al. 2015, "Deep Residual Learning for Image Recognition", table 1, for the shape.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

Untyped: TypeAlias = Any
"""What ONNX and PyTorch hand out; neither has types."""

WIDTHS = (64, 128, 256, 512)
BLOCKS = 2
CLASSES = 10
SEED = 7
BRANCH_SCALE = 0.2


def digit_images() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the digits as the network takes them, and their classes."""
    found = load_digits()
    images = (found.images / 16.0).astype(np.float32)[:, np.newaxis]
    return images, found.target.astype(np.int64)


def resnet18() -> Untyped:
    """Return the network with its weights as they are before any training."""
    graph = _Graph()
    place = graph.convolution("x", "stem", 1, WIDTHS[0], 3, 1, relu=True)
    before = WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        for block in range(BLOCKS):
            stride = 2 if stage and not block else 1
            name = f"layer{stage + 1}.{block}"
            inner = graph.convolution(place, f"{name}.conv1", before, width, 3, stride, relu=True)
            inner = graph.convolution(inner, f"{name}.conv2", width, width, 3, 1, BRANCH_SCALE)
            if stride > 1:
                place = graph.convolution(place, f"{name}.shortcut", before, width, 1, stride)
            place = graph.node("Relu", [graph.node("Add", [inner, place])])
            before = width
    place = graph.node("Flatten", [graph.node("GlobalAveragePool", [place])])
    weights = [graph.weights("head.weight", (CLASSES, before)), graph.weights("head.bias", ())]
    graph.node("Gemm", [place, *weights], output="y", transB=1)
    made = helper.make_graph(
        graph.nodes,
        "resnet18",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CLASSES])],
        graph.tensors,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


class _Graph:
    """Nodes and weights as they are added."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self._random = np.random.default_rng(SEED)

    def node(self, kind: str, inputs: list[str], output: str = "", **options: Untyped) -> str:
        """Add a node and return the name of its output."""
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **options))
        return name

    def weights(self, name: str, shape: tuple[int, ...], scale: float = 1.0) -> str:
        """Add weights; without a shape, a bias of zeros for each class."""
        size = scale * np.sqrt(2 / np.prod(shape[1:])) if shape else 0.0
        values = self._random.normal(0, 1, shape or (CLASSES,)) * size
        self.tensors.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def convolution(
        self,
        given: str,
        name: str,
        before: int,
        width: int,
        kernel: int,
        stride: int,
        scale: float = 1.0,
        *,
        relu: bool = False,
    ) -> str:
        """Add a convolution with its bias and return the name of its output."""
        bias = f"{name}.bias"
        self.tensors.append(numpy_helper.from_array(np.zeros(width, np.float32), bias))
        weights = self.weights(f"{name}.weight", (width, before, kernel, kernel), scale)
        made = self.node(
            "Conv",
            [given, weights, bias],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=1,
        )
        return self.node("Relu", [made]) if relu else made
