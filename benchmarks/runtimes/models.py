"""One ONNX model in the form of every runtime, built for this machine.

Rules:
- What this machine lacks the tools for is left out, and said on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from packager.plan.targets import TARGETS
from packager.runtimes.litert import models as litert_models
from packager.runtimes.openvino import models as openvino_models
from packager.sources import onnx_model
from packager.tools import environments, toolchains
from runtime_adapters.protocol import Tensors
from runtime_adapters.tensors import DTYPES
from wire.errors import FleetError
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

FILES: Final = {
    "onnxruntime": "model.onnx",
    "openvino": "model.xml",
    "litert": "model.tflite",
    "tvm": "model.so",
    "iree": "model.vmfb",
}
SEED: Final = 20240229
LAYERS: Final = 8
CHANNELS: Final = 64
IMAGE: Final = 64


@dataclass(frozen=True, slots=True)
class Forms:
    """A model in the forms of some runtimes."""

    folder: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    runtimes: tuple[str, ...]

    def info(self, runtime: str) -> VariantInfo:
        """Declare the variant of a runtime."""
        return VariantInfo(
            runtime=runtime,
            precision="fp32",
            model_file=FILES[runtime],
            inputs=self.inputs,
            outputs=self.outputs,
            size_bytes=1,
        )

    def sample(self) -> Tensors:
        """Return one sample of random values."""
        random = np.random.default_rng(SEED)
        return {
            spec.name: random.random((1, *spec.shape[1:])).astype(DTYPES[spec.datatype])
            for spec in self.inputs
        }


def build(source: Path, folder: Path) -> Forms:
    """Build a model for every runtime that this machine has the tools for.

    Args:
        source: The ONNX model.
        folder: Where the forms go; it is made.

    Returns:
        The forms.
    """
    cleaned, notes = onnx_model.clean(onnx_model.load_checked(source))
    facts = onnx_model.facts_of(cleaned, notes)
    folder.mkdir()
    model = folder / FILES["onnxruntime"]
    model.write_bytes(onnx_model.model_bytes(cleaned))

    def litert() -> None:
        python = environments.environment_python("onnx2tf", environments.default_root())
        if python is None:
            raise LookupError("the environment of onnx2tf is not set up")
        litert_models.convert(model, folder / FILES["litert"], python=python)

    def tvm() -> None:
        from packager.runtimes.tvm import models as tvm_models

        target = next(target for target in TARGETS if toolchains.natively_runnable(target))
        place = folder / FILES["tvm"]
        tvm_models.compile_model(model, facts.inputs, facts.outputs, target, place)

    def iree() -> None:
        from packager.runtimes.iree import models as iree_models

        target = next(target for target in TARGETS if toolchains.natively_runnable(target))
        iree_models.compile_model(model, folder / FILES["iree"], target)

    builders: dict[str, Callable[[], None]] = {
        "onnxruntime": lambda: None,
        "openvino": lambda: openvino_models.convert(model, folder / FILES["openvino"]),
        "litert": litert,
        "tvm": tvm,
        "iree": iree,
    }
    made = []
    for runtime, builder in builders.items():
        try:
            builder()
        except (FleetError, ImportError, LookupError, StopIteration) as exc:
            print(f"{source.stem} is left out for {runtime}: {exc}", file=sys.stderr)
        else:
            made.append(runtime)
    return Forms(folder, facts.inputs, facts.outputs, tuple(made))


def convolutions(path: Path) -> Path:
    """Write a model of some convolutions with seeded weights, which takes a few milliseconds.

    Args:
        path: Where.

    Returns:
        The same path.
    """
    random = np.random.default_rng(SEED)
    nodes, weights, last, channels = [], [], "x", 3
    for layer in range(LAYERS):
        shape = (CHANNELS, channels, 3, 3)
        weight = (random.standard_normal(shape) * np.sqrt(2 / (9 * channels))).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"weight{layer}"))
        stride = 2 if layer == 0 else 1
        nodes += [
            helper.make_node(
                "Conv", [last, f"weight{layer}"], [f"sum{layer}"],
                pads=[1, 1, 1, 1], strides=[stride, stride],
            ),
            helper.make_node("Relu", [f"sum{layer}"], [f"layer{layer}"]),
        ]  # fmt: skip
        last, channels = f"layer{layer}", CHANNELS
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, IMAGE, IMAGE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", CHANNELS, 1, 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path
