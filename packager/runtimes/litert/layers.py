"""Lists the layers of a `.tflite` variant; LiteRT's Python package tells no times.

Its interpreter tells the operators, their tensors, and which of them a delegate took. Times per
operator exist only in the C++ tool `benchmark_model --enable_op_profiling`, which no Python
package brings.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from packager.layers.memory import Node, live_peak
from packager.layers.sums import precision_text
from packager.layers.values import Layer, LayerProfile, MemoryPlan
from packager.runtimes.litert import tflite_files
from packager.tools.quiet import tool
from runtime_adapters.litert.adapter import open_interpreter, operators_of
from runtime_adapters.litert.library import VERSION
from runtime_adapters.protocol import Limits, Tensors
from wire.package.variant import VariantInfo

_UNTOLD: Final = (
    "LiteRT's Python package has no profiler, so the times of the operators are not known; their "
    "order, types and sizes are"
)
_FUSED: Final = (
    "the operators are those of the file, named after what its converter fused into them; LiteRT "
    "does not tell what XNNPACK fuses in the part that it takes"
)
_SOURCE: Final = (
    "computed from the shapes that LiteRT reports, in the order of the model's operators, as if "
    "none worked in place"
)
_ROWS: Final = 2


def profile_layers(
    directory: Path,
    info: VariantInfo,
    inputs: Tensors,  # noqa: ARG001 - nothing is run
    *,
    limits: Limits,
    runs: int,  # noqa: ARG001
    machine: str,
    workspace: Path,  # noqa: ARG001
) -> LayerProfile:
    """Profile a variant; the protocol is `packager.steps.functions.ProfileLayers`."""
    with tool("litert"):
        interpreter = open_interpreter(directory / info.model_file, info, limits)
        operators, taken = operators_of(interpreter)
        tensors = {int(d["index"]): d for d in interpreter.get_tensor_details()}
        narrow = _narrow(directory / info.model_file)
        given = [int(detail["index"]) for detail in interpreter.get_input_details()]
        kept = [int(detail["index"]) for detail in interpreter.get_output_details()]
    made = {*given, *(int(tensor) for node in operators for tensor in node["outputs"])}
    for index in narrow & tensors.keys():
        tensors[index] |= {"narrow": True}
    rows = [_row(node, tensors, made, by_delegate=node["index"] in taken) for node in operators]
    nodes = [
        Node(
            name=row.name,
            inputs=tuple(str(int(i)) for i in node["inputs"]),
            outputs=tuple((str(int(i)), _bytes(tensors.get(int(i)))) for i in node["outputs"]),
        )
        for row, node in zip(rows, operators, strict=True)
    ]
    sizes = {str(index): _bytes(tensors.get(index)) for index in given}
    peak = live_peak(nodes, sizes, [str(index) for index in kept])
    read = {int(tensor) for node in operators for tensor in node["inputs"]}
    return LayerProfile(
        runtime=info.runtime,
        version=VERSION,
        threads=limits.threads,
        machine=machine,
        layers=tuple(rows),
        memory=MemoryPlan(peak_bytes=peak.bytes, at=peak.at, source=_SOURCE),
        weights_bytes=sum(_bytes(tensors.get(index)) for index in read - made),
        notes=(_FUSED,),
        untold=_UNTOLD,
    )


def _row(
    node: dict[str, Any], tensors: dict[int, dict[str, Any]], made: set[int], *, by_delegate: bool
) -> Layer:
    given = [tensors[int(i)] for i in node["inputs"] if int(i) in tensors]
    data = [d for d in given if len(d["shape"]) >= _ROWS or int(d["index"]) in made]
    outputs = [tensors[int(i)] for i in node["outputs"] if int(i) in tensors]
    # Converters name a tensor after all layers that they fused into its operator.
    names = str(outputs[0]["name"]).split(";") if outputs else [str(node["op_name"])]
    return Layer(
        name=names[0],
        operator=str(node["op_name"]),
        kernel="XNNPACK" if by_delegate else "CPU",
        precision=precision_text([_kind(d) for d in data], _kind(outputs[0]) if outputs else ""),
        output_bytes=sum(map(_bytes, outputs)),
        fused=tuple(names) if len(names) > 1 else (),
    )


def _narrow(path: Path) -> set[int]:
    """Return the tensors of 4-bit numbers, which LiteRT's Python package calls int8."""
    tensors = tflite_files.read(path).subgraphs[0].tensors
    return {i for i, tensor in enumerate(tensors) if tensor.type == schema.TensorType.INT4}


def _kind(detail: dict[str, Any]) -> str:
    if "narrow" in detail:
        return "int4"
    return str(np.dtype(detail["dtype"]).name)


def _bytes(detail: dict[str, Any] | None) -> int:
    if detail is None:
        return 0
    elements = math.prod(int(size) for size in detail["shape"])
    if "narrow" in detail:
        return (elements + 1) // 2
    return elements * int(np.dtype(detail["dtype"]).itemsize)
