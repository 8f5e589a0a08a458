"""Finds what one sample of a model is, and leaves its inputs and outputs as they are.

Rules:
- Where all inputs begin with a batch of any size, or all with 1, a sample is a batch of one.
- Where some inputs begin with 1 and others with any size, the batch is 1 for all: this is the only
  change of shapes, and it is told (see `changed_interface`).
- Any other model (a fixed batch of many, a scalar, a recurrent state with its batch in the middle)
  is called whole: one sample is all that one call takes, and its axes are the model's own.
- Names, types and the number of axes never change.
"""

from __future__ import annotations

from typing import Any, Final

import onnx

from packager.plan.figures import ModelFacts
from packager.samples.store import unit_of
from packager.sources.onnx_checks import tensor_spec
from packager.sources.onnx_graph import stored_names
from packager.sources.onnx_model import with_shapes

_ANY: Final = -1


def with_one_batch(model: Any) -> tuple[Any, tuple[str, ...]]:  # noqa: ANN401 - onnx is untyped
    """Give the inputs of a model the same batch, where they have one.

    Args:
        model: A checked model; not changed.

    Returns:
        A copy whose inputs all begin with the same batch, and notes on what was done and on what
        one sample is; the model itself where nothing was to be done.

    Raises:
        ModelError: An input or output of unknown rank or unsupported type.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    weights = stored_names(copy.graph)
    feeds = [value for value in copy.graph.input if value.name not in weights]
    inputs = [tensor_spec(value, "input") for value in feeds]
    loosened = _loosen(copy)
    for value in with_shapes(copy).graph.output:
        tensor_spec(value, "output")
    if not inputs:
        return model, ()
    if unit_of(inputs) == "calls":
        return model, ("it has no common batch axis: one sample is all that one call takes",)
    if len({spec.shape[0] for spec in inputs}) > 1:
        for value in feeds:
            value.type.tensor_type.shape.dim[0].dim_value = 1
        return copy, ("the batch is 1 for all inputs, as for some",)
    if loosened:
        return copy, (f"outputs have the batch of the inputs, not 1: {loosened}",)
    return model, ()


def changed_interface(model: Any, facts: ModelFacts) -> tuple[str, ...]:  # noqa: ANN401 - untyped
    """Say what applications send or get in another form than a model has it.

    Args:
        model: The user's model, checked.
        facts: Those of what is built from it.

    Returns:
        A line for each input or output whose type or shape is another one.

    Raises:
        ModelError: An input or output of the model is of unknown rank or unsupported type.
    """
    graph = with_shapes(model).graph
    weights = stored_names(graph)
    lines = []
    for role, values, specs in (
        ("input", graph.input, facts.inputs),
        ("output", graph.output, facts.outputs),
    ):
        made = {spec.name: spec for spec in specs}
        for value in values:
            if value.name in weights:
                continue
            old, new = tensor_spec(value, role), made[value.name]
            if (old.datatype, old.shape) != (new.datatype, new.shape):
                lines.append(
                    f"{role} {old.name[:80]!r} is {new.datatype} {list(new.shape)} for "
                    f"applications, in the model {old.datatype} {list(old.shape)}"
                )
    return tuple(lines)


def _loosen(model: Any) -> str:  # noqa: ANN401 - onnx is untyped
    """Let the batch of an output vary where it is declared as 1 but follows an input's batch.

    Exporters copy a batch of 1 into the declared shapes of models that take any batch. The function
    returns the names of these outputs.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = {value.name: value.type.tensor_type for value in with_shapes(bare).graph.output}
    names = []
    for value in model.graph.output:
        declared, found = value.type.tensor_type.shape, inferred[value.name].shape
        if declared.dim and found.dim and declared.dim[0].dim_value == 1:
            symbol = found.dim[0].dim_param
            if symbol:
                declared.dim[0].dim_param = symbol
                names.append(value.name)
    return ", ".join(sorted(names))[:80]
