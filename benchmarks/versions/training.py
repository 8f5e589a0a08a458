"""Trains an ONNX model on, by running its graph in PyTorch: what a new version really changes.

Only the operators of the models at hand are here. The container stays as it is: the trained values
replace those of the initializers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch.nn import functional

Untyped: TypeAlias = Any
"""What ONNX and PyTorch hand out; neither has types."""

Array = NDArray[Any]
BATCH = 64
SEED = 20261123


def trained(
    model: Untyped,
    images: Array,
    labels: Array,
    *,
    steps: int,
    rate: float,
    only: str = "",
    adam: bool = False,
) -> Untyped:
    """Return a copy of a model that was trained for some steps.

    Args:
        model: The model, with one input and the scores of the classes as its output.
        images: As it takes them.
        labels: Their classes.
        steps: How many batches of 64.
        rate: The learning rate.
        only: Train only weights whose names begin with this.
        adam: With Adam instead of plain gradient descent.

    Returns:
        The copy.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    values = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in copy.graph.initializer
    }
    chosen = {
        name: value.requires_grad_()
        for name, value in values.items()
        if value.is_floating_point() and value.dim() and name.startswith(only)
    }
    kind = torch.optim.Adam if adam else torch.optim.SGD
    optimiser: Untyped = kind(list(chosen.values()), lr=rate)
    random = np.random.default_rng(SEED)
    for _ in range(steps):
        batch = random.integers(0, len(labels), BATCH)
        scores = _run(copy.graph, values, torch.from_numpy(images[batch]))
        loss = functional.cross_entropy(scores, torch.from_numpy(labels[batch]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for tensor in copy.graph.initializer:
        if tensor.name in chosen:
            tensor.raw_data = chosen[tensor.name].detach().numpy().tobytes()
    return copy


def accuracy(model: Untyped, images: Array, labels: Array) -> float:
    """Return the share of images whose class the model finds."""
    values = {
        tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy())
        for tensor in model.graph.initializer
    }
    with torch.no_grad():
        scores = _run(model.graph, values, torch.from_numpy(images))
    return float((scores.argmax(1).numpy() == labels).mean())


def _run(graph: Untyped, weights: dict[str, Any], images: Untyped) -> Untyped:
    values = dict(weights)
    values[graph.input[0].name] = images
    for node in graph.node:
        given = [values[name] for name in node.input if name]
        options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        values[node.output[0]] = _OPERATORS[node.op_type](given, options)
    return values[graph.output[0].name]


def _convolution(given: list[Any], options: dict[str, Any]) -> Untyped:
    return functional.conv2d(
        *given, stride=options["strides"], padding=options["pads"][:2], groups=options["group"]
    )


def _gemm(given: list[Any], options: dict[str, Any]) -> Untyped:
    images, weights, bias = given
    return images @ (weights.T if options.get("transB") else weights) + bias


def _slice(given: list[Any], _options: dict[str, Any]) -> Untyped:
    data, *where = given
    starts, ends, axes, steps = (part.tolist() for part in where)
    ranges = [slice(None)] * data.dim()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        ranges[axis] = slice(start, min(end, data.shape[axis]), step)
    return data[tuple(ranges)]


def _pad(given: list[Any], _options: dict[str, Any]) -> Untyped:
    pads = given[1].tolist()
    half = len(pads) // 2
    sides = [pads[axis + side * half] for axis in reversed(range(half)) for side in (0, 1)]
    return functional.pad(given[0], sides)


_OPERATORS: dict[str, Callable[[list[Any], dict[str, Any]], Untyped]] = {
    "Conv": _convolution,
    "Gemm": _gemm,
    "Slice": _slice,
    "Pad": _pad,
    "Relu": lambda given, _: functional.relu(given[0]),
    "Add": lambda given, _: given[0] + given[1],
    "Reshape": lambda given, _: given[0].flatten(1),
    "Flatten": lambda given, _: given[0].flatten(1),
    "GlobalAveragePool": lambda given, _: given[0].mean((2, 3), keepdim=True),
    "AveragePool": lambda given, o: functional.avg_pool2d(given[0], o["kernel_shape"]),
    "MaxPool": lambda given, o: functional.max_pool2d(given[0], o["kernel_shape"], o["strides"]),
}
