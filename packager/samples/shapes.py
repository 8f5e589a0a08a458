"""Samples of several shapes: the gate has a folder for each shape beside the one with the most.

The shape with the most samples lies in the folder of the gate itself, so that all that works with
one shape (calibration, repairs, latency, golden samples) works with that one. The others are in
`shape-1`, `shape-2` and so on, and are judged.

Rules:
- If one set was given and something is calibrated, each shape gives the gate the same share of its
  samples, so that the gate's mixture of shapes is that of the set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from packager.errors import DataError
from packager.samples.arrays import RawSet
from packager.samples.named_labels import save_named
from packager.samples.split import Given, digests, divide
from packager.samples.store import load_inputs, save_samples
from wire.package.processing import Preprocessing
from wire.package.tensors import TensorSpec

_FOLDER: Final = "shape-"
_SHOWN: Final = 4
"""Shapes that a note names."""


class Shape(NamedTuple):
    """What the gate holds of a shape."""

    sizes: Mapping[str, list[int]]
    """The shape of one sample, by input."""

    samples: int


def save_shapes(
    gate: Path,
    sets: Sequence[RawSet],
    specs: tuple[TensorSpec, ...],
    preprocessing: Mapping[str, Preprocessing],
    *,
    shared: bool,
) -> list[Shape]:
    """Write the samples of the further shapes into folders of the gate.

    Args:
        gate: Its folder, which exists.
        sets: The samples of each further shape.
        specs: The model's inputs.
        preprocessing: By input, checked.
        shared: Whether a share of each set is for the gate; else all of it.

    Returns:
        What was written, in order of the folders.

    Raises:
        DataError: The samples are declared to be preprocessed, or a prepared one is not finite.
    """
    if sets and preprocessing:
        raise DataError(
            f"{sets[0].name} has samples of several shapes, and a preprocessing is declared",
            remedy="preprocess the samples, or give raw samples of one shape",
        )
    found = []
    for number, one in enumerate(sets, 1):
        given = Given(digests(one.inputs), one.labels)
        _, indices = divide({one.name: given}, calibrated=shared, least=0).parts["gate"]
        folder = gate / f"{_FOLDER}{number}"
        folder.mkdir()
        save_samples(folder, one.inputs, one.labels, specs, indices=indices)
        save_named(folder, one.name, one.named, sorted(one.named), indices)
        sizes = {name: list(array.shape[1:]) for name, array in one.inputs.items()}
        found.append(Shape(sizes, len(indices)))
    return found


def folders_of(gate: Path) -> list[Path]:
    """Return the folders of the further shapes, in order; none where the samples have one shape."""
    found = (path for path in gate.glob(f"{_FOLDER}*") if path.is_dir())
    return sorted(found, key=lambda path: int(path.name.removeprefix(_FOLDER)))


def sizes_of(folder: Path, specs: tuple[TensorSpec, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shape of one sample in a folder of the gate, by input."""
    return {name: array.shape[1:] for name, array in load_inputs(folder, specs).items()}


def notes_of(shapes: Sequence[Shape], main: int) -> tuple[str, ...]:
    """Return what the build says of the samples' shapes.

    Args:
        shapes: The further ones.
        main: The samples of the first one in the gate.

    Returns:
        A line, where there are several shapes.
    """
    if not shapes:
        return ()
    named = [
        ", ".join(f"{name} {size}" for name, size in one.sizes.items()) + f" ({one.samples})"
        for one in shapes[:_SHOWN]
    ]
    rest = f" and {len(shapes) - _SHOWN} more" if len(shapes) > _SHOWN else ""
    return (
        (
            f"samples of {1 + len(shapes)} shapes are judged: {main} of the most frequent, which "
            "alone calibrates, is timed and gives the golden samples; further "
            f"{'; '.join(named)}{rest}"
        ),
    )
