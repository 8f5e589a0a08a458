"""Tensor types by name, and the check that every input passes before a runtime sees it.

Rules:
- An input that the variant does not declare is refused and never cast, because a wrong type is the
  caller's mistake.
- Bytes in another machine's order are refused; some runtimes would read them as other numbers.
- An array is copied only when it is not C-contiguous or not aligned.
- Most calls look like the call before, so the check first compares with that one. This saves time:
  after a model has filled the processor's caches, each line of Python costs several times what it
  costs alone.
- `BYTES` tensors are object arrays whose elements are bytes or text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from runtime_adapters.errors import InputError
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.tensors import Datatype, TensorSpec

ANY: Final = -1
"""A dimension that may vary."""

DTYPES: Final[dict[Datatype, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
"""Types of the Open Inference Protocol as NumPy holds them, in this machine's byte order."""

_DATATYPES: Final[dict[np.dtype[Any], Datatype]] = {dtype: name for name, dtype in DTYPES.items()}


def dtype_of(datatype: Datatype) -> np.dtype[Any]:
    """Return NumPy's type for a type of the Open Inference Protocol."""
    return DTYPES[datatype]


def datatype_of(dtype: np.dtype[Any]) -> Datatype:
    """Return the Open Inference Protocol's type for a type of NumPy.

    Args:
        dtype: The type of an array.

    Returns:
        The name.

    Raises:
        InputError: The type has no name, or is in another byte order.
    """
    name = _DATATYPES.get(dtype)
    if name is None:
        raise InputError(f"the type {dtype} has no name in the Open Inference Protocol")
    return name


class InputCheck:
    """The check of a variant's inputs, prepared once so that a call costs little.

    Args:
        specs: The declared inputs.
    """

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self._rules = tuple(
            (
                spec.name,
                DTYPES[spec.datatype],
                spec.shape,
                tuple((axis, size) for axis, size in enumerate(spec.shape) if size != ANY),
            )
            for spec in specs
        )
        self._names = frozenset(rule[0] for rule in self._rules)
        self._remembers = not any(dtype.hasobject for _, dtype, _, _ in self._rules)
        self.form: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...] = ()
        """Name, type and shape of the inputs that passed last; none where they can be text."""

    def __call__(self, inputs: Mapping[str, object]) -> Tensors:
        """Check the inputs of one call.

        Args:
            inputs: Arrays by name.

        Returns:
            The same arrays in declared order, copied where a runtime could not read them in place.

        Raises:
            InputError: A name, type, rank or size that is not declared.
        """
        checked: Tensors = {}
        for name, dtype, shape in self.form:
            tensor = inputs.get(name)
            if (
                type(tensor) is not np.ndarray
                or tensor.dtype is not dtype
                or tensor.shape != shape
                or not tensor.flags.carray
            ):
                return self._checked(inputs)
            checked[name] = tensor
        return checked if checked and len(inputs) == len(checked) else self._checked(inputs)

    def _checked(self, inputs: Mapping[str, object]) -> Tensors:
        if inputs.keys() != self._names:
            raise InputError(self._wrong_names(inputs))
        checked: Tensors = {}
        for name, dtype, shape, fixed in self._rules:
            tensor = inputs[name]
            if not isinstance(tensor, np.ndarray) or tensor.dtype != dtype:
                raise InputError(f"input {name!r} is {_kind(tensor)}, but the model takes {dtype}")
            sizes = tensor.shape
            if len(sizes) != len(shape) or any(sizes[axis] != size for axis, size in fixed):
                raise InputError(
                    f"input {name!r} has shape {list(sizes)}, but the model takes {list(shape)}"
                )
            checked[name] = _in_place(name, tensor)
        if self._remembers:
            self.form = tuple(
                (name, dtype, checked[name].shape) for name, dtype, _, _ in self._rules
            )
        return checked

    def _wrong_names(self, inputs: Mapping[str, object]) -> str:
        given = {str(name) for name in inputs}
        missing = sorted(self._names - given)
        unknown = sorted(given - self._names)
        parts = [f"input {name!r} is missing" for name in missing[:1]]
        parts += [f"there is no input {name[:80]!r}" for name in unknown[:1]]
        return " and ".join(parts)


def check_inputs(specs: Iterable[TensorSpec], inputs: Mapping[str, object]) -> Tensors:
    """Check inputs against their declaration.

    Args:
        specs: The declared inputs.
        inputs: Arrays by name.

    Returns:
        The same arrays in declared order, copied where a runtime could not read them in place.

    Raises:
        InputError: A name, type, rank or size that is not declared.
    """
    return InputCheck(specs)(inputs)


def _in_place(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype.hasobject:
        if not all(isinstance(element, bytes | str) for element in tensor.flat):
            raise InputError(f"input {name!r} has an element that is neither bytes nor text")
        return np.ascontiguousarray(tensor).reshape(tensor.shape)
    flags = tensor.flags
    if flags.c_contiguous and flags.aligned:
        return tensor
    return tensor.copy(order="C")


def _kind(tensor: object) -> str:
    return str(tensor.dtype) if isinstance(tensor, np.ndarray) else f"a {type(tensor).__name__}"
