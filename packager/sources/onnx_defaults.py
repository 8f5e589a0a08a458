"""Inputs of ONNX models that have a default: an initializer of the same name.

Rules:
- Such an input becomes a constant in every variant, unless the samples carry it. Then it is an
  input like any other: not every runtime knows defaults, and what no sample tries is not proven.
- Older exporters list every weight among the inputs. Those are weights, and nobody sends them; but
  what the samples carry is an input there, too.

Source:
    ONNX, docs/IR.md ("Graphs"): an initializer with the name of an input is its default value.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import onnx

from packager.sources.onnx_checks import tensor_spec
from packager.sources.onnx_graph import stored_names

MAX_TOLD: Final = 8
"""A model with more defaults gets one line for the rest."""


def default_names(graph: Any) -> tuple[str, ...]:  # noqa: ANN401 - onnx is untyped
    """Return the inputs of a graph that have a default, in their order."""
    stored = stored_names(graph)
    return tuple(value.name for value in graph.input if value.name in stored)


def with_inputs(model: Any, names: Collection[str]) -> Any:  # noqa: ANN401 - onnx is untyped
    """Make inputs of a model required.

    Args:
        model: The model; not changed.
        names: Inputs that have a default.

    Returns:
        A copy without these defaults; the model itself where there are none.
    """
    if not names:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    dense = [tensor for tensor in graph.initializer if tensor.name not in names]
    sparse = [t for t in graph.sparse_initializer if t.values.name not in names]
    del graph.initializer[:], graph.sparse_initializer[:]
    graph.initializer.extend(dense)
    graph.sparse_initializer.extend(sparse)
    return copy


def told_defaults(model: Any, kept: Collection[str]) -> tuple[str, ...]:  # noqa: ANN401 - onnx is untyped
    """Say what became of inputs that have a default.

    Args:
        model: The user's model, checked.
        kept: Those that the samples carry.

    Returns:
        A line for each input, and one for those beyond `MAX_TOLD`; nothing of weights that an
        older exporter listed among the inputs.

    Raises:
        ModelError: Such an input is of an unsupported type.
    """
    names = default_names(model.graph)
    if len(names) == len(stored_names(model.graph)):  # all weights are listed
        names = tuple(name for name in names if name in kept)
    specs = [tensor_spec(v, "input") for v in model.graph.input if v.name in names[:MAX_TOLD]]
    lines = []
    for spec in specs:
        what = f"input {spec.name[:80]!r} {spec.datatype} {list(spec.shape)}"
        lines.append(
            f"{what} has a default in the model, but the samples carry it: applications must send "
            "it"
            if spec.name in kept
            else f"{what} is its default, a constant, because no samples carry it: applications "
            "cannot send it"
        )
    if more := len(names) - len(specs):
        lines.append(f"{more} more inputs have a default and are treated by the same rule")
    return tuple(lines)
