"""The same cases through a runtime's own Python API, to see what an adapter loses.

Rules:
- Options are those that the adapter sets, where they bear on the answer: one thread, float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from runtime_adapters.onnxruntime.library import onnxruntime
from runtime_adapters.openvino.library import openvino
from tests.contract.onnx_backend.cases import Run, fed


def onnxruntime_alone(model: onnx.ModelProto) -> Run:
    """Load a model with ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]
    return lambda tensors: list(session.run(None, dict(zip(names, tensors, strict=False))))


def openvino_alone(model: onnx.ModelProto) -> Run:
    """Load a model with OpenVINO."""
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()),
        "CPU",
        {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1},
    )
    request = compiled.create_infer_request()
    names = [value.name for value in fed(model)]

    def run(tensors: list[Any]) -> list[Any]:
        given = dict(zip(names, tensors, strict=False))
        feeds = {
            position: given[name]
            for position, port in enumerate(compiled.inputs)
            for name in port.get_names() & given.keys()
        }
        answers = request.infer(feeds)
        ports = {name: port for port in compiled.outputs for name in port.get_names()}
        return [np.array(answers[ports[value.name]]) for value in model.graph.output]

    return run
