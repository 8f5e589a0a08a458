"""Finds the model's inputs and labels among the arrays that the user gives, and checks them.

Rules:
- An array has the name of an input of the model, or one of the names in `LABELS`.
  If the model has one input, its array may be called `x`. An array with another name is refused:
  labels under a name that nobody reads would change what the figures say without a word.
- Numbers are converted to a wider or narrower type of the same kind, if no value changes except by
  rounding. Integers are never converted to floats, because only the user knows whether pixels need
  scaling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from packager.errors import DataError
from packager.plan.further import LABELS
from packager.samples.store import Unit, sample_shape
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.tensors import TensorSpec

SHORT: Final = "x"
"""What the array of a model's only input may be called."""

MIN_SAMPLES: Final = 8
"""A build wants as many golden samples."""

MAX_TEXT: Final = 200
_FAMILIES: Final = {"b": "truth values", "i": "integers", "u": "integers", "f": "floats"}


class Bounds(NamedTuple):
    """How much is read at most."""

    max_bytes: int = 16 * 1024**3
    max_samples: int = 1_000_000


class RawSet(NamedTuple):
    """Checked samples, still in their raw types and layouts."""

    name: str
    inputs: Tensors
    labels: Tensor | None
    named: Mapping[str, Tensor] = MappingProxyType({})
    """Labels with a name of their own, which further metrics read."""


class Choice(NamedTuple):
    """Which of the offered arrays are used."""

    inputs: dict[str, str]
    """Input to the name that it is offered under."""

    label: str | None
    named: tuple[str, ...] = ()
    """Labels with a name of their own."""

    @property
    def used(self) -> tuple[str, ...]:
        """The names of all that is used."""
        return (*self.inputs.values(), *([self.label] if self.label else []), *self.named)


def choose(
    source: str,
    offered: Iterable[str],
    specs: tuple[TensorSpec, ...],
    optional: tuple[TensorSpec, ...] = (),
    named: Iterable[str] = (),
) -> Choice:
    """Find the model's inputs and the labels among the offered names.

    Args:
        source: What offers them, for messages.
        offered: The names.
        specs: The model's inputs.
        optional: Inputs that may be missing.
        named: Labels with a name of their own, which may be missing, too.

    Returns:
        The choice.

    Raises:
        DataError: An input is missing, an array has a name that nothing reads, or there are two
            arrays of labels.
    """
    names = set(offered)
    inputs = {spec.name: spec.name for spec in specs if spec.name in names}
    if len(specs) == 1 and not inputs and SHORT in names:
        inputs[specs[0].name] = SHORT
    for spec in specs:
        if spec.name not in inputs:
            found = ", ".join(sorted(names))[:MAX_TEXT] or "none at all"
            raise DataError(
                f"{source} has no array {spec.name!r}, only {found}",
                remedy="name the arrays as the model's inputs, and the labels `label`",
            )
    inputs |= {spec.name: spec.name for spec in optional if spec.name in names}
    free = names - set(inputs.values())
    labels = [name for name in LABELS if name in free]
    others = tuple(name for name in sorted(set(named)) if name in free)
    if unknown := sorted(free - {*labels, *others}):
        _refuse(source, unknown[0], (*specs, *optional))
    if len(labels) > 1:
        raise DataError(
            f"{source} has the labels twice, as {' and '.join(labels)}", remedy="keep one of them"
        )
    return Choice(inputs, labels[0] if labels else None, others)


def _refuse(source: str, name: str, specs: tuple[TensorSpec, ...]) -> None:
    """Refuse a name that nothing reads.

    Raises:
        DataError: Always; with the known names.
    """
    short = [SHORT] if len(specs) == 1 else []
    known = list(dict.fromkeys((*(spec.name for spec in specs), *short, *LABELS)))
    near = get_close_matches(name, known, n=1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    raise DataError(
        f"{source} has an array {name[:80]!r}, which nothing reads{meant}",
        remedy=f"rename it or leave it out; the known names are {', '.join(known)[:MAX_TEXT]}",
    )


def check_shape(source: str, array: Tensor, spec: TensorSpec, unit: Unit) -> None:
    """Refuse an array whose samples the input cannot take.

    Args:
        source: What offers it, for messages.
        array: The array.
        spec: The input, as raw samples must be.
        unit: What one sample is.

    Raises:
        DataError: Another rank or size.
    """
    declared = sample_shape(spec, unit)
    given = array.shape[1:]
    fits = array.ndim == 1 + len(declared) and all(
        size in {-1, here} and here > 0 for size, here in zip(declared, given, strict=True)
    )
    if fits:
        return
    if array.shape == declared:
        raise DataError(
            f"{source}: {spec.name!r} has shape {list(array.shape)}, which is a single sample",
            remedy="the first axis must be the samples; write array[None] for a single sample",
        )
    raise DataError(
        f"{source}: a sample of {spec.name!r} has shape {list(given)}, but the model takes "
        f"{list(declared)}"
    )


def cast(source: str, name: str, values: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """Return values in another type of the same kind.

    Args:
        source: What offers them, for messages.
        name: Name of the input.
        values: The values.
        dtype: The type that they must have.

    Returns:
        The values, which are finite; the same array where the type is right.

    Raises:
        DataError: Another kind, a value that the type cannot hold, NaN or infinity.
    """
    kept = values
    if values.dtype != dtype:
        family = _FAMILIES.get(values.dtype.kind)
        if family is None or family != _FAMILIES.get(dtype.kind):
            raise DataError(
                f"{source}: {name!r} is {values.dtype}, but {dtype} is needed",
                remedy="store the samples with that type, or declare a preprocessing",
            )
        with np.errstate(over="ignore"):  # becomes infinite, and is refused below
            kept = values.astype(dtype)
        if dtype.kind in "iu" and not np.array_equal(kept, values):
            raise DataError(f"{source}: {name!r} holds numbers that are out of range for {dtype}")
    if dtype.kind == "f" and not np.isfinite(kept).all():
        raise DataError(f"{source}: {name!r} holds NaN or infinity after the conversion to {dtype}")
    return kept


def check_labels(source: str, labels: Tensor, samples: int) -> None:
    """Refuse labels that are no numbers, or not one entry per sample.

    What an entry may be depends on the metric: a class, a target, boxes of objects.

    Args:
        source: What offers them, for messages.
        labels: The labels.
        samples: How many samples there are.

    Raises:
        DataError: They do not fit.
    """
    numbers = labels.dtype.kind in _FAMILIES and labels.size > 0
    if not numbers or labels.ndim == 0 or len(labels) != samples:
        raise DataError(
            f"{source}: labels are {labels.dtype} of shape {list(labels.shape)}, "
            f"but numbers for each of {samples} samples are needed"
        )
