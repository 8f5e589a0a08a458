"""ONNX Runtime, on the processor unless a variant asks for another execution provider.

Options: `graph_optimization_level` (`disabled`, `basic`, `extended`, `all`; `all` unless given) and
`provider` (as ONNX Runtime names them, such as `XnnpackExecutionProvider`; the CPU's unless given).

Rules:
- The CPU provider runs the nodes that another provider does not take, and all nodes if the other
  provider is absent. The description names the providers that took nodes, not the requested one.
- A provider that fails while it runs is not replaced by another.
- `Limits.threads` are all threads of a session, the calling one included. No thread spins while it
  waits: that would drain the battery and take time from other processes.
- `Limits.memory_bytes` has no effect here: the worker process limits itself.
- `BYTES` elements go in as bytes or text, must be UTF-8, and come out as bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from runtime_adapters.checks import (
    CLOSED,
    REBUILD,
    ModelTensor,
    check_declaration,
    check_options,
    fallback_reason,
    load_fault,
    model_path,
    shortened,
)
from runtime_adapters.errors import InferenceError, InputError, LoadError
from runtime_adapters.onnxruntime.library import onnxruntime
from runtime_adapters.protocol import (
    Adapter,
    Limits,
    Session,
    SessionDescription,
    Tensor,
    Tensors,
)
from runtime_adapters.tensors import ANY, InputCheck
from wire.package.tensors import Datatype
from wire.package.variant import VariantInfo

CPU: Final = "CPUExecutionProvider"
PROVIDER_OPTION: Final = "provider"
_SILENT: Final = 4
"""Log severity: fatal only. Errors are raised, so a log line would repeat them."""

_LEVELS: Final = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_LEVEL_OPTION: Final = "graph_optimization_level"

_DATATYPES: Final[dict[str, Datatype]] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

_SOURCE_PLACE: Final = re.compile(r"^\d+ : \w+ : |/onnxruntime_src/\S+:\d+ [^(]*\(.*?\) ")
"""Code and name of a status at the start, and file, line and signature within."""

onnxruntime.set_default_logger_severity(_SILENT)
onnxruntime.disable_telemetry_events()


class OnnxRuntimeSession:
    """A model loaded by ONNX Runtime, whose sessions may be run by several threads at once.

    Args:
        info: The variant's declaration.
        session: ONNX Runtime's session.
    """

    def __init__(self, info: VariantInfo, session: onnxruntime.InferenceSession) -> None:
        self._info = info
        # `session.run` calls this after it has checked the names, which `InputCheck` does here.
        self._run: Callable[..., list[Any]] | None = session._sess.run  # noqa: SLF001
        self._check = InputCheck(info.inputs)
        self._outputs = [spec.name for spec in info.outputs]
        self._texts_in = [spec.name for spec in info.inputs if spec.datatype == "BYTES"]
        self._texts_out = [spec.name for spec in info.outputs if spec.datatype == "BYTES"]
        self._devices = _devices(session)

    def infer(self, inputs: Tensors) -> Tensors:
        """Run the model once.

        Args:
            inputs: One array per declared input.

        Returns:
            One array per declared output, which nothing else refers to.

        Raises:
            InferenceError: The session is closed, or the runtime failed.
        """
        run = self._run
        if run is None:
            raise InferenceError(CLOSED)
        feeds = self._check(inputs)
        for name in self._texts_in:
            feeds[name] = _decoded(name, feeds[name])
        try:
            answers = run(self._outputs, feeds, None)
        except Exception as exc:
            raise InferenceError(f"onnxruntime failed: {shortened(_reason(exc))}") from exc
        outputs: Tensors = dict(zip(self._outputs, answers, strict=True))
        for name in self._texts_out:
            outputs[name] = _encoded(outputs[name])
        return outputs

    def describe(self) -> SessionDescription:
        """Say what the session is and which providers run it."""
        promised = self._info.options.get(PROVIDER_OPTION, CPU)
        ran = promised if promised in self._devices else "+".join(self._devices)
        return SessionDescription(
            runtime="onnxruntime",
            version=onnxruntime.__version__,
            devices=self._devices,
            fallback=fallback_reason({PROVIDER_OPTION: promised}, {PROVIDER_OPTION: ran}),
            inputs=self._info.inputs,
            outputs=self._info.outputs,
        )

    def close(self) -> None:
        """Drop the session; it is freed when the last call in another thread has ended."""
        self._run = None


class OnnxRuntimeAdapter:
    """The adapter for ONNX Runtime."""

    name = "onnxruntime"

    def version(self) -> str:
        """Return ONNX Runtime's version."""
        return str(onnxruntime.__version__)

    def load(self, directory: Path, info: VariantInfo, limits: Limits) -> Session:
        """Load an ONNX model.

        Args:
            directory: The variant's directory.
            info: The variant's declaration.
            limits: What the session may use.

        Returns:
            A session that is ready.

        Raises:
            LoadError: ONNX Runtime does not take the model, or it is not what is declared.
        """
        return OnnxRuntimeSession(info, open_model(directory, info, limits))


def open_model(
    directory: Path,
    info: VariantInfo,
    limits: Limits,
    adjust: Callable[[onnxruntime.SessionOptions], None] | None = None,
) -> onnxruntime.InferenceSession:
    """Load an ONNX model as ONNX Runtime's own session.

    Args:
        directory: The variant's directory.
        info: The variant's declaration.
        limits: What the session may use.
        adjust: Changes the options of the session, such as to profile it.

    Returns:
        The session.

    Raises:
        LoadError: ONNX Runtime does not take the model, or it is not what is declared.
    """
    path = model_path(directory, info, limits)
    known = onnxruntime.get_all_providers()
    check_options(info, {_LEVEL_OPTION: _LEVELS, PROVIDER_OPTION: known})
    options = _session_options(info, limits)
    if adjust is not None:
        adjust(options)
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=_providers(info))
        session.disable_fallback()
    except Exception as exc:
        reason = _reason(exc).replace(str(path), path.name)
        raise LoadError(load_fault(info, reason), remedy=REBUILD) from exc
    check_declaration(info, _tensors(session.get_inputs()), _tensors(session.get_outputs()))
    return session


def _providers(info: VariantInfo) -> list[str]:
    """Return the providers to ask for, the wanted one first where it is built in."""
    wanted = info.options.get(PROVIDER_OPTION, CPU)
    present = wanted in onnxruntime.get_available_providers()
    return [wanted, CPU] if present and wanted != CPU else [CPU]


def _devices(session: onnxruntime.InferenceSession) -> tuple[str, ...]:
    """Return the providers that took nodes of the graph, in the order of their preference."""
    registered = tuple(session.get_providers())
    assigned = getattr(session, "get_provider_graph_assignment_info", None)
    if registered == (CPU,) or assigned is None:  # older versions do not tell
        return registered
    took = {subgraph.ep_name for subgraph in assigned()}
    return tuple(name for name in registered if name in took) or (CPU,)


def _session_options(info: VariantInfo, limits: Limits) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = limits.threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = _LEVELS[info.options.get(_LEVEL_OPTION, "all")]
    options.log_severity_level = _SILENT
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    if info.options.get(PROVIDER_OPTION, CPU) != CPU:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def _tensors(arguments: Iterable[Any]) -> dict[str, ModelTensor]:
    return {
        argument.name: ModelTensor(
            datatype=_DATATYPES.get(argument.type),
            # ONNX Runtime gives an empty shape both for a scalar and for an unknown shape.
            shape=tuple(size if isinstance(size, int) else ANY for size in argument.shape) or None,
        )
        for argument in arguments
    }


def _decoded(name: str, tensor: Tensor) -> Tensor:
    """Return a BYTES tensor as text; ONNX Runtime would take the `repr` of bytes as the text.

    Raises:
        InputError: An element is not UTF-8.
    """
    texts = np.empty(tensor.size, dtype=np.object_)
    try:
        texts[:] = [item.decode() if isinstance(item, bytes) else item for item in tensor.flat]
    except UnicodeDecodeError as exc:
        raise InputError(f"input {name!r} has an element that is not UTF-8") from exc
    return texts.reshape(tensor.shape)


def _encoded(tensor: Tensor) -> Tensor:
    blobs = np.empty(tensor.size, dtype=np.object_)
    blobs[:] = [str(item).encode() for item in tensor.flat]
    return blobs.reshape(tensor.shape)


def _reason(exc: Exception) -> str:
    """Return the first line of what ONNX Runtime says, without numbers and places in its source."""
    line = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
    return _SOURCE_PLACE.sub("", line.removeprefix("[ONNXRuntimeError] : "))


ADAPTER: Final[Adapter] = OnnxRuntimeAdapter()
