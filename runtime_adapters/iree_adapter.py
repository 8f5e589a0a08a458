"""Modules that IREE compiled ahead of time for a processor (`.vmfb`, with a description beside it).

Options: none.

Rules:
- Compiled code checks little: types, shapes, the processor's instructions, and the range of values
  that are indices are checked here, for an index out of range ends the process.
- A batch is answered sample by sample.
- `Limits.threads` are the threads of a call; `Limits.memory_bytes` has no effect here: the worker
  process limits itself.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Final

import numpy as np

from runtime_adapters.checks import (
    CLOSED,
    REBUILD,
    ModelTensor,
    check_declaration,
    check_options,
    load_fault,
    model_path,
    shortened,
)
from runtime_adapters.errors import InferenceError, InputError, LoadError
from runtime_adapters.iree_abi import (
    MAX_DESCRIPTION_BYTES,
    MAX_TENSOR_BYTES,
    MAX_TENSORS,
    VERSION,
    CompiledModel,
    description_of,
)
from runtime_adapters.iree_library import VERSION as IREE_VERSION
from runtime_adapters.iree_library import Module, sample_shape
from runtime_adapters.protocol import Adapter, Limits, Session, SessionDescription, Tensor, Tensors
from runtime_adapters.tensors import ANY, DTYPES, InputCheck
from wire.codec import from_json
from wire.errors import WireFormatError
from wire.manifest import TensorSpec, VariantInfo

CPUINFO: Final = Path("/proc/cpuinfo")
_PLACE: Final = re.compile(r"^.*\.(?:c|cc|h):\d+: ")


class IreeSession:
    """A loaded module.

    Args:
        info: The variant's declaration.
        model: The module's description.
        module: The module.
    """

    def __init__(self, info: VariantInfo, model: CompiledModel, module: Module) -> None:
        self._info = info
        self._device = module.device_name
        self._module: Module | None = module
        self._lock = threading.Lock()
        self._check = InputCheck(info.inputs)
        self._inputs = [(spec.name, _is_batch(spec)) for spec in model.inputs]
        self._batched = [name for name, batched in self._inputs if batched]
        self._ranges = model.ranges
        positions = {spec.name: index for index, spec in enumerate(model.outputs)}
        self._outputs = [
            (spec.name, positions[spec.name], model.outputs[positions[spec.name]])
            for spec in info.outputs
        ]

    def infer(self, inputs: Tensors) -> Tensors:
        """Run the model, once for each sample; calls from several threads wait for each other.

        Args:
            inputs: One array per declared input.

        Returns:
            One array per declared output, which nothing else refers to.

        Raises:
            InferenceError: The session is closed, the batches differ in size, or IREE failed.
        """
        if self._module is None:
            raise InferenceError(CLOSED)
        checked = self._check(inputs)
        for name, (least, greatest) in self._ranges.items():
            _check_range(name, checked[name], least, greatest)
        rows = self._rows(checked)
        with self._lock:
            module = self._module
            if module is None:  # closed since
                raise InferenceError(CLOSED)
            try:
                return self._run(module, checked, rows)
            except Exception as exc:
                raise InferenceError(f"iree failed: {shortened(_reason(exc))}") from exc

    def describe(self) -> SessionDescription:
        """Say what the session is and which device runs it."""
        return SessionDescription(
            runtime="iree",
            version=IREE_VERSION,
            devices=(self._device,),
            inputs=self._info.inputs,
            outputs=self._info.outputs,
        )

    def close(self) -> None:
        """Drop the module, after a call that is under way."""
        with self._lock:
            self._module = None

    def _rows(self, inputs: Tensors) -> int:
        counts = {len(inputs[name]) for name in self._batched} or {1}
        if len(counts) > 1:
            raise InferenceError(f"the inputs are batches of {sorted(counts)} samples")
        return counts.pop()

    def _run(self, module: Module, inputs: Tensors, rows: int) -> Tensors:
        if rows == 1:
            answers = module.run([inputs[name] for name, _ in self._inputs])
            return {name: answers[index].copy() for name, index, _ in self._outputs}
        parts: list[list[Tensor]] = [[_none(spec)] for _, _, spec in self._outputs]
        for row in range(rows):
            answers = module.run(
                [
                    inputs[name][row : row + 1] if batched else inputs[name]
                    for name, batched in self._inputs
                ]
            )
            for part, (_, index, _) in zip(parts, self._outputs, strict=True):
                part.append(answers[index].copy())
        return {
            name: np.concatenate(part[1:] or part)
            for part, (name, _, _) in zip(parts, self._outputs, strict=True)
        }


class IreeAdapter:
    """The adapter for IREE."""

    name = "iree"

    def version(self) -> str:
        """Return IREE's version, such as `3.13.0`."""
        return IREE_VERSION

    def load(self, directory: Path, info: VariantInfo, limits: Limits) -> Session:
        """Load a compiled module.

        Args:
            directory: The variant's directory.
            info: The variant's declaration.
            limits: What the session may use.

        Returns:
            A session that is ready.

        Raises:
            LoadError: Not a module for this machine, or it is not what is declared.
        """
        path = model_path(directory, info, limits)
        check_options(info, {})
        try:
            model = _described(description_of(path))
            module = Module(path, model.inputs, model.outputs, threads=limits.threads)
        except LoadError as exc:
            raise LoadError(load_fault(info, exc.message), remedy=REBUILD) from exc
        except Exception as exc:
            reason = _reason(exc).replace(str(path), path.name)
            raise LoadError(load_fault(info, reason), remedy=REBUILD) from exc
        check_declaration(info, _tensors(model.inputs), _tensors(model.outputs))
        return IreeSession(info, model, module)


def _described(path: Path) -> CompiledModel:
    """Read and check a description.

    Raises:
        LoadError: It is missing, broken, or of code that this machine cannot run.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_DESCRIPTION_BYTES + 1)
        model = from_json(content, CompiledModel, limit_bytes=MAX_DESCRIPTION_BYTES)
    except OSError as exc:
        raise LoadError(f"its description {path.name!r} cannot be read: {exc.strerror}") from exc
    except WireFormatError as exc:
        raise LoadError(f"its description {path.name!r} is broken: {exc}") from exc
    if model.version != VERSION:
        raise LoadError(f"its description has version {model.version}, known is {VERSION}")
    if model.architecture != os.uname().machine:
        raise LoadError(f"it is for {model.architecture}, this machine is {os.uname().machine}")
    if missing := sorted(set(model.cpu_flags) - _cpu_flags()):
        raise LoadError(f"it needs {', '.join(missing)}, which this processor lacks")
    if max(len(model.inputs), len(model.outputs)) > MAX_TENSORS:
        raise LoadError(f"it has more than {MAX_TENSORS} inputs or outputs")
    for spec in model.inputs:
        _check_input(spec)
    if unknown := sorted(set(model.ranges) - {spec.name for spec in model.inputs}):
        raise LoadError(f"it limits an input {unknown[0][:80]!r} that it does not have")
    return model


def _check_input(spec: TensorSpec) -> None:
    shape = sample_shape(spec)
    if spec.datatype == "BYTES" or any(size < 0 for size in shape):
        raise LoadError(f"its input {spec.name[:80]!r} has no fixed size")
    size_bytes = DTYPES[spec.datatype].itemsize
    for size in shape:  # not a product of all: sizes from outside may be huge
        size_bytes *= size
        if size_bytes > MAX_TENSOR_BYTES:
            raise LoadError(f"its input {spec.name[:80]!r} is over {MAX_TENSOR_BYTES} bytes")


def _cpu_flags() -> frozenset[str]:
    """Return what the processor has, as the kernel names it; empty where that is unknown."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":") for line in lines)
    found = (value for key, _, value in named if key.strip() in {"flags", "Features"})
    return frozenset(next(found, "").split())


def _is_batch(spec: TensorSpec) -> bool:
    return spec.shape[:1] == (ANY,)


def _none(spec: TensorSpec) -> Tensor:
    """Return the answer to no sample."""
    return np.empty((0, *(max(size, 0) for size in spec.shape[1:])), DTYPES[spec.datatype])


def _tensors(specs: tuple[TensorSpec, ...]) -> dict[str, ModelTensor]:
    return {spec.name: ModelTensor(datatype=spec.datatype, shape=spec.shape) for spec in specs}


def _check_range(name: str, tensor: Tensor, least: int, greatest: int) -> None:
    # Asked so that a value that is no number fails too.
    if tensor.size and not (least <= tensor.min() and tensor.max() <= greatest):
        raise InputError(f"input {name!r} has an index that is not within {least} to {greatest}")


def _reason(exc: Exception) -> str:
    """Return what IREE says, without the place in its source and the stack of its machine."""
    line = (str(exc).splitlines() or [""])[0].partition("; while ")[0]
    return _PLACE.sub("", line) or type(exc).__name__


ADAPTER: Final[Adapter] = IreeAdapter()
