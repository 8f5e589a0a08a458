"""TVM's lowered `main` as plain data: tensors, their places, and the order of kernel calls.

Rules:
- A program is straight-line code on tensors of known shapes; an error names anything else.
- A place is within the arena (one block of memory for all that is computed) or within the
  constants (one block of bytes); every tensor begins at a multiple of `ALIGNMENT`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from packager.errors import StepError

ALIGNMENT: Final = 64
"""Vectorised kernels fault on tensors with less."""

MAX_BLOCK_BYTES: Final = 1 << 30
"""Limit of the arena, and of the constants: code reaches two gigabytes at most."""

_SCOPES: Final = frozenset({"relax.memory.kill_tensor", "relax.memory.kill_storage"})

_NAMES: Final = ("name", "name_hint", "global_symbol")
"""Attributes with the name of an operator, a kernel or a foreign function."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor with its place."""

    dtype: str
    """As TVM spells it, such as `float32` or `bool`."""

    shape: tuple[int, ...]
    constant: bool
    """Whether it lies among the constants, else in the arena."""

    offset: int

    @property
    def size_bytes(self) -> int:
        """Return its size, in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel on tensors, given by their positions."""

    kernel: str
    arguments: tuple[int, ...]


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A model without its kernels."""

    tensors: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arena_bytes: int
    constants: bytes


def program_of(function: Any) -> Program:  # noqa: ANN401 - tvm is untyped
    """Read a lowered `main`.

    Args:
        function: The function, as `lowering.lowered` leaves it.

    Returns:
        The program.

    Raises:
        StepError: Something that is not straight-line code on tensors of known shapes.
    """
    reader = _Reader()
    inputs = tuple(reader.parameter(variable) for variable in function.params)
    for block in function.body.blocks:
        for binding in block.bindings:
            if not hasattr(binding, "value"):
                raise StepError(f"tvm left a {type(binding).__name__} in the model")
            reader.bind(binding.var, binding.value)
    outputs = reader.values(function.body.body)
    return Program(
        tensors=tuple(reader.tensors),
        calls=tuple(reader.calls),
        inputs=inputs,
        outputs=outputs,
        arena_bytes=max(reader.arena_bytes, ALIGNMENT),
        constants=b"".join(reader.pieces),
    )


class _Reader:
    """Follows the bindings of a function."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.calls: list[Call] = []
        self.arena_bytes = 0
        self.pieces: list[bytes] = []
        self._constants_bytes = 0
        self._known: dict[Any, tuple[int, ...]] = {}
        """Variable or constant to the positions of its tensors: several for a tuple."""

        self._storages: dict[Any, int] = {}

    def parameter(self, variable: Any) -> int:  # noqa: ANN401 - tvm is untyped
        shape, dtype = _shape(variable.ty.shape), _dtype(variable.ty.dtype)
        position = self._allocated(shape, dtype)
        self._known[variable] = (position,)
        return position

    def bind(self, variable: Any, value: Any) -> None:  # noqa: ANN401 - tvm is untyped
        kind = type(value).__name__
        if kind != "Call":
            self._known[variable] = self.values(value)
            return
        name = next((str(getattr(value.op, key)) for key in _NAMES if hasattr(value.op, key)), "")
        arguments = value.args
        if name == "relax.memory.alloc_storage":
            self._storages[variable] = self._reserved(_shape(arguments[0])[0])
        elif name == "relax.memory.alloc_tensor":
            offset = self._storages[arguments[0]] + int(arguments[1].value)
            shape, dtype = _shape(arguments[2]), _dtype(arguments[3].value)
            self._known[variable] = (self._placed(shape, dtype, offset),)
        elif name == "relax.builtin.alloc_tensor":
            shape, dtype = _shape(arguments[0]), _dtype(arguments[1].value)
            self._known[variable] = (self._allocated(shape, dtype),)
        elif name == "relax.reshape":
            (source,) = self.values(arguments[0])
            view = msgspec.structs.replace(self.tensors[source], shape=_shape(arguments[1]))
            self._known[variable] = (self._added(view),)
        elif type(value.op).__name__ == "GlobalVar":
            used = tuple(p for argument in arguments for p in self.values(argument))
            self.calls.append(Call(kernel=name, arguments=used))
        elif name not in _SCOPES:
            raise StepError(f"tvm has no kernel for {name or 'a part of the model'}")

    def values(self, expression: Any) -> tuple[int, ...]:  # noqa: ANN401 - tvm is untyped
        """Return the positions of an expression's tensors.

        Raises:
            StepError: It is not a tensor, or not a tuple of tensors.
        """
        if expression in self._known:
            return self._known[expression]
        kind = type(expression).__name__
        if kind == "GenericConst":
            self._known[expression] = (self._constant(expression.value.numpy()),)
            return self._known[expression]
        if kind == "Tuple":
            parts = [self.values(field) for field in expression.fields]
            if all(len(part) == 1 for part in parts):
                return tuple(part[0] for part in parts)
        if kind == "TupleGetItem":
            return (self.values(expression.tuple_value)[expression.index],)
        raise StepError(f"tvm left a {kind} in the model")

    def _constant(self, array: NDArray[Any]) -> int:
        content = array.tobytes()
        offset = self._constants_bytes
        self.pieces.append(content + bytes(-len(content) % ALIGNMENT))
        self._constants_bytes += len(self.pieces[-1])
        _check_block("constants", self._constants_bytes)
        dtype = _dtype(str(array.dtype))
        return self._added(Tensor(dtype=dtype, shape=array.shape, constant=True, offset=offset))

    def _allocated(self, shape: tuple[int, ...], dtype: str) -> int:
        offset = self._reserved(math.prod(shape) * np.dtype(dtype).itemsize)
        return self._placed(shape, dtype, offset)

    def _placed(self, shape: tuple[int, ...], dtype: str, offset: int) -> int:
        return self._added(Tensor(dtype=dtype, shape=shape, constant=False, offset=offset))

    def _reserved(self, size_bytes: int) -> int:
        offset = self.arena_bytes
        self.arena_bytes += -(-size_bytes // ALIGNMENT) * ALIGNMENT
        _check_block("intermediate results", self.arena_bytes)
        return offset

    def _added(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _shape(expression: Any) -> tuple[int, ...]:  # noqa: ANN401 - tvm is untyped
    """Return a known shape.

    Raises:
        StepError: A size is not known before the model runs.
    """
    sizes = getattr(expression, "values", None)
    if sizes is None or any(not hasattr(size, "value") for size in sizes):
        raise StepError(
            "the model has a shape that depends on its inputs",
            remedy="export it with fixed sizes; only the batch size may vary",
        )
    return tuple(int(size.value) for size in sizes)


def _dtype(name: Any) -> str:  # noqa: ANN401 - tvm is untyped
    """Return the name of a type whose elements are whole bytes that NumPy knows.

    Raises:
        StepError: Another type.
    """
    text = str(name)
    try:
        known = np.dtype(text).kind in "biuf"
    except TypeError:
        known = False
    if not known:
        raise StepError(
            f"the model computes in {text}, and a compiled library cannot hold that type"
        )
    return text


def _check_block(what: str, size_bytes: int) -> None:
    if size_bytes > MAX_BLOCK_BYTES:
        raise StepError(f"the model's {what} are over {MAX_BLOCK_BYTES} bytes")
