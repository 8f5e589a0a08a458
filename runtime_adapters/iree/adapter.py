"""Modules that IREE compiled ahead of time for a processor (`.vmfb`, with a description beside it).

Options: none.

Rules:
- Compiled code checks little, so the adapter checks types, shapes, the processor's instructions and
  the range of values that are indices: an index out of range ends the process.
- The module answers a batch sample by sample.
- `Limits.threads` are the threads of a call; `Limits.memory_bytes` has no effect here: the worker
  process limits itself.
"""

from __future__ import annotations

import re
import threading
from functools import partial
from pathlib import Path
from typing import Final

from runtime_adapters.batches import batch_rows, is_batch, no_answer, sample_by_sample
from runtime_adapters.checks import (
    CLOSED,
    REBUILD,
    check_declaration,
    check_options,
    load_fault,
    model_path,
    shortened,
)
from runtime_adapters.compiled import MAX_TENSORS, check_code, check_ranges, model_tensors
from runtime_adapters.errors import InferenceError, LoadError
from runtime_adapters.iree.abi import MAX_DESCRIPTION_BYTES, VERSION, CompiledModel, description_of
from runtime_adapters.iree.library import VERSION as IREE_VERSION
from runtime_adapters.iree.library import Module
from runtime_adapters.protocol import Adapter, Limits, Session, SessionDescription, Tensors
from runtime_adapters.tensors import InputCheck
from wire.codec import from_json
from wire.errors import WireFormatError
from wire.package.variant import VariantInfo

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
        declared = {spec.name: spec for spec in info.inputs}
        self._check = InputCheck(declared[spec.name] for spec in model.inputs)
        self._batched = [spec.name for spec in model.inputs if is_batch(spec)]
        self._ranges = model.ranges
        positions = {spec.name: index for index, spec in enumerate(model.outputs)}
        self._outputs = [(spec.name, positions[spec.name]) for spec in info.outputs]
        self._nothing = {name: no_answer(model.outputs[index]) for name, index in self._outputs}

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
        if self._ranges:
            check_ranges(checked, self._ranges)
        with self._lock:
            module = self._module
            if module is None:  # closed in the meantime
                raise InferenceError(CLOSED)
            try:
                if batch_rows(checked, self._batched) == 1:
                    return self._run(module, checked)
                return sample_by_sample(
                    partial(self._run, module), checked, self._batched, self._nothing
                )
            except InferenceError:
                raise
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

    def _run(self, module: Module, inputs: Tensors) -> Tensors:
        answers = module.run(inputs.values())
        return {name: answers[index].copy() for name, index in self._outputs}


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
        check_declaration(info, model_tensors(model.inputs), model_tensors(model.outputs))
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
        raise LoadError(
            f"its description has version {model.version}, but this runtime reads version {VERSION}"
        )
    check_code(model.architecture, model.cpu_flags, model.inputs, model.ranges)
    if len(model.outputs) > MAX_TENSORS:
        raise LoadError(
            f"it has {len(model.outputs)} outputs, but at most {MAX_TENSORS} are allowed"
        )
    return model


def _reason(exc: Exception) -> str:
    """Return what IREE says, without the place in its source and its virtual machine's stack."""
    line = (str(exc).splitlines() or [""])[0].partition("; while ")[0]
    return _PLACE.sub("", line) or type(exc).__name__


ADAPTER: Final[Adapter] = IreeAdapter()
