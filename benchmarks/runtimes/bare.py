"""The fastest documented way of calling each runtime's own Python API: all is bound beforehand.

Rules:
- A call does what the runtime must do for an answer, and nothing else: no input is copied or looked
  at, and an answer lies in the runtime's memory until the next call.
- Options are those that the adapters set: one thread, float32.

Source:
    ONNX Runtime, Python API: IOBinding. OpenVINO, Python API: `InferRequest.infer` with
    `share_outputs`. LiteRT, `Interpreter.tensor` and `invoke`. IREE, `iree.runtime`:
    `VmContext.invoke`, whose outputs cannot be bound. TVM: the library's own function.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import DTYPES
from runtime_adapters.tvm.abi import RUN_SYMBOL
from wire.package.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class Bare:
    """A loaded model without an adapter."""

    call: Callable[[], object]
    answers: Callable[[], list[Tensor]]
    """Read what the last call gave."""

    how: str
    """The way that it is called."""

    usual: Callable[[], object] | None = None
    """As an application calls it that binds nothing; None where the runtime has no such way."""

    usual_how: str = ""


Load = Callable[[Path, Tensors, Sequence[TensorSpec]], Bare]


def _onnxruntime(path: Path, inputs: Tensors, outputs: Sequence[TensorSpec]) -> Bare:
    from runtime_adapters.onnxruntime.library import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, tensor in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(tensor))
    names = [spec.name for spec in outputs]
    places = []
    for spec in outputs:
        place = np.empty((1, *spec.shape[1:]), DTYPES[spec.datatype])
        places.append(onnxruntime.OrtValue.ortvalue_from_numpy(place))
        binding.bind_ortvalue_output(spec.name, places[-1])
    return Bare(
        lambda: session.run_with_iobinding(binding),
        lambda: [place.numpy() for place in places],
        "run_with_iobinding",
        lambda: session.run(names, inputs),
        "InferenceSession.run",
    )


def _openvino(path: Path, inputs: Tensors, outputs: Sequence[TensorSpec]) -> Bare:
    from runtime_adapters.openvino.library import openvino

    options = {
        "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False,
    }  # fmt: skip
    compiled = openvino.Core().compile_model(str(path), "CPU", options)
    request, usual = compiled.create_infer_request(), compiled.create_infer_request()
    for name, tensor in inputs.items():
        request.set_tensor(name, openvino.Tensor(tensor, shared_memory=True))
    return Bare(
        lambda: request.infer(share_outputs=True),
        lambda: [request.get_tensor(spec.name).data for spec in outputs],
        "InferRequest.infer",
        lambda: usual.infer(inputs),
        "InferRequest.infer of NumPy arrays",
    )


def _litert(path: Path, inputs: Tensors, outputs: Sequence[TensorSpec]) -> Bare:
    from runtime_adapters.litert.library import litert

    interpreter = litert.Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.tensor(detail["index"])()[...] = inputs[detail["name"]]
    indices = {detail["name"]: detail["index"] for detail in interpreter.get_output_details()}
    places = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}

    def answers() -> list[Tensor]:
        return [interpreter.get_tensor(indices[spec.name]) for spec in outputs]

    def usual() -> list[Tensor]:
        for name, tensor in inputs.items():
            interpreter.set_tensor(places[name], tensor)
        interpreter.invoke()
        return answers()

    return Bare(
        interpreter.invoke, answers, "Interpreter.invoke", usual, "set_tensor, invoke, get_tensor"
    )


def _tvm(path: Path, inputs: Tensors, outputs: Sequence[TensorSpec]) -> Bare:
    function = getattr(ctypes.CDLL(str(path)), RUN_SYMBOL)
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
    given = list(inputs.values())
    places = [np.empty((1, *spec.shape[1:]), DTYPES[spec.datatype]) for spec in outputs]
    sources, sinks = (
        (ctypes.c_void_p * len(tensors))(*(tensor.ctypes.data for tensor in tensors))
        for tensors in (given, places)
    )
    # The answers hold on to `given`, whose memory the function reads.
    return Bare(lambda: function(sources, sinks), lambda: places if given else [], "ctypes")


def _iree(path: Path, inputs: Tensors, outputs: Sequence[TensorSpec]) -> Bare:
    from iree import runtime

    device = runtime.get_device("local-sync")
    instance = runtime.VmInstance()
    with path.open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    module = runtime.VmModule.wrap_buffer(instance, content, close_buffer=True)
    context = runtime.VmContext(instance, [runtime.create_hal_module(instance, device), module])
    function = module.lookup_function("main")
    arguments = runtime.VmVariantList(len(inputs))
    for tensor in inputs.values():
        arguments.push_ref(
            device.allocator.allocate_buffer_copy(
                memory_type=runtime.MemoryType.DEVICE_LOCAL | runtime.MemoryType.HOST_VISIBLE,
                allowed_usage=runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING,
                device=device,
                buffer=tensor,
                element_type=runtime.HalElementType.FLOAT_32,
            )
        )
    answers: list[Tensor] = []

    def call() -> None:
        results = runtime.VmVariantList(len(outputs))
        context.invoke(function, arguments, results)
        answers[:] = [
            np.ndarray((1, *spec.shape[1:]), np.float32, _view(runtime, results, index))
            for index, spec in enumerate(outputs)
        ]

    return Bare(call, lambda: answers, "VmContext.invoke")


def _view(runtime: Any, results: Any, index: int) -> Any:  # noqa: ANN401 - iree is untyped
    return results.get_as_object(index, runtime.HalBufferView).map()


LOADS: Final[dict[str, Load]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "litert": _litert,
    "tvm": _tvm,
    "iree": _iree,
}
