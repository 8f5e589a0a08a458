"""Models of any runtime run the way that is fastest from Python, and measured alternately.

Rules:
- One thread, one sample at a time: it is copied to where the runtime reads it, the model runs, and
  the answer is read. No tool's model gets another treatment than ours.
- Options are those that belong to the model; else the runtime's defaults, so that OpenVINO computes
  in what it prefers unless the variant pins it.

Source:
    ONNX Runtime, "Performance: I/O binding" and "Thread management"; OpenVINO, "Inference request"
    and "Optimizing for latency"; LiteRT, "Interpreter" of its Python API.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.quantizers.qualities import Array, Part
from benchmarks.quantizers.task import Task
from benchmarks.quantizers.tools import Made
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from wire.package.variant import VariantInfo

Run = Callable[[Array], Array]
WARM_UP_S: Final = 0.2
MS_PER_S: Final = 1000.0


class Pace(NamedTuple):
    """How long is measured."""

    rounds: int
    round_s: float
    """Of each model in each round."""


def open_runner(task: Task, made: Made, info: VariantInfo | None) -> Run:
    """Load a model.

    Args:
        task: Whose model it was.
        made: The model.
        info: Its declaration, where it is a variant of ours; needed for compiled ones, which only
            our adapters run.

    Returns:
        A function from one sample to its answer, which is valid until the next call.

    Raises:
        RuntimeError: There is no way to run it.
    """
    opener = _OPENERS.get(made.runtime)
    if opener is not None:
        return opener(made)
    if info is None:
        raise RuntimeError(f"nothing here runs {made.runtime}")
    session = open_session(made.file.parent, info, Limits(threads=1))
    name = info.outputs[0].name

    def run(sample: Array) -> Array:
        return session.infer({task.input: sample})[name]

    return run


def qualities(task: Task, run: Run) -> list[Part]:
    """Return for each sample of the report how well the model answers it."""
    judge = task.judge()
    return [
        judge(run(task.samples[index : index + 1]), label)
        for index, label in enumerate(task.labels)
    ]


def alternate(runs: dict[str, Run], sample: Array, pace: Pace) -> dict[str, list[float]]:
    """Measure models in turn, one round after the other.

    Args:
        runs: By name.
        sample: What they are asked.
        pace: How long.

    Returns:
        By name, the median latency of each round in milliseconds.
    """
    for run in runs.values():
        _latencies_ms(run, sample, WARM_UP_S)
    found: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for _ in range(pace.rounds):
        for name in order:
            found[name].append(statistics.median(_latencies_ms(runs[name], sample, pace.round_s)))
        order.append(order.pop(0))  # nobody is always the one after a given other
    return found


def size_bytes(made: Made) -> int:
    """Return what a device must store of a model: its file, and the weights beside it."""
    weights = made.file.with_suffix(".bin")
    return made.file.stat().st_size + (weights.stat().st_size if weights.is_file() else 0)


def _latencies_ms(run: Run, sample: Array, seconds: float) -> list[float]:
    found: list[float] = []
    end_s = time.perf_counter() + seconds
    while not found or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        run(sample)
        found.append((time.perf_counter() - began_s) * MS_PER_S)
    return found


def _open_onnxruntime(made: Made) -> Run:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(made.file), options, providers=["CPUExecutionProvider"]
    )
    first, output = session.get_inputs()[0], session.get_outputs()[0]
    read = np.zeros([_one(size) for size in first.shape], _NUMBERS[first.type])
    written = np.zeros([_one(size) for size in output.shape], _NUMBERS[output.type])
    binding = session.io_binding()
    for bind, name, array in (
        (binding.bind_input, first.name, read),
        (binding.bind_output, output.name, written),
    ):
        bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(sample: Array) -> Array:
        np.copyto(read, sample)
        session.run_with_iobinding(binding)
        return written

    return run


def _open_openvino(made: Made) -> Run:
    import openvino

    options: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": 1,
        **made.options,
    }
    compiled = openvino.Core().compile_model(str(made.file), "CPU", options)
    request = compiled.create_infer_request()
    shape = [
        1 if size.is_dynamic else size.get_length() for size in compiled.input(0).partial_shape
    ]
    place = openvino.Tensor(compiled.input(0).element_type, openvino.Shape(shape))
    request.set_input_tensor(0, place)
    read = place.data

    def run(sample: Array) -> Array:
        np.copyto(read, sample)
        request.infer(share_outputs=True)
        answer: Array = request.get_output_tensor(0).data
        return answer

    return run


def _open_litert(made: Made) -> Run:
    from runtime_adapters.litert.library import litert

    interpreter = litert.Interpreter(str(made.file), num_threads=1)
    interpreter.allocate_tensors()
    first = interpreter.get_input_details()[0]["index"]
    last = interpreter.get_output_details()[0]["index"]

    def run(sample: Array) -> Array:
        interpreter.set_tensor(first, sample)
        interpreter.invoke()
        answer: Array = interpreter.get_tensor(last)
        return answer

    return run


def _one(size: int | str | None) -> int:
    return size if isinstance(size, int) else 1


_NUMBERS: Final = {"tensor(float)": np.float32, "tensor(int32)": np.int32}
_OPENERS: Final[dict[str, Callable[[Made], Run]]] = {
    "onnxruntime": _open_onnxruntime,
    "openvino": _open_openvino,
    "litert": _open_litert,
}
