"""How each runtime gets ONNX's backend tests: as they are, compiled, or converted."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.contract.onnx_backend import converted
from tests.contract.onnx_backend.bare import onnxruntime_alone, openvino_alone
from tests.contract.onnx_backend.cases import Prepare, through_adapter
from tests.contract.onnx_backend.compiled import kit_of, through_compiler


@dataclass(frozen=True, slots=True)
class Prepared:
    """The ways of loading a model, ready for use."""

    adapter: Prepare
    """Through the adapter."""

    alone: Prepare | None = None
    """Through the runtime's own API; None where the adapter's is the only way."""


@dataclass(frozen=True, slots=True)
class Way:
    """A runtime's way."""

    prepared: Callable[[Path, contextlib.ExitStack, float], Prepared]
    """Takes an empty directory, where to leave what must be closed, and how many cases of one
    operator are wanted."""

    missing: Callable[[], str | None] = lambda: None
    """Say what this machine lacks, or None."""

    most_each: float = math.inf
    """Cases of one operator that are recorded."""


def _direct(runtime: str, alone: Prepare) -> Way:
    return Way(lambda place, _stack, _most: Prepared(through_adapter(runtime, place), alone))


def _compiled(runtime: str, most_each: float) -> Way:
    return Way(
        lambda place, _stack, most: Prepared(through_compiler(runtime, place, most_each=most)),
        kit_of(runtime).missing,
        most_each,
    )


def _converted(place: Path, stack: contextlib.ExitStack, most_each: float) -> Prepared:
    tool, files = place / "onnx2tf", place / "files"
    tool.mkdir()
    files.mkdir()
    conversions = converted.Conversions(stack.enter_context(converted.converter(tool)), files)
    return Prepared(
        converted.through_converter(conversions, most_each=most_each),
        converted.alone(conversions),
    )


WAYS: Final[dict[str, Way]] = {
    "onnxruntime": _direct("onnxruntime", onnxruntime_alone),
    "openvino": _direct("openvino", openvino_alone),
    # A conversion takes a quarter of a second, IREE's compiler most of one.
    "litert": Way(_converted, converted.missing, most_each=4),
    "tvm": _compiled("tvm", most_each=20),
    "iree": _compiled("iree", most_each=2),
}
