"""Trains the head of the digit classifier further, and leaves all else as it is.

That is how most new versions of a model come to be: some new samples, the last layer trained a
little further, every other weight the same to the bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from examples.digits.data import INPUT_KEY

WEIGHT, BIAS = "8.weight", "8.bias"
FEATURES: Final = "/7/Flatten_output_0"
STEPS: Final = 20
RATE: Final = 0.02
"""A few small steps of gradient descent: the head moves, and forgets nothing."""


def tune_head(model: Path, samples: Path, output: Path) -> None:
    """Write the model with a head that was trained further.

    Args:
        model: The ONNX file.
        samples: `.npz` with images and labels.
        output: The file to write.
    """
    network = onnx.load(model)
    with np.load(samples, allow_pickle=False) as arrays:
        images, labels = arrays[INPUT_KEY], arrays["label"]
    features = _features(network, images)
    head = {each.name: each for each in network.graph.initializer}
    weight = numpy_helper.to_array(head[WEIGHT]).astype(np.float64)
    bias = numpy_helper.to_array(head[BIAS]).astype(np.float64)
    wanted = np.eye(len(bias))[labels]
    for _ in range(STEPS):
        logits = features @ weight.T + bias
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (chances / chances.sum(axis=1, keepdims=True) - wanted) / len(labels)
        weight -= RATE * error.T @ features
        bias -= RATE * error.sum(axis=0)
    for name, values in ((WEIGHT, weight), (BIAS, bias)):
        head[name].CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))
    onnx.save(network, output)


def _features(network: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    """Return what the head gets."""
    whole = onnx.ModelProto()
    whole.CopyFrom(network)
    whole.graph.output.append(onnx.helper.make_tensor_value_info(FEATURES, 1, None))
    session = onnxruntime.InferenceSession(
        whole.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run([FEATURES], {session.get_inputs()[0].name: images})[0])
