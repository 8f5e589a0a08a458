"""Models that TVM compiled ahead of time to a library of their own; no TVM is needed.

Options: none.

Rules:
- Compiled code checks nothing, so the adapter checks types, shapes and the range of values that are
  indices: an index out of range reads foreign memory or ends the process.
- The adapter answers a batch sample by sample. Each library has one block of memory to work in, so
  its sessions take turns.
- `Limits.threads` has no effect: the code runs in the calling thread. `Limits.memory_bytes` has no
  effect here: the worker process limits itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from runtime_adapters.batches import batch_rows, is_batch
from runtime_adapters.checks import (
    CLOSED,
    REBUILD,
    check_declaration,
    check_options,
    load_fault,
    model_path,
    shortened,
)
from runtime_adapters.compiled import check_ranges, model_tensors, sample_bytes
from runtime_adapters.errors import InferenceError, LoadError
from runtime_adapters.protocol import (
    Adapter,
    Limits,
    Session,
    SessionDescription,
    Tensor,
    Tensors,
)
from runtime_adapters.tensors import DTYPES, InputCheck
from runtime_adapters.tvm.abi import VERSION
from runtime_adapters.tvm.library import Addresses, Library
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

DEVICE: Final = "CPU"
_BYTE: Final = ctypes.c_char


class TvmSession:
    """A loaded library.

    Args:
        info: The variant's declaration.
        library: The library.
    """

    def __init__(self, info: VariantInfo, library: Library) -> None:
        self._info = info
        self._library: Library | None = library
        self._lock = library.lock
        model = library.model
        declared = {spec.name: spec for spec in info.inputs}
        self._check = InputCheck(declared[spec.name] for spec in model.inputs)
        self._ranges = model.ranges
        self._batched = [spec.name for spec in model.inputs if is_batch(spec)]
        self._sources = (ctypes.c_void_p * len(model.inputs))()
        self._sinks = (ctypes.c_void_p * len(model.outputs))()
        self._steps = [*_steps(self._sources, model.inputs), *_steps(self._sinks, model.outputs)]
        positions = {spec.name: position for position, spec in enumerate(model.outputs)}
        self._outputs = [(positions[spec.name], spec.name) for spec in info.outputs]
        self._forms = [(DTYPES[s.datatype], s.shape, is_batch(s)) for s in model.outputs]

    def infer(self, inputs: Tensors) -> Tensors:
        """Run the model, once for each sample.

        Args:
            inputs: One array per declared input.

        Returns:
            One array per declared output, which nothing else refers to.

        Raises:
            InferenceError: The session is closed, the batches differ in size, or the code failed.
        """
        if self._library is None:
            raise InferenceError(CLOSED)
        checked = self._check(inputs)
        if self._ranges:
            check_ranges(checked, self._ranges)
        rows = batch_rows(checked, self._batched)
        answers = [
            np.empty((rows, *shape[1:]) if batched else shape, dtype)
            for dtype, shape, batched in self._forms
        ]
        with self._lock:
            if self._library is None:  # closed in the meantime
                raise InferenceError(CLOSED)
            for position, tensor in enumerate(checked.values()):
                self._sources[position] = _address(tensor)
            for position, tensor in enumerate(answers):
                self._sinks[position] = _address(tensor)
            self._run(self._library, rows)
        return {name: answers[position] for position, name in self._outputs}

    def describe(self) -> SessionDescription:
        """Say what the session is."""
        return SessionDescription(
            runtime="tvm",
            version=str(VERSION),
            devices=(DEVICE,),
            inputs=self._info.inputs,
            outputs=self._info.outputs,
        )

    def close(self) -> None:
        """Unload the library, after a call that is under way."""
        with self._lock:
            library, self._library = self._library, None
            if library is not None:
                library.close()

    def _run(self, library: Library, rows: int) -> None:
        """Run all samples; a tensor without a batch is the same for each of them.

        Raises:
            InferenceError: The code failed.
        """
        for row in range(rows):
            if row:
                for addresses, position, step_bytes in self._steps:
                    addresses[position] = (addresses[position] or 0) + step_bytes
            if reason := library.run(self._sources, self._sinks):
                raise InferenceError(f"tvm failed: {shortened(reason)}")


class TvmAdapter:
    """The adapter for compiled models."""

    name = "tvm"

    def version(self) -> str:
        """Return the version of the interface that libraries must have."""
        return str(VERSION)

    def load(self, directory: Path, info: VariantInfo, limits: Limits) -> Session:
        """Load a compiled model.

        Args:
            directory: The variant's directory.
            info: The variant's declaration.
            limits: What the session may use.

        Returns:
            A session that is ready.

        Raises:
            LoadError: Not a compiled model for this machine, or it is not what is declared.
        """
        path = model_path(directory, info, limits)
        check_options(info, {})
        try:
            library = Library(path.resolve())
        except LoadError as exc:
            raise LoadError(load_fault(info, exc.message), remedy=REBUILD) from exc
        try:
            check_declaration(
                info, model_tensors(library.model.inputs), model_tensors(library.model.outputs)
            )
        except LoadError:
            with library.lock:
                library.close()
            raise
        return TvmSession(info, library)


def _steps(
    addresses: Addresses, specs: Iterable[TensorSpec]
) -> Iterator[tuple[Addresses, int, int]]:
    """Yield the addresses that change from one sample to the next, and by how many bytes."""
    for position, spec in enumerate(specs):
        if is_batch(spec):
            yield addresses, position, sample_bytes(spec) or 0


def _address(tensor: Tensor) -> int:
    """Return where a C-contiguous array begins."""
    try:
        return ctypes.addressof(_BYTE.from_buffer(tensor))  # type: ignore[arg-type] # it is one
    except (TypeError, ValueError):  # read-only or empty; asking the array takes five times as long
        address: int = tensor.__array_interface__["data"][0]
        return address


ADAPTER: Final[Adapter] = TvmAdapter()
