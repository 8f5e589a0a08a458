"""Adds a batch axis to models without one, so that a sample is one call of the model.

Data, adapters and golden samples count samples along the first axis of every input and output.
Where a model's tensors begin with something else, nodes around the graph add a leading axis of 1.

Rules:
- A model whose inputs and outputs all begin with 1, or all with a size that varies, is left alone.
- Inputs with a batch of 1 keep their form; only outputs without that axis get one.
- Any other model (a fixed batch of many, a scalar, a recurrent state with its batch in the middle)
  is called whole: one sample is all that one call takes.
- What applications then send or get in another form is told: see `changed_interface`.
- Inputs and outputs keep their names; values inside the graph get other names.
"""

from __future__ import annotations

from typing import Any, Final

import onnx
from onnx import helper

from packager.plan.figures import ModelFacts
from packager.sources.onnx_checks import opset_of, tensor_spec
from packager.sources.onnx_graph import all_graphs, stored_names
from packager.sources.onnx_model import with_shapes
from wire.package.manifest import TensorSpec

_AXES_AS_INPUT: Final = 13
"""From this opset on `Squeeze` and `Unsqueeze` take their axes as an input."""

_SUFFIX: Final = "__one_call"
_ANY: Final = -1


def with_batch_axis(model: Any) -> tuple[Any, tuple[str, ...]]:  # noqa: ANN401 - onnx is untyped
    """Give a model a batch axis where it has none.

    Args:
        model: A checked model; not changed.

    Returns:
        A copy whose inputs and outputs begin with a batch axis, and notes on what was done; the
        model itself where nothing was to be done.

    Raises:
        ModelError: An input or output of unknown rank or unsupported type.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    weights = stored_names(copy.graph)
    feeds = [value for value in copy.graph.input if value.name not in weights]
    inputs = [tensor_spec(value, "input") for value in feeds]
    loosened = _loosen(copy)
    outputs = [tensor_spec(value, "output") for value in with_shapes(copy).graph.output]
    if not inputs or not outputs:
        return model, ()
    widen_inputs, widened, note = _choice(inputs, outputs)
    if not note and loosened:
        return copy, (f"outputs have the batch of the inputs, not 1: {loosened}",)
    if not note:
        return model, ()
    if not widen_inputs:
        for value in feeds:
            value.type.tensor_type.shape.dim[0].dim_value = 1
    _widen(copy, feeds if widen_inputs else [], widened)
    return copy, (note,)


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


def _choice(inputs: list[TensorSpec], outputs: list[TensorSpec]) -> tuple[bool, set[str], str]:
    """Decide whether to widen the inputs and which outputs to widen, and write the note."""
    firsts = {spec.shape[0] if spec.shape else 0 for spec in inputs}
    everything = {spec.name for spec in outputs}
    whole = "it has no common batch axis: one sample is all that one call takes, in an axis of 1"
    if not firsts <= {1, _ANY}:
        return True, everything, whole
    one = 1 in firsts
    odd = {s.name for s in outputs if not s.shape or s.shape[0] not in ({1, _ANY} if one else {-1})}
    if odd and not one:
        return True, everything, whole
    if odd:
        names = ", ".join(sorted(odd))[:80]
        return False, odd, f"outputs without a batch axis got one of 1: {names}"
    if len(firsts) > 1:
        return False, set(), "the batch is 1 for all inputs, as for some"
    return False, set(), ""


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


def _widen(model: Any, inputs: list[Any], outputs: set[str]) -> None:  # noqa: ANN401 - untyped
    """Add an axis of 1 in front of inputs and outputs, by nodes at the edge of the graph."""
    graph = model.graph
    given = {value.name for value in inputs}
    made = {name for node in graph.node for name in node.output} | stored_names(graph)
    inner = {name: name + _SUFFIX for name in given | (outputs & made)}
    for part in all_graphs(graph):
        _rename(part, inner)
    del graph.value_info[:]
    axes = f"axes{_SUFFIX}"
    new = opset_of(model) >= _AXES_AS_INPUT
    first, last = [], []
    if new:
        axis = helper.make_tensor(axes, onnx.TensorProto.INT64, [1], [0])
        first.append(helper.make_node("Constant", [], [axes], name=axes, value=axis))
    attributes = {} if new else {"axes": [0]}
    for value in inputs:
        names = [value.name, *([axes] if new else [])]
        node = helper.make_node("Squeeze", names, [inner[value.name]], **attributes)
        first.append(node)
        _prepend(value)
    for value in graph.output:
        if value.name in outputs and value.name in made:
            names = [inner[value.name], *([axes] if new else [])]
            last.append(helper.make_node("Unsqueeze", names, [value.name], **attributes))
        if value.name in outputs:
            _prepend(value)
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)


def _rename(graph: Any, inner: dict[str, str]) -> None:  # noqa: ANN401 - onnx is untyped
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name in inner:
                    names[index] = inner[name]
    for tensor in graph.initializer:
        tensor.name = inner.get(tensor.name, tensor.name)
    for tensor in graph.sparse_initializer:
        tensor.values.name = inner.get(tensor.values.name, tensor.values.name)


def _prepend(value: Any) -> None:  # noqa: ANN401 - onnx is untyped
    shape = value.type.tensor_type.shape
    sizes = [*shape.dim]
    del shape.dim[:]
    shape.dim.add(dim_value=1)
    shape.dim.extend(sizes)
