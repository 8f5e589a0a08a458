"""ONNX's backend tests, compiled and then run through the adapters for compiled code.

Rules:
- Only what the compilers take is compiled: a case whose inputs and outputs do not begin with a
  batch of one is left out, and so is one that an importer or compiler refuses.
- Each model has a directory of its own: a library that is loaded must not be written over.
"""

from __future__ import annotations

import collections
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import onnx

from packager.errors import ModelError, StepError
from runtime_adapters import registry
from runtime_adapters.errors import LoadError
from runtime_adapters.protocol import Limits
from tests.contract.adapter_models import KITS, Kit
from tests.contract.onnx_backend.cases import LeftOutError, Prepare, Run, declaration


def kit_of(runtime: str) -> Kit:
    """Return the kit of a runtime."""
    return next(kit for kit in KITS if kit.runtime == runtime)


def through_compiler(runtime: str, directory: Path, *, most_each: float) -> Prepare:
    """Return the way of running a model that compiles it and loads it with an adapter.

    Args:
        runtime: The adapter's name.
        directory: Where a directory is made for each model.
        most_each: How many models of one operator are loaded; the others are left out.
    """
    kit = kit_of(runtime)
    loaded: collections.Counter[str] = collections.Counter()

    def prepare(model: onnx.ModelProto) -> Run:
        info = msgspec.structs.replace(declaration(runtime, model), model_file=kit.model_file)
        if not info.inputs or any(s.shape[:1] != (1,) for s in (*info.inputs, *info.outputs)):
            raise LeftOutError("no batch of one")
        operators = [node.op_type for node in model.graph.node]
        if len(operators) > 1:
            raise LeftOutError("more than one operator")
        if loaded[operators[0]] >= most_each:
            raise LeftOutError("enough of its operator")
        place = Path(tempfile.mkdtemp(dir=directory))
        try:
            kit.write(place / kit.model_file, model)
        except (ModelError, StepError) as exc:
            raise LeftOutError("does not compile") from exc
        try:
            session = registry.open_session(place, info, Limits())
        except LoadError as exc:
            raise LeftOutError("compiles to other shapes, and is refused") from exc
        loaded[operators[0]] += 1

        def run(tensors: list[Any]) -> list[Any]:
            names = [spec.name for spec in info.inputs]
            answers = session.infer(dict(zip(names, tensors, strict=True)))
            return [answers[spec.name] for spec in info.outputs]

        return run

    return prepare
