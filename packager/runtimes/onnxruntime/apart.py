"""Makes variants of a model whose weights are in a file beside it, one weight at a time.

The schemes and their options are those of `models`, and ONNX Runtime's tools do the same work: each
matrix product with a constant weight is quantized in a model of its own, and what the tool made of
it takes its place in the graph.

Rules:
- At no time is more than one weight of a matrix product in memory, with what is made of it.
- Products in the bodies of `If`, `Loop` and `Scan` stay in float.
- ONNX Runtime loads every model once after it is written, and maps its weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import TensorProto, helper

from packager.errors import StepError
from packager.plan.recipes import MODEL_FILE, WEIGHTS_FILE
from packager.runtimes.common.onnx_files import check_loads, tidy
from packager.runtimes.onnxruntime import models
from packager.sources.onnx_graph import all_graphs, all_nodes, bodies, sort_nodes
from packager.sources.onnx_model import model_bytes
from packager.sources.onnx_weights import WeightsWriter, is_apart, put_apart, values_of, whole

_PRODUCTS: Final = frozenset({"MatMul", "Gemm"})
_MATRIX: Final = 2

Quantize = Callable[[Any, dict[str, Any]], Any]
"""Takes a model of one product with its weight, and the options; returns the quantized model."""


def quantize_dynamic(folder: Path, options: dict[str, Any], output: Path) -> None:
    """Quantize weights, and activations while the model runs; needs no samples.

    Args:
        folder: The prepared float model with its weights.
        options: As for `models.quantize_dynamic`.
        output: The folder to write to.

    Raises:
        StepError: The quantizer failed or found nothing to quantize.
    """
    fault = "the model has no operator to quantize dynamically"
    _quantize(folder, options, output, models.made_dynamic, models.DYNAMIC, fault)


def quantize_weights_int4(folder: Path, options: dict[str, Any], output: Path) -> None:
    """Store the weights of matrix products in 4 bits, with a scale per block.

    Args:
        folder: The prepared float model with its weights.
        options: As for `models.quantize_weights_int4`.
        output: The folder to write to.

    Raises:
        StepError: The quantizer failed, or the model has no product with constant weights.
    """
    fault = "the model has no MatMul to quantize"
    _quantize(folder, options, output, models.made_int4, models.INT4, fault)


def to_fp16(folder: Path, options: dict[str, Any], output: Path) -> None:
    """Compute in half precision; inputs and outputs stay as they are.

    Args:
        folder: The prepared float model with its weights.
        options: As for `models.to_fp16`.
        output: The folder to write to.

    Raises:
        StepError: The converter failed, or the model has nothing in float.
    """
    model = _read(folder)
    graph = model.graph
    large = {tensor.name: tensor for tensor in graph.initializer if is_apart(tensor)}
    ends = [value.name for value in (*graph.input, *graph.output)]
    small = [tensor for tensor in graph.initializer if not is_apart(tensor)]
    inputs = [*graph.input]
    # The converter reads the data of weights, but of inputs only the types.
    stand_ins = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in large.values()]
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    _replace(bare.graph.initializer, small)
    _replace(bare.graph.input, [*inputs, *stand_ins])
    converted = models.made_fp16(bare, options, ends)
    types = {value.name: value.type.tensor_type.elem_type for value in converted.graph.input}
    _replace(converted.graph.input, [v for v in converted.graph.input if v.name not in large])
    halved = False
    with WeightsWriter(output) as writer:
        for tensor in large.values():
            added = converted.graph.initializer.add()
            added.CopyFrom(tensor)
            if types[tensor.name] == tensor.data_type:
                put_apart(added, folder, writer)
                continue
            halved = True
            added.data_type = TensorProto.FLOAT16
            parts = (models.halved(part).tobytes() for part in values_of(tensor, folder))
            writer.add(added, parts)
        _copy_inner(converted.graph, folder, writer)
    if not halved:
        raise StepError("the model has no float32 weights that could become float16")
    _save(converted, output)


def _quantize(
    folder: Path,
    options: dict[str, Any],
    output: Path,
    quantize: Quantize,
    made: Collection[str],
    fault: str,
) -> None:
    model = _read(folder)
    merge = _Merge(model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer if is_apart(tensor)}
    with WeightsWriter(output) as writer:
        for node in model.graph.node:
            weight = _weight(node, stored, options)
            alone = None if weight is None else _alone(model, node, whole(weight, folder))
            quantized = None if alone is None else quantize(alone, options)
            if quantized is None or not any(n.op_type in made for n in quantized.graph.node):
                merge.keep(node)
            else:
                merge.take(quantized, writer)
        model = merge.finished(folder, writer)
    models.check_changed(model, made, fault)
    _save(model, output)
    before_bytes = sum((folder / file).stat().st_size for file in (MODEL_FILE, WEIGHTS_FILE))
    models.check_saving(before_bytes, output / MODEL_FILE, output / WEIGHTS_FILE)


def _weight(node: Any, stored: dict[str, Any], options: dict[str, Any]) -> Any:  # noqa: ANN401 - untyped
    """Return the constant matrix of a product that may be quantized; None where there is none."""
    if node.op_type not in _PRODUCTS or node.name in options.get("exclude", ()):
        return None
    tensor = stored.get(node.input[1])
    if tensor is None or tensor.data_type != TensorProto.FLOAT or len(tensor.dims) != _MATRIX:
        return None
    return tensor


def _alone(model: Any, node: Any, weight: Any) -> Any:  # noqa: ANN401 - onnx is untyped
    """Return a model of one product; the other values of the node are its inputs."""
    others = dict.fromkeys(name for name in node.input if name and name != weight.name)
    graph = helper.make_graph(
        [node],
        "alone",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in others],
        [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


class _Merge:
    """Puts what was made of single nodes into the graph that they are from.

    Args:
        model: The model, which is changed when the merge is finished.
    """

    def __init__(self, model: Any) -> None:  # noqa: ANN401 - onnx is untyped
        self._model = model
        self._nodes: list[Any] = []
        self._weights: dict[str, Any] = {}
        self._digests: dict[str, bytes] = {}
        self._outputs: set[str] = set()
        self._opsets = {opset.domain: opset.version for opset in model.opset_import}

    def keep(self, node: Any) -> None:  # noqa: ANN401 - onnx is untyped
        """Keep a node as it is."""
        self._nodes.append(node)

    def take(self, made: Any, writer: WeightsWriter) -> None:  # noqa: ANN401 - onnx is untyped
        """Take the nodes and weights that a tool made of a node.

        Several products of one value have one quantizer of that value, which comes with each.

        Raises:
            StepError: Two weights have one name.
        """
        for opset in made.opset_import:
            newest = max(opset.version, self._opsets.get(opset.domain, 0))
            self._opsets[opset.domain] = newest
        for tensor in made.graph.initializer:
            digest = _digest(tensor)
            if self._digests.setdefault(tensor.name, digest) != digest:
                raise StepError(f"two weights would have the name {tensor.name[:80]!r}")
            if tensor.name not in self._weights:
                put_apart(tensor, Path(), writer)
                self._weights[tensor.name] = _copy(tensor)
        for node in made.graph.node:
            if not self._outputs.issuperset(node.output):
                self._outputs.update(node.output)
                self._nodes.append(_copy(node))

    def finished(self, folder: Path, writer: WeightsWriter) -> Any:  # noqa: ANN401 - onnx is untyped
        """Return the model, with those weights of it that are still read.

        Args:
            folder: The folder of the model that the nodes are from.
            writer: Takes the weights.

        Raises:
            StepError: A weight that a tool made has the name of another.
        """
        graph = self._model.graph
        nodes = [_copy(node) for node in self._nodes]
        _replace(graph.node, nodes)
        read = {name for node in all_nodes(graph) for name in node.input}
        read |= {value.name for inner in all_graphs(graph) for value in inner.output}
        kept = [_copy(tensor) for tensor in graph.initializer if tensor.name in read]
        double = next((t.name for t in kept if t.name in self._weights), None)
        if double is not None:
            raise StepError(f"two weights would have the name {double[:80]!r}")
        for tensor in kept:
            if is_apart(tensor):
                put_apart(tensor, folder, writer)
        _copy_inner(graph, folder, writer)
        _replace(graph.initializer, [*kept, *self._weights.values()])
        _replace(
            self._model.opset_import,
            [helper.make_opsetid(domain, version) for domain, version in self._opsets.items()],
        )
        sort_nodes(graph)
        return self._model


def _copy_inner(graph: Any, folder: Path, writer: WeightsWriter) -> None:  # noqa: ANN401 - untyped
    """Write the weights of the graphs within a graph as they are."""
    for node in graph.node:
        for body in bodies(node):
            for inner in all_graphs(body):
                for tensor in inner.initializer:
                    if is_apart(tensor):
                        put_apart(tensor, folder, writer)


def _digest(tensor: Any) -> bytes:  # noqa: ANN401 - onnx is untyped
    return hashlib.sha256(tensor.SerializeToString(deterministic=True)).digest()


def _copy(message: Any) -> Any:  # noqa: ANN401 - onnx is untyped
    """Return a copy that does not keep the memory of the message that it is a part of."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _replace(field: Any, values: list[Any]) -> None:  # noqa: ANN401 - onnx is untyped
    copies = [_copy(value) for value in values]
    del field[:]
    field.extend(copies)


def _read(folder: Path) -> Any:  # noqa: ANN401 - onnx is untyped
    return onnx.load(str(folder / MODEL_FILE), load_external_data=False)


def _save(model: Any, output: Path) -> None:  # noqa: ANN401 - onnx is untyped
    """Write a model beside its weights, and let ONNX Runtime load both.

    Raises:
        StepError: ONNX Runtime does not load it.
    """
    tidy(model)
    (output / MODEL_FILE).write_bytes(model_bytes(model))
    check_loads(output / MODEL_FILE)
