"""LiteRT's model format: conversion from ONNX.

onnx2tf changes images to channels last, also in the model's inputs and outputs. Here these keep the
shapes that the ONNX model declares: the model transposes an input inside, and an output gets a
reshape to its own shape, which makes onnx2tf transpose it back first. That costs a transposition
within XNNPACK (under 1 % for a CIFAR-10 ResNet-20); transposing arrays in Python would cost more
per call.

Rules:
- onnx2tf writes to its input, so it gets a copy; it runs as a process of its own environment.
- A batch that varies becomes a batch of one; the adapter runs a request's samples one by one.
- The exit status of onnx2tf proves nothing: this module checks names, shapes, types, operators and
  size, and `parity` checks the numbers.
- Equal models give equal bytes.

Source:
    onnx2tf 2.6, `flatbuffer_direct`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from packager.errors import StepError
from packager.runtimes.common.onnx_folding import folded
from packager.runtimes.litert import tflite_files
from packager.sources import tflite
from packager.sources.onnx_checks import tensor_spec
from packager.sources.onnx_graph import all_graphs, all_nodes
from wire.errors import FleetError
from wire.package.tensors import TensorSpec

TIMEOUT_S: Final = 1800
MIN_WEIGHTS: Final = 0.4
"""A file below this share of the ONNX model's weights has lost some of them. Integers may have
become half as wide."""

_PREFIX: Final = "edgefleet_"
_LAYOUT_RANK: Final = 3
"""onnx2tf changes tensors of this rank and more to channels last."""

_OPTIONS: Final = (
    "--tflite_backend", "flatbuffer_direct", "--not_use_onnxsim",
    "--copy_onnx_input_output_names_to_tflite", "--non_verbose", "--verbosity", "error",
)  # fmt: skip


def convert(model: Path, target: Path, *, python: Path) -> None:
    """Convert an ONNX model to a float32 TFLite model.

    Args:
        model: The prepared model, which is only read.
        target: The `.tflite` file to write.
        python: The interpreter of onnx2tf's environment.

    Raises:
        StepError: onnx2tf does not take the model, or what it wrote is not the same model.
    """
    proto = _one_sample(onnx.load(str(model)))
    inputs = [tensor_spec(value, "input") for value in proto.graph.input]
    outputs = [tensor_spec(value, "output") for value in proto.graph.output]
    _keep_output_layouts(proto, outputs)
    plain_in = _renamed(proto, proto.graph.input, "input")
    plain_out = _renamed(proto, proto.graph.output, "output")
    with tempfile.TemporaryDirectory(prefix="edgefleet-onnx2tf-") as name:
        folder = Path(name)
        onnx.save(proto, str(folder / "model.onnx"))
        written = _run(folder, list(plain_in), python)
        converted = tflite_files.read(written)
    found_in, found_out = tflite_files.inputs_of(converted), tflite_files.outputs_of(converted)
    if set(found_in) != set(plain_in) or set(found_out) != set(plain_out):
        raise StepError(
            f"onnx2tf changed the inputs or outputs of the model: {found_in} to {found_out}"
        )
    tflite_files.normalize(
        converted, [plain_in[n] for n in found_in], [plain_out[n] for n in found_out]
    )
    tflite_files.write(converted, target)
    _check(target, inputs, outputs, weights=_weight_bytes(proto))


def _one_sample(proto: Any) -> Any:  # noqa: ANN401 - onnx is untyped
    """Fix the batch at one and work out the shapes that follow.

    Raises:
        StepError: Another dimension varies too.
    """
    varied = False
    for value in proto.graph.input:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value <= 0:
            dims[0].dim_value = 1
            varied = True
        if any(dim.dim_value <= 0 for dim in dims):
            raise StepError(
                f"onnx2tf needs fixed sizes, input {value.name[:80]!r} varies in more than its "
                "batch",
                remedy="export the model with fixed sizes",
            )
    del proto.graph.value_info[:]
    if varied:
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
    proto = folded(proto)  # the prepared model may compute weights; onnx2tf needs them stored
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # noqa: BLE001 - what shapes it lacks is found below
        return proto


def _keep_output_layouts(proto: Any, outputs: Iterable[TensorSpec]) -> None:  # noqa: ANN401
    """Reshape outputs to their own shapes, which makes onnx2tf transpose them back first."""
    for spec in outputs:
        if len(spec.shape) < _LAYOUT_RANK or any(size <= 0 for size in spec.shape):
            continue
        inner, shape = f"{_PREFIX}inner_{spec.name}", f"{_PREFIX}shape_{spec.name}"
        _rename(proto.graph, spec.name, inner)
        proto.graph.initializer.append(
            numpy_helper.from_array(np.array(spec.shape, np.int64), shape)
        )
        proto.graph.node.append(helper.make_node("Reshape", [inner, shape], [spec.name]))


def _renamed(proto: Any, values: Iterable[Any], role: str) -> dict[str, str]:  # noqa: ANN401
    """Give inputs or outputs names that onnx2tf does not change.

    Returns:
        New name to old one.
    """
    names: dict[str, str] = {}
    for position, value in enumerate(values):
        plain = f"{_PREFIX}{role}_{position}"
        names[plain] = value.name
        _rename(proto.graph, value.name, plain)
        value.name = plain
    return names


def _rename(graph: Any, old: str, new: str) -> None:  # noqa: ANN401 - onnx is untyped
    for node in all_nodes(graph):
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name == old:
                    names[position] = new
    for inner in all_graphs(graph):
        for value in inner.output if inner is not graph else ():
            if value.name == old:
                value.name = new


def _run(folder: Path, inputs: list[str], python: Path) -> Path:
    """Run onnx2tf in a folder.

    Returns:
        The file that it wrote.

    Raises:
        StepError: It failed, ran over its time, or wrote nothing.
    """
    command = [
        str(python), "-P", "-s", "-m", "onnx2tf", *_OPTIONS,
        "-i", "model.onnx", "-o", "out", "--keep_shape_absolutely_input_names", *inputs,
    ]  # fmt: skip
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONHASHSEED": "0",  # onnx2tf iterates over sets
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    except OSError as exc:
        raise StepError(f"onnx2tf cannot be started: {exc.strerror}") from exc
    except subprocess.TimeoutExpired as exc:
        raise StepError(f"onnx2tf ran over {TIMEOUT_S} s") from exc
    written = folder / "out" / "model_float32.tflite"
    if done.returncode != 0 or not written.is_file():
        raise StepError(f"onnx2tf failed: {_reason(done.stdout.decode(errors='replace'))}")
    return written


def _reason(output: str) -> str:
    """Return the line that names the fault: the last one that looks like an error."""
    lines = [" ".join(line.split()) for line in output.replace("\r", "\n").splitlines()]
    lines = [line for line in lines if line]
    faults = [line for line in lines if "Error" in line or "ERROR" in line]
    return (faults or lines or ["it wrote nothing"])[-1][-200:]


def _check(
    target: Path, inputs: list[TensorSpec], outputs: list[TensorSpec], *, weights: int
) -> None:
    """Check what can be told without running the model.

    Raises:
        StepError: It is not the same model.
    """
    try:
        found = tflite.read(target)
    except FleetError as exc:
        raise StepError(f"onnx2tf wrote no valid model: {exc.message}") from exc
    if found.custom:
        raise StepError(
            "the model that onnx2tf wrote has operators that LiteRT does not have: "
            f"{', '.join(found.custom)[:200]}"
        )
    for role, specs, given in (("input", inputs, found.inputs), ("output", outputs, found.outputs)):
        by_name = {spec.name: spec for spec in given}
        for spec in specs:
            other = by_name[spec.name]
            if other.datatype != spec.datatype or not _same_shape(other.shape, spec.shape):
                raise StepError(
                    f"onnx2tf made {role} {spec.name!r} {other.datatype} {list(other.shape)}, "
                    f"in the model it is {spec.datatype} {list(spec.shape)}"
                )
    if target.stat().st_size < MIN_WEIGHTS * weights:
        raise StepError(
            f"onnx2tf wrote {target.stat().st_size} bytes for a model with {weights} bytes of "
            "weights"
        )


def _same_shape(found: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    """Compare shapes; a size that the model does not declare may be anything."""
    return len(found) == len(declared) and all(
        size in {-1, other} for other, size in zip(found, declared, strict=True)
    )


def _weight_bytes(proto: Any) -> int:  # noqa: ANN401 - onnx is untyped
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in proto.graph.initializer)
