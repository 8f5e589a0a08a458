"""ONNX's backend tests, converted by our converter and then run through the adapter for LiteRT.

Rules:
- A case is left out when it has more than one operator, an input without dimensions, or sizes that
  vary; when onnx2tf or our checks of what it wrote refuse it; and when LiteRT does not load it.
- Narrower integers are left out: LiteRT takes them for quantized, and for an addition of some that
  are not it ends the process.
- The same file is run without the adapter too: where both are wrong, the converter is.
- The converter is ours, unchanged; only the interpreter that it starts for each model is a short
  script, which asks a server that has imported onnx2tf already.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import onnx

from packager.errors import ModelError, StepError
from packager.runtimes.litert import models as litert_models
from packager.tools import environments
from runtime_adapters import registry
from runtime_adapters.errors import LoadError
from runtime_adapters.protocol import Limits
from tests.contract.adapter_models import copying_onnx
from tests.contract.onnx_backend.cases import LeftOutError, Prepare, Run, declaration
from wire.errors import FleetError

MODEL_FILE: Final = "model.tflite"
SERVER: Final = Path(__file__).with_name("onnx2tf_server.py")
PLAIN: Final = frozenset({"BOOL", "FP32", "INT32", "INT64"})
START_S: Final = 60.0
CLIENT: Final = """#!{python} -IS
import json, os, pathlib, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendall(json.dumps([os.getcwd(), sys.argv[5:]]).encode() + b"\\n")
    status = int(server.recv(16) or b"1")
sys.stdout.write(pathlib.Path("onnx2tf.log").read_text(errors="replace"))
sys.exit(status)
"""


def missing() -> str | None:
    """Say what this machine lacks to convert for LiteRT, or None."""
    if environments.environment_python("onnx2tf", environments.default_root()) is None:
        return "onnx2tf is not set up: fleet tool install onnx2tf"
    try:
        registry.get("litert")
    except FleetError as exc:
        return exc.message
    return None


@contextlib.contextmanager
def converter(directory: Path) -> Iterator[Path]:
    """Start onnx2tf for many models.

    Args:
        directory: Of its own, where the server and its models are.

    Yields:
        What is to be given for onnx2tf's interpreter.
    """
    python = environments.environment_python("onnx2tf", environments.default_root())
    address, client, first = (directory / name for name in ("socket", "python", "first"))
    client.write_text(CLIENT.format(python=sys.executable, address=str(address)), encoding="utf-8")
    client.chmod(0o700)
    first.mkdir()
    onnx.save(copying_onnx("FP32"), str(first / "model.onnx"))
    environment = {"PATH": os.defpath, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    with (
        (directory / "server.log").open("wb") as log,
        subprocess.Popen(
            [str(python), "-P", "-s", str(SERVER), str(address), str(first)],
            env=environment | {"HOME": str(directory), "TMPDIR": str(directory)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as server,
    ):
        end_s = time.monotonic() + START_S
        while not address.exists():
            if server.poll() is not None or time.monotonic() > end_s:
                server.kill()
                raise RuntimeError((directory / "server.log").read_text(errors="replace")[-500:])
            time.sleep(0.05)
        yield client


class Conversions:
    """Models as LiteRT's files, each converted once.

    Args:
        python: As `converter` yields it.
        directory: Where the files go.
    """

    def __init__(self, python: Path, directory: Path) -> None:
        self._python = python
        self._directory = directory

    def of(self, model: onnx.ModelProto) -> Path:
        """Return the directory of a model's file.

        Raises:
            LeftOutError: It does not convert.
        """
        name = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()[:16]
        place = self._directory / name
        if not place.exists():
            place.mkdir()
            onnx.save(model, str(place / "model.onnx"))
            try:
                litert_models.convert(place / "model.onnx", place / MODEL_FILE, python=self._python)
            except (StepError, ModelError):
                (place / MODEL_FILE).unlink(missing_ok=True)  # it may be there, and be refused
        if not (place / MODEL_FILE).is_file():
            raise LeftOutError("does not convert")
        return place


def through_converter(conversions: Conversions, *, most_each: float) -> Prepare:
    """Return the way of running a model that converts it and loads it with the adapter.

    Args:
        conversions: What converts.
        most_each: How many models of one operator are tried; the others are left out.
    """
    tried: collections.Counter[str] = collections.Counter()

    def prepare(model: onnx.ModelProto) -> Run:
        info = msgspec.structs.replace(declaration("litert", model), model_file=MODEL_FILE)
        if len(model.graph.node) > 1:
            raise LeftOutError("more than one operator")
        if not info.inputs or not all(spec.shape for spec in info.inputs):
            raise LeftOutError("no input, or one without dimensions")
        if any(size == -1 for spec in info.inputs for size in spec.shape[1:]):
            raise LeftOutError("sizes that vary")
        if any(spec.datatype not in PLAIN for spec in (*info.inputs, *info.outputs)):
            raise LeftOutError("types that LiteRT may take for quantized, or lacks")
        operator = model.graph.node[0].op_type
        if tried[operator] >= most_each:
            raise LeftOutError("enough of its operator")
        tried[operator] += 1
        place = conversions.of(model)
        try:
            session = registry.open_session(place, info, Limits())
        except LoadError as exc:
            raise LeftOutError("converts to what is refused") from exc

        def run(tensors: list[Any]) -> list[Any]:
            names = [spec.name for spec in info.inputs]
            answers = session.infer(dict(zip(names, tensors, strict=True)))
            return [answers[spec.name] for spec in info.outputs]

        return run

    return prepare


def alone(conversions: Conversions) -> Prepare:
    """Return the way of running a converted model with LiteRT's own interpreter."""

    def prepare(model: onnx.ModelProto) -> Run:
        from runtime_adapters.litert.library import litert

        info = declaration("litert", model)
        path = conversions.of(model) / MODEL_FILE
        interpreter = litert.Interpreter(model_path=str(path), num_threads=1)
        interpreter.allocate_tensors()
        inputs = {detail["name"]: detail for detail in interpreter.get_input_details()}
        outputs = {detail["name"]: detail for detail in interpreter.get_output_details()}

        def run(tensors: list[Any]) -> list[Any]:
            for spec, tensor in zip(info.inputs, tensors, strict=True):
                interpreter.set_tensor(inputs[spec.name]["index"], tensor)
            interpreter.invoke()
            return [interpreter.get_tensor(outputs[spec.name]["index"]) for spec in info.outputs]

        return run

    return prepare
