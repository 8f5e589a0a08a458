"""Finds branches of a model that no sample takes: of these, no figure tells anything.

Rules:
- Only an `If` of the outer graph is looked at: what a body computes cannot be seen from outside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx

from packager.runtimes.common.onnx_files import ranks_in, session_of
from packager.samples.store import sample
from packager.sources.onnx_graph import node_name, stored_names
from packager.sources.onnx_model import model_bytes
from runtime_adapters.protocol import Tensors

_BRANCHES = {True: "then_branch", False: "else_branch"}


def untaken_branches(model: Path, inputs: Tensors) -> tuple[str, ...]:
    """Say which branches no sample takes.

    Args:
        model: An ONNX model that ONNX Runtime runs.
        inputs: Samples by input.

    Returns:
        A line for each; nothing where the model has no `If`.
    """
    probe = onnx.load(str(model))
    stored = stored_names(probe.graph)
    nodes = [n for n in probe.graph.node if n.op_type == "If" and n.input[0] not in stored]
    if not nodes:
        return ()
    taken: list[set[bool]] = [set() for _ in nodes]
    session = session_of(_asking(probe, nodes))
    ranks = ranks_in(session)
    for index in range(len(next(iter(inputs.values())))):
        feeds = {n: a for n, a in sample(inputs, index, ranks).items() if n in ranks}
        for seen, answer in zip(taken, session.run(None, feeds), strict=True):
            seen.add(bool(np.asarray(answer).reshape(-1)[0]))
    return tuple(
        f"warning: no evaluation sample takes the {name} of the node {node_name(node)}, so "
        "nothing is known of any variant there; give samples that take it"
        for node, seen in zip(nodes, taken, strict=True)
        for value, name in _BRANCHES.items()
        if value not in seen
    )


def _asking(probe: Any, nodes: list[Any]) -> bytes:  # noqa: ANN401 - onnx is untyped
    """Return a model that answers the conditions of nodes and nothing else."""
    del probe.graph.output[:]
    for index, node in enumerate(nodes):
        name = f"edgefleet_condition_{index}"
        probe.graph.node.append(onnx.helper.make_node("Identity", [node.input[0]], [name]))
        probe.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, None)
        )
    return model_bytes(probe)
