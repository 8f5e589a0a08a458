"""Bounds the indices of StableHLO modules as the language does, because IREE does not always do it.

StableHLO clamps the index of a gather into the operand, and drops what a scatter would write beyond
it. IREE 3.13 does the same for slices and for gathers by several coordinates. It turns a gather by
one coordinate into a plain look-up and a scatter into a plain write; there an index out of range
ends the process.

Rules:
- This module clamps the index before a gather by one coordinate, which changes no answer.
- A scatter by indices that depend on the inputs is refused: it would need a mask of its updates.

Source:
    StableHLO specification: gather, scatter, clamp.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from iree.compiler import ir

from packager.errors import ModelError

_UNBOUNDED: Final = frozenset({"dynamic_gather", "torch_index_select"})
_NUMBER: Final = re.compile(r"-?\d+")


def bound_indices(operation: Any, kind: str) -> None:  # noqa: ANN401 - the bindings are untyped
    """Make an operation safe against indices out of range.

    Args:
        operation: An operation of a StableHLO module or a portable artefact; changed.
        kind: Its operator, without dialect and version.

    Raises:
        ModelError: It cannot be made safe.
    """
    if kind == "gather":
        _bound(operation)
    elif kind == "scatter":
        indices = operation.operands[(len(operation.operands) - 1) // 2]
        if _varies(indices, set()):
            raise ModelError(
                "the module writes to indices that depend on the inputs, and IREE does not check "
                "such indices",
                remedy="write the function without .at[].set(), for example with a one-hot product",
            )
    elif kind in _UNBOUNDED:
        raise ModelError(f"the module holds {kind}, and IREE does not check its indices")


def _bound(gather: Any) -> None:  # noqa: ANN401 - as above
    coordinates, slices = _coordinates(gather)
    if len(coordinates) != 1:  # a gather by several coordinates is bounded by IREE
        return
    operand, indices = gather.operands[0], gather.operands[1]
    sizes = [int(size) for size in _sizes(str(operand.type))]
    axis = coordinates[0]
    dialect = gather.name.partition(".")[0]
    element = re.findall(r"(u?i)(\d+)", str(indices.type))[-1]
    dtype = np.dtype(f"{'uint' if element[0] == 'ui' else 'int'}{element[1]}")
    greatest = min(sizes[axis] - slices[axis], int(np.iinfo(dtype).max))
    spelled = f"{element[0]}{element[1]}"
    with ir.InsertionPoint(gather), ir.Location.unknown():
        low, high = (_constant(dialect, value, spelled) for value in (0, greatest))
        clamp = ir.Operation.create(
            "vhlo.clamp_v1" if dialect == "vhlo" else "stablehlo.clamp",
            results=[indices.type],
            operands=[low, indices, high],
        )
    gather.operands[1] = clamp.result


def _constant(dialect: str, value: int, element: str) -> Any:  # noqa: ANN401 - as above
    tensor = f"dense<{value}> : tensor<{element}>"
    if dialect == "vhlo":
        name, kind = "vhlo.constant_v1", f"!vhlo.tensor_v1<!vhlo.{element}_v1>"
        attribute = f"#vhlo.tensor_v1<{tensor}>"
    else:
        name, kind, attribute = "stablehlo.constant", f"tensor<{element}>", tensor
    made = ir.Operation.create(
        name,
        results=[ir.Type.parse(kind)],
        attributes={"value": ir.Attribute.parse(attribute)},
    )
    return made.result


def _coordinates(gather: Any) -> tuple[list[int], list[int]]:  # noqa: ANN401 - as above
    """Return the axes that an index points into, and the sizes of a slice."""
    attributes = gather.attributes
    if "dimension_numbers" in attributes:
        _, _, told = str(attributes["dimension_numbers"]).partition("start_index_map = [")
        return _numbers(told.partition("]")[0]), _numbers(
            str(attributes["slice_sizes"]).partition(":")[2]
        )
    return _dense(str(attributes["start_index_map"])), _dense(str(attributes["slice_sizes"]))


def _dense(text: str) -> list[int]:
    """Return the numbers of a dense attribute, which writes equal numbers only once."""
    values = _numbers(text.partition("dense<")[2].partition(">")[0])
    count = int(_sizes(text.rpartition("tensor<")[2])[0])
    return values * count if len(values) == 1 else values


def _sizes(text: str) -> list[str]:
    return re.findall(r"(\d+)x", text)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _NUMBER.findall(text)]


def _varies(value: Any, seen: set[Any]) -> bool:  # noqa: ANN401 - as above
    """Tell whether a value depends on an argument of the function that it is in."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return True
    if owner in seen:
        return False
    seen.add(owner)
    return any(_varies(operand, seen) for operand in owner.operands)
