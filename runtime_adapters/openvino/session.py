"""A model compiled by OpenVINO, and how it is run.

With one thread, OpenVINO 2026.4 loses an error that occurs while a synchronous call works out the
shapes of a model whose dimensions vary: the call succeeds, and the outputs still hold the answer to
an earlier request. An asynchronous call reports it, but costs about 100 microseconds more.

Rules:
- A call is synchronous only where nothing can go wrong with shapes: all shapes follow from those of
  the inputs, and a call with these input shapes succeeded before.
- Inputs are copied to where the request reads them, which costs less than a new binding per call.
  Outputs are copied from where the request writes them, because it writes there again.
- A session has one request, which one thread uses at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from runtime_adapters.checks import CLOSED, shortened
from runtime_adapters.errors import InferenceError, InputError
from runtime_adapters.openvino.library import openvino
from runtime_adapters.protocol import SessionDescription, Tensor, Tensors
from runtime_adapters.tensors import InputCheck
from wire.package.tensors import TensorSpec

_ADVICE: Final = "To facilitate the conversion of unsupported operations"
_NARROWED: Final = frozenset({"INT64", "UINT64", "UINT32"})
_LEAST: Final = np.iinfo(np.int32).min
_GREATEST: Final = np.iinfo(np.int32).max
_WITH_BODIES: Final = frozenset({"If", "Loop", "TensorIterator"})
_TRIAL_SIZE: Final = 1
"""Dimensions that vary get this size, to see which shapes follow from it."""


class OpenVinoSession:
    """A compiled model with one request.

    Args:
        description: What the session is.
        compiled: The compiled model, which keeps that declaration.
        positions: Position of each declared input in the compiled model, which does not keep every
            name; an input that the model does not use has no position.
        shapes_follow: Whether all shapes in it follow from those of its inputs.
    """

    def __init__(
        self,
        description: SessionDescription,
        compiled: openvino.CompiledModel,
        positions: dict[str, int],
        *,
        shapes_follow: bool,
    ) -> None:
        self._description = description
        self._shapes_follow = shapes_follow
        self._check = InputCheck(description.inputs)
        self._narrowed = [s.name for s in description.inputs if s.datatype in _NARROWED]
        self._inputs = {  # no ports: they would keep the model after `close`
            name: (position, compiled.inputs[position].get_element_type())
            for name, position in positions.items()
        }
        ports = named_ports(compiled.outputs, description.outputs)
        self._outputs = [(spec.name, ports[spec.name][0]) for spec in description.outputs]
        self._lock = threading.Lock()
        self._bound: list[tuple[str, Tensor]] = []
        """Where the request reads each input."""

        self._placed: object = None
        """The form of the inputs for which that memory was made."""

        self._proven: object = None
        """The form of the inputs with which a call has succeeded."""

        self._request: openvino.InferRequest | None = compiled.create_infer_request()

    def infer(self, inputs: Tensors) -> Tensors:
        """Run the model once; calls from several threads wait for each other.

        Args:
            inputs: One array per declared input.

        Returns:
            One array per declared output, which nothing else refers to.

        Raises:
            InferenceError: The session is closed, or the runtime failed.
        """
        with self._lock:
            request = self._request
            if request is None:
                raise InferenceError(CLOSED)
            checked = self._check(inputs)
            for name in self._narrowed:
                _check_range(name, checked[name])
            try:
                self._run(request, checked, self._check.form)
                return {
                    name: request.get_output_tensor(position).data.copy()
                    for name, position in self._outputs
                }
            except Exception as exc:
                self._proven = None
                raise InferenceError(f"openvino failed: {shortened(reason_of(exc))}") from exc

    def describe(self) -> SessionDescription:
        """Say what the session is and which devices run it."""
        return self._description

    def close(self) -> None:
        """Drop the request and the compiled model, after a call that is under way."""
        with self._lock:
            self._request = None
            self._bound = []

    def _run(self, request: openvino.InferRequest, inputs: Tensors, form: object) -> None:
        if form != self._placed:
            self._place(request, inputs)
            self._placed = form
        for name, place in self._bound:
            place[...] = inputs[name]
        if form == self._proven:
            request.infer(share_outputs=True)
            return
        self._proven = None
        request.start_async()
        request.wait()
        if self._shapes_follow:
            self._proven = form

    def _place(self, request: openvino.InferRequest, inputs: Tensors) -> None:
        """Give the request memory for inputs of these shapes."""
        self._placed, self._bound = None, []
        for name, (position, kind) in self._inputs.items():
            place = openvino.Tensor(kind, openvino.Shape(list(inputs[name].shape)))
            request.set_input_tensor(position, place)
            self._bound.append((name, place.data))


def shapes_follow(model: openvino.Model) -> bool:
    """Tell whether all shapes in a model follow from those of its inputs.

    Args:
        model: The model, which stays as it is.

    Returns:
        False where a shape depends on values, and where this is not known.
    """
    trial = model.clone()
    try:
        trial.reshape(
            {
                position: [
                    _TRIAL_SIZE if size.is_dynamic else size.get_length()
                    for size in port.get_partial_shape()
                ]
                for position, port in enumerate(trial.inputs)
            }
        )
    except Exception:  # noqa: BLE001 - whatever it raises, it cannot be told
        return False
    return not any(
        operation.get_type_name() in _WITH_BODIES
        or any(output.get_partial_shape().is_dynamic for output in operation.outputs())
        for operation in trial.get_ops()
    )


def named_ports(ports: Iterable[Any], specs: Iterable[TensorSpec]) -> dict[str, tuple[int, Any]]:
    """Return ports with their positions, by the declared names of a port, else by one name."""
    declared = {spec.name for spec in specs}
    named: dict[str, tuple[int, Any]] = {}
    for position, port in enumerate(ports):
        names = port.get_names()
        for name in (names & declared) or {min(names, default=f"#{position}")}:
            named[name] = (position, port)
    return named


def reason_of(exc: Exception) -> str:
    """Return the last line of what OpenVINO says that is not advice on how to extend it.

    The lines before it name source files of OpenVINO.
    """
    lines = [line.strip(" -") for line in str(exc).splitlines() if line.strip(" -")]
    told = [line for line in lines if not line.startswith(_ADVICE)]
    return told[-1] if told else type(exc).__name__


def _check_range(name: str, tensor: Tensor) -> None:
    if tensor.size and (tensor.max() > _GREATEST or tensor.min() < _LEAST):
        raise InputError(f"input {name!r} has a value beyond the 32 bits that OpenVINO computes in")
