"""Reads an ONNX model of any size and leaves its weights in a file beside it.

`onnx_model` reads models whose weights fit into one protocol buffer, and makes them simpler. Here
the graph alone is in memory, so what needs the weights' values is left out: the graph is neither
simplified nor converted to a newer operator set.

Rules:
- The weights are written once, and checked from what was written.
- The checks are those of any other model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import onnx

from packager.errors import ModelError
from packager.plan.recipes import MODEL_FILE
from packager.sources.onnx_checks import check_parts, check_valid, check_weights, opset_of
from packager.sources.onnx_external import MAX_MODEL_BYTES, external_locations
from packager.sources.onnx_graph import all_graphs, sort_nodes
from packager.sources.onnx_model import OLDEST_OPSET, SUPPORTED_OPSET, model_bytes
from packager.sources.onnx_reading import inlined, read_graph
from packager.sources.onnx_weights import SMALL_BYTES, WeightsWriter, put_apart, values_of, whole

_CONSTANT: Final = "Constant"


def load_apart(path: Path, folder: Path) -> Any:  # noqa: ANN401 - onnx is untyped
    """Read a model without its weights, check it, and write it with the weights beside it.

    Args:
        path: The model.
        folder: An empty folder; it gets `MODEL_FILE` and `WEIGHTS_FILE`.

    Returns:
        The model as it was written: its nodes in order, without functions of its own, and without
        the data of its weights.

    Raises:
        ModelError: Not a model, not valid, or of a kind that is not supported.
    """
    model = read_graph(path)
    external_locations(model, path.parent)
    if opset_of(model) == 0:
        model.opset_import.add(domain="", version=OLDEST_OPSET)
    if opset_of(model) < SUPPORTED_OPSET:
        raise ModelError(
            f"the model uses opset {opset_of(model)}, and a model of this size is not converted",
            remedy=f"export it with opset {OLDEST_OPSET} or newer",
        )
    model = inlined(model)
    sort_nodes(model.graph)
    check_parts(model)
    with WeightsWriter(folder) as writer:
        for graph in all_graphs(model.graph):
            _lift_constants(graph)
            for tensor in graph.initializer:
                put_apart(tensor, path.parent, writer)
            _take_in_rest(graph, path.parent)
    if model.ByteSize() > MAX_MODEL_BYTES:
        raise ModelError(
            f"the model's graph without its weights is over {MAX_MODEL_BYTES} bytes",
            remedy="export its large constants as weights (initializers)",
        )
    content = model_bytes(model)
    model = onnx.ModelProto.FromString(content)  # the old one would keep the memory of its weights
    (folder / MODEL_FILE).write_bytes(content)
    check_valid(str(folder / MODEL_FILE))
    check_weights(model, lambda tensor: values_of(tensor, folder))
    return model


def _lift_constants(graph: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Make weights of large constants: only a weight can be in another file."""
    given = {value.name for value in graph.output}
    kept = []
    for node in graph.node:
        tensor = _constant(node)
        # Serialized data are never smaller than the tensor; those in another file have none here.
        large = tensor is not None and (tensor.external_data or tensor.ByteSize() >= SMALL_BYTES)
        if tensor is None or not large or node.output[0] in given:
            kept.append(node)
            continue
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    if len(kept) != len(graph.node):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(nodes)


def _constant(node: Any) -> Any:  # noqa: ANN401 - onnx is untyped
    """Return the tensor of a constant; None for any other node."""
    if node.op_type != _CONSTANT:
        return None
    return next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)


def _take_in_rest(graph: Any, folder: Path) -> None:  # noqa: ANN401 - onnx is untyped
    """Read the data of tensors that must be in the model: sparse ones, and attributes."""
    tensors = [part for s in graph.sparse_initializer for part in (s.values, s.indices)]
    for node in graph.node:
        for attribute in node.attribute:
            tensors += attribute.tensors
            sparse = [*attribute.sparse_tensors]
            if attribute.HasField("t"):
                tensors.append(attribute.t)
            if attribute.HasField("sparse_tensor"):
                sparse.append(attribute.sparse_tensor)
            tensors += [part for s in sparse for part in (s.values, s.indices)]
    for tensor in tensors:
        if tensor.external_data:
            tensor.CopyFrom(whole(tensor, folder))
