"""Checks that every adapter makes before its runtime loads a model.

Rules:
- If the model does not match its declaration, the package is at fault. The adapter finds this when
  it loads the model and not at the first request.
- An adapter refuses an option that it does not know, because the option would have no effect and
  nobody would notice.
- An error is one line of at most `MAX_REASON` characters, whatever a runtime writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from runtime_adapters.errors import LoadError
from runtime_adapters.protocol import Limits
from runtime_adapters.tensors import ANY
from wire.errors import WireFormatError
from wire.package.paths import safe_path
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import VariantInfo

MAX_REASON: Final = 300
MAX_THREADS: Final = 1024

CLOSED: Final = "the session is closed"
REBUILD: Final = "use another variant, or build the package for this runtime's version"


class ModelTensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output as the loaded model has it."""

    datatype: Datatype | None
    """None for a type that the Open Inference Protocol has no name for."""

    shape: tuple[int, ...] | None
    """-1 for a dimension that may vary; None when the runtime does not know the rank."""


def model_path(directory: Path, info: VariantInfo, limits: Limits) -> Path:
    """Return the model file of a variant that may be loaded with these limits.

    Args:
        directory: The variant's directory.
        info: The variant's declaration.
        limits: What the session may use.

    Returns:
        The path of a file that exists.

    Raises:
        LoadError: No such file, a path that leaves the directory, or an impossible limit.
    """
    if not 1 <= limits.threads <= MAX_THREADS:
        raise LoadError(f"{limits.threads} threads are not within 1 to {MAX_THREADS}")
    try:
        path = directory / safe_path(info.model_file)
    except WireFormatError as exc:
        raise LoadError(
            f"model file {info.model_file[:80]!r} is not a simple relative path"
        ) from exc
    if not path.is_file():
        raise LoadError(
            f"model file {info.model_file!r} is missing",
            remedy="check the package's files, and fetch the package again",
        )
    return path


def check_options(info: VariantInfo, allowed: Mapping[str, Collection[str]]) -> None:
    """Refuse options that an adapter does not know.

    Args:
        info: The variant's declaration.
        allowed: Option to the values that it may have.

    Raises:
        LoadError: An unknown option or value.
    """
    for option, value in info.options.items():
        values = allowed.get(option)
        if values is None:
            known = f"the options are {', '.join(allowed)}" if allowed else "it has no options"
            raise LoadError(f"{info.runtime} has no option {option[:80]!r}", remedy=known)
        if value not in values:
            raise LoadError(
                f"option {option} is {value[:80]!r}",
                remedy=f"the possible values are {', '.join(values)}",
            )


def check_declaration(
    info: VariantInfo, inputs: Mapping[str, ModelTensor], outputs: Mapping[str, ModelTensor]
) -> None:
    """Refuse a model that does not keep what the variant declares.

    A model may have more outputs than the variant declares, but not more inputs.

    Args:
        info: The variant's declaration.
        inputs: The model's inputs.
        outputs: The model's outputs.

    Raises:
        LoadError: A name, type, rank or fixed size is not the declared one.
    """
    if not info.outputs:
        raise LoadError("the variant declares no output")
    if undeclared := sorted(set(inputs) - {spec.name for spec in info.inputs}):
        raise LoadError(f"the model has an input {undeclared[0][:80]!r} that is not declared")
    for role, specs, tensors in (("input", info.inputs, inputs), ("output", info.outputs, outputs)):
        for spec in specs:
            _check_tensor(role, spec, tensors.get(spec.name))


def fallback_reason(promised: Mapping[str, str], reported: Mapping[str, str]) -> str:
    """Say where a runtime does not do what the variant promised.

    Args:
        promised: Property to the value that was asked for.
        reported: Property to the value that the runtime reports.

    Returns:
        What differs; empty when nothing does.
    """
    return "; ".join(
        f"{name} is {reported.get(name, 'unknown')}, promised was {value}"
        for name, value in promised.items()
        if reported.get(name) != value
    )


def load_fault(info: VariantInfo, reason: str) -> str:
    """Return the message for a model that a runtime does not take.

    Args:
        info: The variant's declaration.
        reason: The runtime's words.

    Returns:
        One line of bounded length.
    """
    return f"{info.runtime} cannot load {info.model_file!r}: {shortened(reason)}"


def shortened(reason: str) -> str:
    """Return a reason as one line of printable characters with a bounded length."""
    line = " ".join(reason.split()) or "no reason given"
    plain = "".join(char if char.isprintable() else "?" for char in line)
    return plain if len(plain) <= MAX_REASON else f"{plain[: MAX_REASON - 3]}..."


def _check_tensor(role: str, spec: TensorSpec, actual: ModelTensor | None) -> None:
    if actual is None:
        raise LoadError(f"the model has no {role} {spec.name!r}")
    if actual.datatype != spec.datatype:
        raise LoadError(
            f"{role} {spec.name!r} is {actual.datatype or 'of another type'}, "
            f"but the package declares {spec.datatype}"
        )
    if actual.shape is not None and not _keeps(role, spec.shape, actual.shape):
        raise LoadError(
            f"{role} {spec.name!r} has shape {list(actual.shape)}, but the package declares "
            f"{list(spec.shape)}"
        )


def _keeps(role: str, declared: tuple[int, ...], actual: tuple[int, ...]) -> bool:
    """Tell whether a shape keeps its declaration; an input must take every declared size."""
    return len(declared) == len(actual) and all(
        size in {promised, ANY} or (promised == ANY and role == "output")
        for promised, size in zip(declared, actual, strict=True)
    )
