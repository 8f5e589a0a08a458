"""LiteRT (TensorFlow Lite) on the processor, with the XNNPACK delegate.

Options: `delegate` (`xnnpack`, `none`; `xnnpack` unless given). With `none` LiteRT's own kernels
run. They are several times slower, and serve models that XNNPACK refuses.

Inputs and outputs have the names of the tensors of the model's first subgraph. A converted model
takes one sample. Where the declaration leaves the batch open, the samples of a request run one
after the other, which costs no more than a resized batch and works for every model. A model whose
own shapes are open is resized instead.

Rules:
- `Limits.threads` are the threads of a session; `Limits.memory_bytes` has no effect here: the
  worker process limits itself.
- An interpreter is used by one thread at a time.
- XNNPACK and LiteRT's own kernels round quantized models differently, and each package delegates
  other operators: a session says which package's kernels compute.
- After a fault the session makes a new interpreter: with each failed resize the old one would
  become slower and larger.
- LiteRT writes a line to stderr when a process makes its first delegate; nothing turns that off.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from runtime_adapters.batches import batch_rows, is_batch, sample_by_sample
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
from runtime_adapters.litert.library import PACKAGE, VERSION, litert
from runtime_adapters.protocol import Adapter, Limits, Session, SessionDescription, Tensors
from runtime_adapters.tensors import ANY, InputCheck, datatype_of
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import VariantInfo

DELEGATE_OPTION: Final = "delegate"
_XNNPACK: Final = "xnnpack"
_RESOLVERS: Final = {
    _XNNPACK: litert.OpResolverType.AUTO,
    "none": litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
}
_DELEGATED: Final = "DELEGATE"
"""The name of a node that stands for all those that a delegate took."""


class LiteRtSession:
    """A model with one interpreter.

    Args:
        info: The variant's declaration.
        path: The model file.
        limits: What the session may use.
    """

    def __init__(self, info: VariantInfo, path: Path, limits: Limits) -> None:
        self._info = info
        self._path = path
        self._limits = limits
        self._check = InputCheck(info.inputs)
        self._lock = threading.Lock()
        self._shapes: dict[str, tuple[int, ...]] = {}
        interpreter = self._open()
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        self._one_by_one = _one_by_one(info, inputs, outputs)
        check_declaration(
            info,
            _tensors(inputs, info.inputs, any_batch=self._one_by_one),
            _tensors(outputs, info.outputs, any_batch=self._one_by_one),
        )
        self._inputs = [(spec.name, _index(inputs, spec.name)) for spec in info.inputs]
        self._outputs = [(spec.name, _index(outputs, spec.name)) for spec in info.outputs]
        empty = {d["name"]: np.empty((0, *d["shape"][1:]), d["dtype"]) for d in outputs}
        self._nothing = {name: empty[name] for name, _ in self._outputs}
        self._batched = [spec.name for spec in info.inputs if is_batch(spec)]
        self._devices = _devices(interpreter)
        self._interpreter: litert.Interpreter | None = interpreter
        self._closed = False

    def infer(self, inputs: Tensors) -> Tensors:
        """Run the model once; calls from several threads wait for each other.

        Args:
            inputs: One array per declared input.

        Returns:
            One array per declared output, which nothing else refers to.

        Raises:
            InferenceError: The session is closed, or the runtime failed.
        """
        if self._closed:
            raise InferenceError(CLOSED)
        checked = self._check(inputs)
        with self._lock:
            if self._closed:  # closed in the meantime
                raise InferenceError(CLOSED)
            try:
                if self._interpreter is None:
                    self._interpreter = self._open()
                if not self._one_by_one:
                    self._resize(self._interpreter, checked)
                elif batch_rows(checked, self._batched) != 1:
                    run = partial(self._once, self._interpreter)
                    return sample_by_sample(run, checked, self._batched, self._nothing)
                return self._once(self._interpreter, checked)
            except InferenceError:
                raise
            except Exception as exc:
                self._interpreter = None
                raise InferenceError(f"litert failed: {shortened(str(exc))}") from exc

    def describe(self) -> SessionDescription:
        """Say what the session is and what computes."""
        promised = self._info.options.get(DELEGATE_OPTION)
        missed = promised == _XNNPACK and _XNNPACK.upper() not in self._devices
        return SessionDescription(
            runtime="litert",
            version=VERSION,
            devices=self._devices,
            kernels=f"{PACKAGE}: {' and '.join(self._devices)}",
            fallback="XNNPACK took no operator of this model" if missed else "",
            inputs=self._info.inputs,
            outputs=self._info.outputs,
        )

    def close(self) -> None:
        """Drop the interpreter, after a call that is under way."""
        with self._lock:
            self._closed = True
            self._interpreter = None

    def _open(self) -> litert.Interpreter:
        interpreter = open_interpreter(self._path, self._info, self._limits)
        self._shapes = {d["name"]: tuple(d["shape"]) for d in interpreter.get_input_details()}
        return interpreter

    def _once(self, interpreter: litert.Interpreter, inputs: Tensors) -> Tensors:
        for name, index in self._inputs:
            interpreter.set_tensor(index, inputs[name])
        interpreter.invoke()
        return {name: interpreter.get_tensor(index) for name, index in self._outputs}

    def _resize(self, interpreter: litert.Interpreter, inputs: Tensors) -> None:
        changed = False
        for name, index in self._inputs:
            shape = inputs[name].shape
            if shape != self._shapes[name]:
                interpreter.resize_tensor_input(index, shape, strict=True)
                self._shapes[name] = shape
                changed = True
        if changed:
            interpreter.allocate_tensors()


class LiteRtAdapter:
    """The adapter for LiteRT."""

    name = "litert"

    def version(self) -> str:
        """Return the version of LiteRT, or of `tflite_runtime` where that is installed."""
        return VERSION

    def load(self, directory: Path, info: VariantInfo, limits: Limits) -> Session:
        """Load a `.tflite` model.

        Args:
            directory: The variant's directory.
            info: The variant's declaration.
            limits: What the session may use.

        Returns:
            A session that is ready.

        Raises:
            LoadError: LiteRT does not take the model, or it is not what is declared.
        """
        path = model_path(directory, info, limits)
        check_options(info, {DELEGATE_OPTION: _RESOLVERS})
        try:
            return LiteRtSession(info, path, limits)
        except LoadError:
            raise
        except Exception as exc:
            reason = str(exc).replace(str(path), path.name)
            raise LoadError(load_fault(info, reason), remedy=REBUILD) from exc


def open_interpreter(path: Path, info: VariantInfo, limits: Limits) -> litert.Interpreter:
    """Load a model as LiteRT's own interpreter, with memory for its tensors.

    Args:
        path: The model file.
        info: The variant's declaration, whose options are checked.
        limits: What the interpreter may use.

    Returns:
        The interpreter. Whatever LiteRT raises passes through.
    """
    interpreter = litert.Interpreter(
        model_path=str(path),
        num_threads=limits.threads,
        experimental_op_resolver_type=_RESOLVERS[info.options.get(DELEGATE_OPTION, _XNNPACK)],
    )
    interpreter.allocate_tensors()
    return interpreter


def _one_by_one(
    info: VariantInfo, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]
) -> bool:
    """Tell whether the declaration leaves a batch open that the model has fixed to one sample."""
    return any(_fixed_to_one(info.inputs, inputs)) and all(
        (*_fixed_to_one(info.inputs, inputs), *_fixed_to_one(info.outputs, outputs))
    )


def _fixed_to_one(specs: Iterable[TensorSpec], details: list[dict[str, Any]]) -> list[bool]:
    """Tell for each tensor with an open batch whether the model has one sample there."""
    signatures = {detail["name"]: detail["shape_signature"] for detail in details}
    return [
        len(signatures[spec.name]) > 0 and signatures[spec.name][0] == 1
        for spec in specs
        if is_batch(spec) and spec.name in signatures
    ]


def _tensors(
    details: list[dict[str, Any]], specs: Iterable[TensorSpec], *, any_batch: bool
) -> dict[str, ModelTensor]:
    """Return a model's tensors, as the session serves them.

    Raises:
        LoadError: Two tensors have the same name.
    """
    open_batches = {spec.name for spec in specs if any_batch and is_batch(spec)}
    tensors: dict[str, ModelTensor] = {}
    for detail in details:
        name = detail["name"]
        if name in tensors:
            raise LoadError(f"the model has two tensors {name[:80]!r}")
        shape = tuple(int(size) for size in detail["shape_signature"])
        tensors[name] = ModelTensor(
            datatype=_datatype(detail["dtype"]),
            shape=(ANY, *shape[1:]) if name in open_batches else shape,
        )
    return tensors


def _datatype(dtype: type[np.generic]) -> Datatype | None:
    try:
        return datatype_of(np.dtype(dtype))
    except InputError:
        return None


def _index(details: list[dict[str, Any]], name: str) -> int:
    return next(int(detail["index"]) for detail in details if detail["name"] == name)


def _devices(interpreter: litert.Interpreter) -> tuple[str, ...]:
    """Return what computes: XNNPACK, LiteRT's own kernels, or both."""
    operators, taken = operators_of(interpreter)
    if not taken:
        return ("CPU",)
    return (_XNNPACK.upper(),) if len(taken) == len(operators) else (_XNNPACK.upper(), "CPU")


def operators_of(interpreter: litert.Interpreter) -> tuple[list[dict[str, Any]], set[int]]:
    """Return the model's operators, and which of them a delegate took.

    A delegate's node names the inputs and outputs of the part that it took. The operators in
    between are still listed, so they are found by going back from these outputs.

    Args:
        interpreter: An interpreter with memory for its tensors.

    Returns:
        The operators as LiteRT describes them, in their order; `index` of those that were taken.
    """
    nodes = interpreter._get_ops_details()  # noqa: SLF001 - nothing public tells
    delegates = [node for node in nodes if node["op_name"] == _DELEGATED]
    operators = [node for node in nodes if node["op_name"] != _DELEGATED]
    makers = {int(tensor): node for node in operators for tensor in node["outputs"]}
    taken: set[int] = set()
    for delegate in delegates:
        given = set(map(int, delegate["inputs"]))
        wanted = set(map(int, delegate["outputs"]))
        while wanted:
            node = makers.get(wanted.pop())
            if node is not None and node["index"] not in taken:
                taken.add(node["index"])
                wanted |= set(map(int, node["inputs"])) - given
    return operators, taken


ADAPTER: Final[Adapter] = LiteRtAdapter()
