"""Profiles a variant by layer with ONNX Runtime's own profiler.

ONNX Runtime writes an event for each node that it ran, and the graph that it made of the model.
The graph tells what was fused, and which value is alive how long.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import msgspec
import onnx

from packager.errors import StepError
from packager.files import read_bounded
from packager.layers.memory import Node, live_peak
from packager.layers.sums import faster_half
from packager.layers.values import Layer, LayerProfile, MemoryPlan
from packager.plan.recipes import WEIGHTS_FILE
from packager.runtimes.onnxruntime.fusions import Fusions, GraphNode, find_fusions
from packager.runtimes.onnxruntime.profiles import (
    MAX_PROFILE_BYTES,
    Inference,
    NodeRun,
    affordable_runs,
    read_inferences,
)
from packager.tools.quiet import tool
from runtime_adapters.onnxruntime.adapter import (
    CPU,
    PROVIDER_OPTION,
    OnnxRuntimeSession,
    open_model,
)
from runtime_adapters.onnxruntime.library import onnxruntime
from runtime_adapters.protocol import Limits, Tensors
from wire.package.variant import VariantInfo

WARM_UP_RUNS: Final = 5
_EXTERNAL: Final = "session.optimized_model_external_initializers"
_SOURCE: Final = (
    "computed from the sizes of the outputs that ONNX Runtime reports, in the order in which it "
    "runs the nodes, as if none worked in place"
)
_FUSED: Final = (
    "ONNX Runtime does not say what it fused; that is found by comparing the names in the model's "
    "graph with those in the graph that ran"
)


def profile_layers(
    directory: Path,
    info: VariantInfo,
    inputs: Tensors,
    *,
    limits: Limits,
    runs: int,
    machine: str,
    workspace: Path,
) -> LayerProfile:
    """Profile a variant; the protocol is `packager.steps.functions.ProfileLayers`.

    Raises:
        StepError: The profile is over `MAX_PROFILE_BYTES`, or has no inference.
    """
    kept = workspace / "ran.onnx" if info.options.get(PROVIDER_OPTION, CPU) == CPU else None

    def watch(options: onnxruntime.SessionOptions) -> None:
        options.enable_profiling = True
        options.profile_file_prefix = str(workspace / "profile")
        if kept is not None:  # another provider's compiled nodes cannot be written
            options.optimized_model_filepath = str(kept)
            if (directory / WEIGHTS_FILE).is_file():  # the graph with weights may be over 2 GiB
                entries = {"file_name": "ran.data", "min_size_in_bytes": "1024"}
                for key, value in entries.items():
                    options.add_session_config_entry(f"{_EXTERNAL}_{key}", value)

    native = open_model(directory, info, limits, watch)
    session = OnnxRuntimeSession(info, native)
    with tool("onnxruntime"):
        model = onnx.load(str(directory / info.model_file), load_external_data=False)
        ran = None if kept is None else onnx.load(str(kept), load_external_data=False)
        count = len((ran or model).graph.node)
        runs = affordable_runs(runs, count, WARM_UP_RUNS)
        for _ in range(WARM_UP_RUNS + runs):
            session.infer(inputs)
        written = Path(native.end_profiling())
    inferences = read_inferences(read_bounded(written, MAX_PROFILE_BYTES, StepError))[-runs:]
    chosen = [inferences[i] for i in faster_half([found.time_us for found in inferences])]
    if not chosen:
        raise StepError("ONNX Runtime wrote a profile without an inference")
    profile = LayerProfile(
        runtime=info.runtime,
        version=str(onnxruntime.__version__),
        threads=limits.threads,
        machine=machine,
        runs=len(chosen),
        inference_us=sum(found.time_us for found in chosen) / len(chosen),
        layers=_layers(chosen),
        arena_bytes=chosen[-1].arena_bytes,
    )
    return (
        profile if ran is None else _with_graph(profile, chosen[-1], inputs, model.graph, ran.graph)
    )


def _layers(inferences: list[Inference]) -> tuple[Layer, ...]:
    """Return the nodes with their mean times: all inferences run the same ones, branches apart."""
    found: dict[tuple[str, int], list[NodeRun]] = {}
    for inference in inferences:
        seen: dict[str, int] = {}
        for node in inference.nodes:
            again = seen[node.name] = seen.get(node.name, -1) + 1
            found.setdefault((node.name, again), []).append(node)
    return tuple(
        Layer(
            name=name,
            operator=nodes[0].operator,
            kernel=nodes[0].provider.removesuffix("ExecutionProvider"),
            precision=nodes[0].precision,
            time_us=sum(node.time_us for node in nodes) / len(inferences),
            calls=len(nodes) / len(inferences),
            output_bytes=None if nodes[0].output_bytes is None else sum(nodes[0].output_bytes),
        )
        for (name, _), nodes in found.items()
    )


def _with_graph(
    profile: LayerProfile,
    inference: Inference,
    inputs: Tensors,
    model: Any,  # noqa: ANN401 - onnx is untyped
    ran: Any,  # noqa: ANN401
) -> LayerProfile:
    """Add what the graphs tell: what was fused, the weights, and the memory of the values."""
    by_name = {node.name: node for node in _nodes(ran) if node.name}
    order = [by_name.get(node.name) for node in inference.nodes]
    weights_bytes = sum(_tensor_bytes(tensor) for tensor in ran.initializer)
    profile = msgspec.structs.replace(profile, weights_bytes=weights_bytes)
    if len(by_name) != len(ran.node) or None in order:
        note = "its nodes have no names of their own, so what was fused is not known"
        return msgspec.structs.replace(profile, notes=(note,))
    known = [node for node in order if node is not None]
    own = {tensor.name for tensor in model.initializer}
    given = [value.name for value in model.input if value.name not in own]
    fusions: Fusions = find_fusions(_nodes(model), known, given)
    fused = {node.name: found for node, found in zip(known, fusions.fused, strict=True)}
    return msgspec.structs.replace(
        profile,
        layers=tuple(
            msgspec.structs.replace(layer, fused=fused.get(layer.name, ()))
            for layer in profile.layers
        ),
        removed=fusions.removed,
        memory=_memory(known, inference, inputs, ran),
        notes=(_FUSED,),
    )


def _memory(
    order: list[GraphNode],
    inference: Inference,
    inputs: Tensors,
    ran: Any,  # noqa: ANN401 - onnx is untyped
) -> MemoryPlan | None:
    nodes: list[Node] = []
    for node, told in zip(order, inference.nodes, strict=True):
        made = [value for value in node.outputs if value]
        if told.output_bytes is None or len(told.output_bytes) != len(made):
            return None
        nodes.append(
            Node(
                name=node.name,
                inputs=node.inputs,
                outputs=tuple(zip(made, told.output_bytes, strict=True)),
            )
        )
    given = {name: tensor.nbytes for name, tensor in inputs.items()}
    peak = live_peak(nodes, given, [value.name for value in ran.output])
    return MemoryPlan(peak_bytes=peak.bytes, at=peak.at, source=_SOURCE)


def _nodes(graph: Any) -> list[GraphNode]:  # noqa: ANN401 - onnx is untyped
    return [
        GraphNode(
            name=node.name,
            operator=node.op_type,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
        )
        for node in graph.node
    ]


def _tensor_bytes(tensor: Any) -> int:  # noqa: ANN401 - onnx is untyped
    elements: int = math.prod(tensor.dims)
    return math.ceil(elements * _element_bytes(tensor.data_type))


def _element_bytes(kind: int) -> float:
    if kind == onnx.TensorProto.STRING:
        return 0.0
    if kind in {onnx.TensorProto.INT4, onnx.TensorProto.UINT4}:
        return 0.5
    return float(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
