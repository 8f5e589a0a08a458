"""Models that TVM compiled ahead of time to a library of their own; no TVM is needed.

Options: none.

Rules:
- Compiled code checks nothing: types, shapes, and the range of values that are indices are checked
  here, for an index out of range reads foreign memory or ends the process.
- A batch is answered sample by sample; each library has one place to work in, so its sessions take
  turns.
- `Limits.threads` has no effect, for the code runs in the calling thread; nor has
  `Limits.memory_bytes`: the worker process limits itself.
"""

from __future__ import annotations

import ctypes
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
from runtime_adapters.compiled import check_ranges, model_tensors
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
from runtime_adapters.tvm_abi import VERSION
from runtime_adapters.tvm_library import Library
from wire.manifest import TensorSpec, VariantInfo

DEVICE: Final = "CPU"


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
        self._check = InputCheck(info.inputs)
        self._inputs = library.model.inputs
        self._outputs = library.model.outputs
        self._wanted = [spec.name for spec in info.outputs]
        self._ranges = library.model.ranges
        self._batched = [spec.name for spec in self._inputs if is_batch(spec)]
        self._sources = (ctypes.c_void_p * len(self._inputs))()
        self._sinks = (ctypes.c_void_p * len(self._outputs))()

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
        check_ranges(checked, self._ranges)
        rows = batch_rows(checked, self._batched)
        sources = [checked[spec.name] for spec in self._inputs]
        sinks = [_empty(spec, rows) for spec in self._outputs]
        with self._lock:
            if self._library is None:  # closed since
                raise InferenceError(CLOSED)
            self._run(self._library, sources, sinks, rows)
        answers = {spec.name: sink for spec, sink in zip(self._outputs, sinks, strict=True)}
        return {name: answers[name] for name in self._wanted}

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

    def _run(self, library: Library, sources: list[Tensor], sinks: list[Tensor], rows: int) -> None:
        """Run all samples; a tensor that is no batch is the same for each of them.

        Raises:
            InferenceError: The code failed.
        """
        starts = [
            _place(tensor, batched=is_batch(spec))
            for spec, tensor in zip(
                (*self._inputs, *self._outputs), (*sources, *sinks), strict=True
            )
        ]
        count = len(sources)
        for row in range(rows):
            for position, (address, stride) in enumerate(starts):
                if position < count:
                    self._sources[position] = address + row * stride
                else:
                    self._sinks[position - count] = address + row * stride
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


def _empty(spec: TensorSpec, rows: int) -> Tensor:
    shape = (rows, *spec.shape[1:]) if is_batch(spec) else spec.shape
    return np.empty(shape, DTYPES[spec.datatype])


def _place(tensor: Tensor, *, batched: bool) -> tuple[int, int]:
    """Return the address of an array, and how far the next sample lies from it."""
    address: int = tensor.__array_interface__["data"][0]
    return address, tensor.strides[0] if batched else 0


ADAPTER: Final[Adapter] = TvmAdapter()
