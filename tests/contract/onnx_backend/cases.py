"""ONNX's own backend tests, run through an adapter or through a runtime's bare API.

Rules:
- The cases are those of `onnx.backend.test`, made in memory; the models that come with ONNX as
  files ride along. Nothing is downloaded.
- A case that the declaration of a variant has no words for is left out, by a reason that is
  counted; so is one of an operator set that is newer than the runtimes know.
- The recorded lists hold what passes, one case a line, after the operator that it is about.

Source:
    onnx.backend.test.runner; the Open Inference Protocol for the types that a tensor may have.
"""

from __future__ import annotations

import re
import unittest
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto
from onnx.backend.test import BackendTest

from runtime_adapters import registry
from runtime_adapters.protocol import Limits, Tensor
from tests.contract.adapter_models import ONNX_TYPES
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import VariantInfo

NEWEST_IR: Final = 13
NEWEST_OPSET: Final = 26
LISTS: Final = Path(__file__).parent
_MODEL_FILE: Final = "model.onnx"
EXPANDED: Final = re.compile(r"_expanded(_ver\d+)?(?=_cpu$)")
"""In the name of a case whose operator is replaced by the function that defines it."""

_DATATYPES: Final[dict[int, Datatype]] = {number: name for name, number in ONNX_TYPES.items()}

Run = Callable[[list[Any]], list[Any]]
Prepare = Callable[[onnx.ModelProto], Run]


class LeftOutError(unittest.SkipTest):
    """The case is one that adapters do not promise to run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case."""

    passed: bool
    reason: str = ""
    """Why it failed, in one line, or why it was left out."""

    left_out: bool = False


class Cases:
    """All cases, to be run in one way.

    Args:
        prepare: Loads a model, and returns what runs it on arrays in the order of its inputs.
        scratch: A directory for the copies that ONNX makes of its test data.
    """

    def __init__(self, prepare: Prepare, scratch: Path) -> None:
        self._backend = _Backend(prepare)
        self._environment = {"ONNX_HOME": str(scratch), "ONNX_MODELS": str(scratch)}
        self._functions: dict[str, Callable[[object], None]] = {}
        with warnings.catch_warnings(action="ignore"):  # of the arithmetic in ONNX's own cases
            for case in BackendTest(self._backend).test_cases.values():
                self._functions |= {
                    name: function
                    for name, function in vars(case).items()
                    if name.startswith("test_") and name.endswith("_cpu")
                }

    @property
    def names(self) -> list[str]:
        """The names of all cases."""
        return sorted(self._functions)

    def run(self, name: str) -> Outcome:
        """Run one case and say what became of it."""
        function = self._functions.get(name)
        if function is None:
            return Outcome(passed=False, reason="ONNX has no such case any more")
        try:
            with (
                warnings.catch_warnings(action="ignore"),
                mock.patch.dict("os.environ", self._environment),
            ):
                function(None)
        except unittest.SkipTest as exc:
            return Outcome(passed=False, left_out=True, reason=str(exc))
        except Exception as exc:  # noqa: BLE001 - whatever a runtime or a comparison raises
            words = " ".join(str(exc).split())
            return Outcome(passed=False, reason=f"{type(exc).__name__}: {words[:200]}")
        return Outcome(passed=True)

    def operator(self) -> str:
        """Return the first operator of the model that was run last."""
        return self._backend.operator


def through_adapter(runtime: str, directory: Path) -> Prepare:
    """Return the way of running a model that goes through an adapter.

    Args:
        runtime: The adapter's name.
        directory: Where the model's file is written, over that of the model before.
    """

    def prepare(model: onnx.ModelProto) -> Run:
        info = declaration(runtime, model)
        onnx.save(model, str(directory / _MODEL_FILE))
        session = registry.open_session(directory, info, Limits())

        def run(tensors: list[Any]) -> list[Any]:
            names = [spec.name for spec in info.inputs]
            answers = session.infer(dict(zip(names, map(_given, tensors), strict=True)))
            return [_texts(answers[spec.name]) for spec in info.outputs]

        return run

    return prepare


def declaration(runtime: str, model: onnx.ModelProto) -> VariantInfo:
    """Declare a variant of a model as the model itself says.

    Raises:
        LeftOutError: A variant's declaration has no words for it.
    """
    return VariantInfo(
        runtime=runtime,
        precision="fp32",
        model_file=_MODEL_FILE,
        options={},
        inputs=tuple(map(_spec, fed(model))),
        outputs=tuple(map(_spec, model.graph.output)),
        size_bytes=1,
    )


def fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return those inputs of a model that have no value of their own."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def recorded(runtime: str, *, part: int = 0, parts: int = 1) -> dict[str, list[str]]:
    """Return the cases that are known to pass through an adapter, by operator.

    Of a case and its expanded form, which has its inputs and its answers, only the case: to an
    adapter they are the same, and only the runtime has more operators to compile.

    Args:
        runtime: The adapter's name.
        part: Which part of the operators is wanted, from 0.
        parts: Into how many parts they are dealt out.
    """
    lines = (LISTS / f"{runtime}.txt").read_text(encoding="ascii").splitlines()
    found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    names = {name for _, _, name in found}
    groups: dict[str, list[str]] = {}
    for operator, _, name in found:
        plain = EXPANDED.sub("", name)
        if plain == name or plain not in names:
            groups.setdefault(operator, []).append(name)
    return dict(list(groups.items())[part::parts])


def check_none_is_lost(cases: Cases, runtime: str, names: list[str]) -> None:
    """Run cases that are known to pass.

    Raises:
        AssertionError: One of them does not.
    """
    lost = {name: outcome for name in names if not (outcome := cases.run(name)).passed}
    if lost:
        faults = "\n".join(f"  {name}: {outcome.reason}" for name, outcome in lost.items())
        raise AssertionError(
            f"{runtime} has lost {len(lost)} of {len(names)} of ONNX's backend tests:\n{faults}\n"
            "where that is right, record the list anew with: "
            f"python -m tests.contract.onnx_backend --record {runtime}"
        )


class _Backend:
    """What ONNX's tests call: the two methods of `onnx.backend.base.Backend` that they use."""

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self.operator = ""

    def supports_device(self, device: str) -> bool:
        return device == "CPU"

    def prepare(self, model: onnx.ModelProto, _device: str) -> _Prepared:
        self.operator = str(model.graph.node[0].op_type)
        _check_versions(model)
        return _Prepared(self._prepare(model))


class _Prepared:
    """The one method of `onnx.backend.base.BackendRep` that ONNX's tests use."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        # NumPy's scalars among the inputs are arrays without dimensions.
        return self._run([np.asarray(x) if isinstance(x, np.generic) else x for x in inputs])


def _check_versions(model: onnx.ModelProto) -> None:
    model.ir_version = min(model.ir_version, NEWEST_IR)
    for opset in model.opset_import:
        if opset.domain in {"", "ai.onnx"} and opset.version > NEWEST_OPSET:
            raise LeftOutError(f"operator set {opset.version}")
        if opset.domain.startswith("ai.onnx.preview"):
            raise LeftOutError("preview operators")


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise LeftOutError(str(kind).removesuffix("_type"))
    tensor = value.type.tensor_type
    datatype = _DATATYPES.get(tensor.elem_type)
    if datatype is None:
        raise LeftOutError(f"type {TensorProto.DataType.Name(tensor.elem_type)}")
    if not tensor.HasField("shape"):
        raise LeftOutError("unknown rank")
    shape = tuple(size.dim_value if size.HasField("dim_value") else -1 for size in tensor.shape.dim)
    return TensorSpec(name=value.name, datatype=datatype, shape=shape)


def _given(tensor: Tensor) -> Tensor:
    return tensor.astype(np.object_) if tensor.dtype.kind in "US" else tensor


def _texts(tensor: Tensor) -> Tensor:
    """Return BYTES as text, which ONNX's cases expect."""
    if not tensor.dtype.hasobject:
        return tensor
    texts = np.empty(tensor.size, dtype=np.object_)
    texts[:] = [item.decode() for item in tensor.flat]
    return texts.reshape(tensor.shape)
