"""The models that tests of the packager work on, where they lie, and some that are made to be hard.

The trained networks for photographs are no part of the repository: EDGEFLEET_MODELS names their
folder, and tests that need one are skipped without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from runtime_adapters.processor import cpu_flags
from runtime_adapters.protocol import Tensor, Tensors

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
MODELS = Path(os.environ.get("EDGEFLEET_MODELS", str(ROOT.parent / "shared" / "models")))
ODD_SHAPE = (1, 8, 37, 37)
"""Of what `odd_convolution` takes. 37 is a prime, which the plain schedule does not cut into
vectors: any schedule is several times as fast."""

ODD_ANSWER = (1, 16, 37, 37)
SATURATES = os.uname().machine == "x86_64" and not {"avx512_vnni", "avx_vnni"} & cpu_flags()
"""Whether sums of products of full-range bytes saturate on this machine, so that weights need seven
bits."""


class Images(NamedTuple):
    """CIFAR-10 images as the trained ResNet-20 takes them."""

    x: NDArray[np.float32]
    labels: NDArray[np.int64]


def trained(name: str) -> Path:
    """Return a trained model; skip the test where it is not there."""
    path = MODELS / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; set EDGEFLEET_MODELS")
    return path


def cifar_images(file: str, count: int) -> Images:
    """Return the first images of a file, scaled as the trained ResNet-20 wants them."""
    with np.load(trained("cifar10/calib512.npz")) as arrays:
        mean, std = arrays["mean"], arrays["std"]
    with np.load(trained(f"cifar10/{file}.npz")) as arrays:
        pixels, labels = arrays["x"][:count], arrays["y"][:count]
    scaled = (pixels / np.float32(255) - mean) / std
    return Images(np.ascontiguousarray(scaled.astype(np.float32).transpose(0, 3, 1, 2)), labels)


def write_digits_data(folder: Path) -> None:
    """Write the demo's `calibration.npz` and `evaluation.npz`."""
    command = [sys.executable, str(DIGITS.with_name("data.py")), str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def digits_data(folder: Path) -> dict[str, Tensors]:
    """Return the demo's samples by set; `folder` gets its files."""
    write_digits_data(folder)
    found: dict[str, Tensors] = {}
    for name in ("calibration", "evaluation"):
        with np.load(folder / f"{name}.npz") as arrays:
            found[name] = dict(arrays)
    return found


def hard_digits() -> bytes:
    """Scale two channels a thousandfold and back: equal in float, a range too wide for int8."""
    model = onnx.load(str(DIGITS))
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    _, wide, back = [node for node in model.graph.node if node.op_type == "Conv"][:3]
    for name, factor, axis in (
        (wide.input[1], 1e3, 0),
        (wide.input[2], 1e3, 0),
        (back.input[1], 1e-3, 1),
    ):
        values = numpy_helper.to_array(weights[name]).copy()
        values[(slice(None),) * axis + (slice(0, 2),)] *= factor
        weights[name].CopyFrom(numpy_helper.from_array(values, name))
    content: bytes = model.SerializeToString()
    return content


def odd_convolution(path: Path) -> Path:
    """Write a convolution that a search for schedules speeds up."""
    weights = np.random.default_rng(0).random((16, 8, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["input", "w"], ["y"], pads=[1, 1, 1, 1])],
        "odd",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ODD_SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ODD_ANSWER)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def uniform(*shape: int, seed: int = 0) -> Tensor:
    """Return random values between 0 and 1."""
    array: NDArray[Any] = np.random.default_rng(seed).random(shape, np.float32)
    return array
