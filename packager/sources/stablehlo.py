"""Reads StableHLO modules that a user gives: their inputs, outputs and operators.

A module comes as MLIR text, as MLIR bytecode (also a portable artefact), or in the file that
`jax.export` serializes, which holds such an artefact. This code runs in a step's process: a broken
module may crash the parser.

Rules:
- The user's file is only read; the clean copy does not tell where it was made.
- A fault of the model is one `ModelError` with one line; sizes and counts have bounds.
- A device runs the function `main`, whose shapes must all be known: IREE translates few of the
  operators that shapes computed at run time need.
- Inputs have the names that the exporting program gave them, else `input0`, `input1`...

Source:
    OpenXLA, StableHLO, docs/bytecode.md and docs/vhlo.md; MLIR bytecode format; JAX,
    jax/_src/export/serialization.fbs: the module is a FlatBuffers vector, its size before it.
"""

from __future__ import annotations

import io
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from iree.compiler import ir
from iree.compiler.passmanager import PassManager

from packager.errors import ModelError
from packager.files import read_bounded
from packager.plan.figures import ModelFacts
from packager.sources.stablehlo_indices import bound_indices
from runtime_adapters.checks import shortened
from runtime_adapters.compiled import MAX_TENSORS
from runtime_adapters.iree.abi import FUNCTION
from wire.package.tensors import Datatype, TensorSpec

MODULE_FILE: Final = "model.mlirbc"
MAX_MODULE_BYTES: Final = 1 << 30
MAX_OPERATIONS: Final = 500_000
MAX_RANK: Final = 16

_MAGIC: Final = b"ML\xefR"
_REMEDY: Final = (
    "give StableHLO as MLIR (.mlir, .mlirbc), or the output of jax.export.export(jax.jit(f))(specs)"
    ".serialize()"
)
_DIALECTS: Final = frozenset({"builtin", "chlo", "func", "stablehlo", "vhlo"})
_PORTABLE: Final = re.compile(r"!?vhlo\.(\w+?)_v\d+")
"""Portable artefacts spell every operator and type with a version."""

_TENSOR: Final = re.compile(r"tensor<((?:\d+x|\?x)*)([a-z]\w*)[^<>]*>")
_NAME: Final = re.compile(r'^loc\("([A-Za-z_]\w*)"\)$')
_RESULT: Final = re.compile(r'jax\.result_info\W[^"]*?"(?:result(?=\[\'))?([^"]*)"')
"""JAX writes `result`, `result[0]` or `result['name']`."""

_DATATYPES: Final[dict[str, Datatype]] = {
    "bool": "BOOL",
    "i1": "BOOL",
    "ui8": "UINT8",
    "ui16": "UINT16",
    "ui32": "UINT32",
    "ui64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
}


def load(path: Path) -> tuple[bytes, ModelFacts]:
    """Read and check a module.

    Args:
        path: The file.

    Returns:
        A clean copy as MLIR bytecode, and what the planner must know.

    Raises:
        ModelError: Not such a module, or of a kind that is not supported.
    """
    content = module_bytes(path)
    with ir.Context():
        try:
            module = ir.Module.parse(content)
        except Exception as exc:
            raise ModelError(
                f"the file is not a StableHLO module: {_first_error(exc)}", remedy=_REMEDY
            ) from exc
        facts = _facts(module)
        clean = io.BytesIO()
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        module.operation.write_bytecode(clean)
    return clean.getvalue(), facts


def module_bytes(path: Path) -> bytes:
    """Read a file and return the module in it.

    Args:
        path: The file.

    Returns:
        MLIR text or bytecode.

    Raises:
        ModelError: It cannot be read, is too large, or there is no module in it.
    """
    content = read_bounded(path, MAX_MODULE_BYTES, ModelError, called="the module")
    start = content.find(_MAGIC)
    if start == 0:
        return content
    if start >= struct.calcsize("<I"):
        (size,) = struct.unpack_from("<I", content, start - struct.calcsize("<I"))
        if start + size > len(content):
            raise ModelError("the exported file is truncated", remedy="copy or export it again")
        return content[start : start + size]
    if not content.strip() or b"\0" in content:
        raise ModelError("the file is not a StableHLO module", remedy=_REMEDY)
    return content


def _facts(module: ir.Module) -> ModelFacts:
    """Bound a module's indices and collect what the planner must know.

    Raises:
        ModelError: There is no function `main`, or something in it is not supported.
    """
    operators: set[str] = set()
    parameters = 0
    for count, operation in enumerate(list(_operations(module.operation))):
        if count >= MAX_OPERATIONS:
            raise ModelError(f"the module has over {MAX_OPERATIONS} operations")
        dialect, _, kind = operation.name.partition(".")
        if dialect not in _DIALECTS:
            raise ModelError(
                f"the module holds {operation.name[:80]}, which is not StableHLO", remedy=_REMEDY
            )
        kind = _PORTABLE.sub(r"\1", operation.name) if dialect == "vhlo" else kind
        if dialect != "builtin" and kind not in {"func", "return", "call"}:
            operators.add(f"stablehlo.{kind}")
        bound_indices(operation, kind)
        if kind == "constant":
            parameters += _size(str(operation.results[0].type))
    inputs, outputs = _signature(_main(module))
    return ModelFacts(
        kind="stablehlo",
        inputs=inputs,
        outputs=outputs,
        operators=tuple(sorted(operators)),
        opset=0,
        parameters=parameters,
    )


def _operations(operation: Any) -> Iterator[Any]:  # noqa: ANN401 - the bindings are untyped
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _operations(inner.operation)


def _main(module: ir.Module) -> Any:  # noqa: ANN401 - the bindings are untyped
    """Return the function that runs.

    Raises:
        ModelError: There is none.
    """
    for outer in module.body.operations:
        operation = outer.operation
        if "sym_name" in operation.attributes and f'"{FUNCTION}"' in str(
            operation.attributes["sym_name"]
        ):
            return operation
    raise ModelError(
        f"the module has no function {FUNCTION!r}",
        remedy=f"give the function that the device runs the name {FUNCTION!r}",
    )


def _signature(main: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:  # noqa: ANN401
    """Return what a function takes and gives.

    Raises:
        ModelError: A type or shape that is not supported.
    """
    attributes = main.attributes
    if "_platform_index" in (str(attributes["arg_attrs"]) if "arg_attrs" in attributes else ""):
        raise ModelError(
            "the module was exported for several platforms",
            remedy="export it with platforms=['cpu']",
        )
    arguments = main.regions[0].blocks[0].arguments
    results = _results(_PORTABLE.sub(r"\1", str(attributes["function_type"])))
    if not results or max(len(arguments), len(results)) > MAX_TENSORS:
        raise ModelError(
            f"the function has no results, or more than {MAX_TENSORS} results or arguments"
        )
    named = [_NAME.match(str(argument.location)) for argument in arguments]
    told = _RESULT.findall(str(attributes["res_attrs"])) if "res_attrs" in attributes else []
    inputs = _named([match.group(1) if match else "" for match in named], len(arguments), "input")
    outputs = _named(told, len(results), "output")
    return (
        tuple(
            _spec("input", name, _PORTABLE.sub(r"\1", str(argument.type)))
            for name, argument in zip(inputs, arguments, strict=True)
        ),
        tuple(_spec("output", name, text) for name, text in zip(outputs, results, strict=True)),
    )


def _results(function_type: str) -> list[str]:
    """Return the types of a function's results; what is no plain tensor comes last."""
    _, _, results = function_type.rpartition("->")
    found = [match.group(0) for match in _TENSOR.finditer(results)]
    rest = re.sub(r"[\s(),>]|type|func", "", _TENSOR.sub("", results))
    return [*found, *([rest] if rest else [])]


def _named(names: list[str], count: int, role: str) -> list[str]:
    """Return plain, different names; where the module has no such names, names by position."""
    plain = [re.sub(r"\W+", "_", name).strip("_") for name in names]
    if len(plain) == count and all(plain) and len(set(plain)) == count:
        return plain
    return [f"{role}{index}" for index in range(count)]


def _spec(role: str, name: str, text: str) -> TensorSpec:
    """Return the declaration of a tensor of a type.

    Raises:
        ModelError: No tensor, of a type without a name, or of a shape that is not known.
    """
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ModelError(f"{role} {name!r} is {shortened(text)[:80]}, which is not a plain tensor")
    datatype = _DATATYPES.get(match.group(2))
    if datatype is None:
        raise ModelError(f"{role} {name!r} is of type {match.group(2)}, which is not supported")
    sizes = match.group(1).split("x")[:-1]
    if "?" in sizes:
        raise ModelError(
            f"{role} {name!r} has a shape that is only known at run time",
            remedy="export the model with fixed shapes and a batch of 1",
        )
    if len(sizes) > MAX_RANK:
        raise ModelError(f"{role} {name!r} has over {MAX_RANK} dimensions")
    return TensorSpec(name=name, datatype=datatype, shape=tuple(map(int, sizes)))


def _size(text: str) -> int:
    match = _TENSOR.search(_PORTABLE.sub(r"\1", text))
    sizes = match.group(1).split("x")[:-1] if match else []
    return math.prod(int(size) for size in sizes if size != "?")


def _first_error(exc: Exception) -> str:
    """Return what the parser says first, without the place."""
    lines = [line for line in str(exc).splitlines() if "error:" in line]
    text = lines[0].partition("error: ")[2] if lines else str(exc)
    return shortened(re.sub(r'^"-":\d+:\d+: ', "", text))[:200]
