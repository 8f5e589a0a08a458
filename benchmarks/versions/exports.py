"""What exporters, pruning and other tools make of a network, whose weights were not trained."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.versions.files import Untyped

SEED: Final = 20
SHARE: Final = 0.5


def exported_anew(model: Untyped) -> dict[str, tuple[bytes, bytes]]:
    """Return the two files of each change.

    Args:
        model: An ONNX model; it stays as it is. Each file is made from the model itself.

    Returns:
        What changed, and the file before and after it.
    """
    numbered = _renamed(model, 10)
    old = model.SerializeToString()
    return {
        "renamed and reordered": (old, _shuffled(_renamed(model, 517)).SerializeToString()),
        "a layer more": (
            numbered.SerializeToString(),
            _renamed(_with_layer(model), 10).SerializeToString(),
        ),
        "channels permuted": (old, _each(model, _permuted)),
        "largest layer pruned": (old, _each(model, _pruned, largest=True)),
        "every layer pruned": (old, _each(model, _pruned)),
        "metadata of a model with If": (_branches(model, "1"), _branches(model, "2")),
    }


def _weights(model: Untyped) -> list[Untyped]:
    return [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and t.dims]


def _largest(model: Untyped) -> Untyped:
    return max(_weights(model), key=lambda tensor: int(np.prod(tensor.dims)))


def _each(model: Untyped, change: Untyped, *, largest: bool = False) -> bytes:
    """Return the file of a model of which all weights changed, or its largest tensor alone."""
    changed = _copied(model)
    random = np.random.default_rng(SEED)
    for tensor in [_largest(changed)] if largest else _weights(changed):
        values = change(numpy_helper.to_array(tensor), random)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))
    return bytes(changed.SerializeToString())


def _permuted(values: Untyped, random: np.random.Generator) -> Untyped:
    return values[random.permutation(len(values))]


def _pruned(values: Untyped, _: np.random.Generator) -> Untyped:
    """Return weights of which the smaller half are zero."""
    return np.where(np.abs(values) < np.quantile(np.abs(values), SHARE), np.float32(0), values)


def _renamed(model: Untyped, start: int) -> Untyped:
    """Return a model whose tensors have numbers for names, as PyTorch's exporter gives them."""
    renamed = _copied(model)
    names = {t.name: f"onnx::Conv_{start + n}" for n, t in enumerate(renamed.graph.initializer)}
    for tensor in renamed.graph.initializer:
        tensor.name = names[tensor.name]
    for node in renamed.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return renamed


def _shuffled(model: Untyped) -> Untyped:
    tensors = list(model.graph.initializer)
    order = np.random.default_rng(SEED).permutation(len(tensors))
    return _with_tensors(model, [tensors[place] for place in order])


def _with_layer(model: Untyped) -> Untyped:
    """Return a model with one tensor more in front, of the shape of the largest."""
    largest = _largest(model)
    values = np.random.default_rng(SEED).standard_normal(tuple(largest.dims)).astype(np.float32)
    more = numpy_helper.from_array(values / np.float32(20), "more")
    return _with_tensors(model, [more, *model.graph.initializer])


def _with_tensors(model: Untyped, tensors: list[Untyped]) -> Untyped:
    changed = _copied(model)
    del changed.graph.initializer[:]
    changed.graph.initializer.extend(tensors)
    return changed


def _branches(model: Untyped, version: str) -> bytes:
    """Return a model whose branches hold other weights under the same names."""
    shape = tuple(_largest(model).dims)
    layers = [tensor for tensor in _weights(model) if tuple(tensor.dims) == shape][:2]
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)

    def branch(layer: Untyped) -> Untyped:
        stored = numpy_helper.from_array(numpy_helper.to_array(layer), "w")
        node = helper.make_node("Conv", ["x", "w"], ["y"])
        return helper.make_graph([node], "branch", [], [value], [stored])

    then, otherwise = (branch(layer) for layer in layers)
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
    ]
    graph = helper.make_graph([node], "g", given, [value])
    return bytes(helper.make_model(graph, producer_version=version).SerializeToString())


def _copied(model: Untyped) -> Untyped:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied
