"""OpenVINO, on the processor unless a variant asks for another device.

It reads its own format (`.xml` with `.bin`), ONNX, and TFLite files.

Options: `INFERENCE_PRECISION_HINT` (`f32`, `bf16`, `f16`; `f32` unless given). The adapter always
sets it, because by default OpenVINO computes in the precision that is fastest on the processor.
`device` (`CPU`, `GPU`, `NPU`; `CPU` unless given).

Rules:
- The processor runs a model whose device is absent, and the description says so.
- A session has one stream of `Limits.threads` threads. None of them is bound to a core: the workers
  of a device do not know of each other and would all be bound to the same one.
- `Limits.memory_bytes` has no effect here: the worker process limits itself.
- OpenVINO computes INT64, UINT64 and UINT32 in 32 bits with a sign. A session refuses an input that
  does not fit, because OpenVINO would silently cut it off. FP64 is computed as FP32, and the
  description says so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime_adapters.checks import (
    REBUILD,
    ModelTensor,
    check_declaration,
    check_options,
    fallback_reason,
    load_fault,
    model_path,
)
from runtime_adapters.errors import LoadError
from runtime_adapters.openvino.library import openvino
from runtime_adapters.openvino.session import OpenVinoSession, named_ports, reason_of, shapes_follow
from runtime_adapters.protocol import Adapter, Limits, Session, SessionDescription
from runtime_adapters.tensors import ANY
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import VariantInfo

CPU: Final = "CPU"
DEVICE_OPTION: Final = "device"
_DEVICES: Final = (CPU, "GPU", "NPU")
PRECISION_OPTION: Final = "INFERENCE_PRECISION_HINT"
_PRECISIONS: Final = ("f32", "bf16", "f16")

_FRONT_ENDS: Final = {".xml": "ir", ".onnx": "onnx", ".tflite": "tflite"}
"""The adapter names the front end. Otherwise OpenVINO tries all of them on a broken file, and some
of them write to standard error."""

_DATATYPES: Final[dict[str, Datatype]] = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
}


class Compiled(NamedTuple):
    """A model and what OpenVINO made of it."""

    model: openvino.Model
    compiled: openvino.CompiledModel
    precision: str

    def positions(self, info: VariantInfo) -> dict[str, int]:
        """Return the position of each declared input that the model uses."""
        ports = named_ports(self.model.inputs, info.inputs)
        return {name: position for name, (position, _) in ports.items()}


class OpenVinoAdapter:
    """The adapter for OpenVINO."""

    name = "openvino"

    def version(self) -> str:
        """Return OpenVINO's version, such as `2026.4.0`."""
        return str(openvino.__version__).partition("-")[0]

    def load(self, directory: Path, info: VariantInfo, limits: Limits) -> Session:
        """Load a model.

        Args:
            directory: The variant's directory.
            info: The variant's declaration.
            limits: What the session may use.

        Returns:
            A session that is ready.

        Raises:
            LoadError: OpenVINO does not take the model, or it is not what is declared.
        """
        found = compile_model(directory, info, limits)
        try:
            description = self._describe(info, found.precision, found.compiled)
            follow = shapes_follow(found.model)
        except Exception as exc:
            raise LoadError(load_fault(info, reason_of(exc)), remedy=REBUILD) from exc
        return OpenVinoSession(
            description, found.compiled, found.positions(info), shapes_follow=follow
        )

    def _describe(
        self, info: VariantInfo, precision: str, compiled: openvino.CompiledModel
    ) -> SessionDescription:
        devices = tuple(str(name) for name in compiled.get_property("EXECUTION_DEVICES"))
        reasons = [
            fallback_reason(
                {DEVICE_OPTION: info.options.get(DEVICE_OPTION, CPU), PRECISION_OPTION: precision},
                {
                    DEVICE_OPTION: "+".join(name.partition(".")[0] for name in devices),
                    PRECISION_OPTION: compiled.get_property(PRECISION_OPTION).get_type_name(),
                },
            )
        ]
        if any(spec.datatype == "FP64" for spec in (*info.inputs, *info.outputs)):
            reasons.append("FP64 is computed as FP32")
        return SessionDescription(
            runtime=self.name,
            version=self.version(),
            devices=devices,
            fallback="; ".join(filter(None, reasons)),
            inputs=info.inputs,
            outputs=info.outputs,
        )


def compile_model(
    directory: Path, info: VariantInfo, limits: Limits, more: Mapping[str, Any] | None = None
) -> Compiled:
    """Read and compile a model, as a session of it has it.

    Args:
        directory: The variant's directory.
        info: The variant's declaration.
        limits: What the model may use.
        more: Further properties, such as to profile it.

    Returns:
        The model, which has what is declared.

    Raises:
        LoadError: OpenVINO does not take the model, or it is not what is declared.
    """
    path = model_path(directory, info, limits)
    check_options(info, {PRECISION_OPTION: _PRECISIONS, DEVICE_OPTION: _DEVICES})
    if path.suffix not in _FRONT_ENDS:
        raise LoadError(
            load_fault(info, f"its name must end with {' or '.join(_FRONT_ENDS)}"),
            remedy=REBUILD,
        )
    precision = info.options.get(PRECISION_OPTION, "f32")
    try:
        model, idle = _read(path)
        device = _device(info)
        properties = {**_properties(device, precision, limits), **(more or {})}
        compiled = _core().compile_model(model, device, properties)
    except Exception as exc:
        reason = reason_of(exc).replace(str(path), path.name)
        raise LoadError(load_fault(info, reason), remedy=REBUILD) from exc
    check_declaration(
        info,
        idle | _tensors(model.inputs, info.inputs),
        _tensors(compiled.outputs, info.outputs),
    )
    return Compiled(model, compiled, precision)


@functools.cache
def _core() -> openvino.Core:
    """Return the only core of the process: it holds the plug-in, which is loaded once."""
    return openvino.Core()


def _read(path: Path) -> tuple[openvino.Model, dict[str, ModelTensor]]:
    """Return the model in a file, and the inputs of the file that the model does not use.

    The ONNX front end drops an input that nothing depends on, such as axes that are always empty;
    the file still declares it, and so does the variant.
    """
    front_end = openvino.frontend.FrontEndManager().load_by_framework(_FRONT_ENDS[path.suffix])
    source = front_end.load(str(path))
    if path.suffix != ".onnx":
        return openvino.Model(front_end.convert(source)), {}
    declared = {  # before the conversion, which may take them away
        name: ModelTensor(
            datatype=_DATATYPES.get(source.get_element_type(place).get_type_name()),
            shape=_shape(source.get_partial_shape(place)),
        )
        for place in source.get_inputs()
        for name in place.get_names()
    }
    model = openvino.Model(front_end.convert(source))
    kept = {name for port in model.inputs for name in port.get_names()}
    return model, {name: tensor for name, tensor in declared.items() if name not in kept}


def _device(info: VariantInfo) -> str:
    """Return the device that a variant asks for, or the processor where that is absent."""
    wanted = info.options.get(DEVICE_OPTION, CPU)
    if wanted == CPU:  # to look for others loads libraries, which takes long
        return CPU
    present = {str(name).partition(".")[0] for name in _core().available_devices}
    return wanted if wanted in present else CPU


def _properties(device: str, precision: str, limits: Limits) -> dict[str, Any]:
    common = {PRECISION_OPTION: precision, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    if device != CPU:
        return common
    return common | {
        "INFERENCE_NUM_THREADS": limits.threads,
        "ENABLE_CPU_PINNING": False,
        "LOG_LEVEL": "LOG_NONE",
    }


def _tensors(ports: Iterable[Any], specs: Iterable[TensorSpec]) -> dict[str, ModelTensor]:
    return {
        name: ModelTensor(
            datatype=_DATATYPES.get(port.get_element_type().get_type_name()),
            shape=_shape(port.get_partial_shape()),
        )
        for name, (_, port) in named_ports(ports, specs).items()
    }


def _shape(shape: openvino.PartialShape) -> tuple[int, ...] | None:
    if shape.rank.is_dynamic:
        return None
    return tuple(ANY if size.is_dynamic else size.get_length() for size in shape)


ADAPTER: Final[Adapter] = OpenVinoAdapter()
