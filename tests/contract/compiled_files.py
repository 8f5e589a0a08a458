"""Tiny ONNX models as compiled code for this machine's kind of processor.

Rules:
- Equal models are compiled once in a process, however many tests ask for them.
- The least demanding target is taken: the code is the same on every machine of a kind.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import onnx

from packager.plan.targets import TARGETS
from packager.runtimes.iree import models as iree_models
from packager.runtimes.tvm import models as tvm_models
from packager.runtimes.tvm.spec import missing_to_build
from packager.sources.onnx_model import facts_of
from packager.tools import toolchains

TARGET = next((t for t in reversed(TARGETS) if toolchains.natively_runnable(t)), None)


def missing(runtime: str) -> str | None:
    """Say what this machine lacks to compile for a runtime, or None."""
    if TARGET is None:
        return "nothing is compiled for this kind of processor"
    lacking = missing_to_build(TARGET) if runtime == "tvm" else None
    return f"{lacking} is not installed" if lacking else None


def write_library(path: Path, model: onnx.ModelProto) -> None:
    """Write a model as TVM's shared library."""
    _write(path, "tvm", model)


def write_module(path: Path, model: onnx.ModelProto) -> None:
    """Write a model as IREE's module, with its description beside it."""
    _write(path, "iree", model)


def _write(path: Path, runtime: str, model: onnx.ModelProto) -> None:
    content = model.SerializeToString(deterministic=True)
    for suffix, data in _compiled(runtime, content).items():
        path.with_suffix(suffix).write_bytes(data)


@functools.cache
def _compiled(runtime: str, content: bytes) -> dict[str, bytes]:
    """Return the content of each file by its suffix."""
    if TARGET is None:
        raise LookupError(missing(runtime))
    with tempfile.TemporaryDirectory() as name:
        source, made = Path(name, "source.onnx"), Path(name, "made")
        source.write_bytes(content)
        made.mkdir()
        if runtime == "tvm":
            facts = facts_of(onnx.ModelProto.FromString(content), ())
            destination = made / "model.so"
            tvm_models.compile_model(source, facts.inputs, facts.outputs, TARGET, destination)
        else:
            iree_models.compile_model(source, made / "model.vmfb", TARGET)
        return {path.suffix: path.read_bytes() for path in sorted(made.iterdir())}
