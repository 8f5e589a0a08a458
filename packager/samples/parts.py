"""Makes three prepared sets on disk from the user's data, one folder per part.

Rules:
- No sample of the gate is in another part.
- The raw copies are removed at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packager.errors import DataError
from packager.plan.figures import DataResult
from packager.samples.arrays import MIN_SAMPLES, Bounds, RawSet
from packager.samples.named_labels import save_named
from packager.samples.preprocessing import raw_specs
from packager.samples.readers import DEFAULT_BOUNDS, SampleSource, read_samples, read_shapes
from packager.samples.sequences import (
    MIN_SEQUENCES,
    Form,
    initial_states,
    record_states,
    rows_of,
    save_form,
    sequence_spec,
    steps_of,
    unrolled,
)
from packager.samples.shapes import notes_of, save_shapes
from packager.samples.split import Given, digests, divide
from packager.samples.store import save_samples, unit_of
from runtime_adapters.protocol import Session
from wire.package.processing import Preprocessing
from wire.package.tensors import TensorSpec

RAW_FOLDER = "raw"


class Sequences(NamedTuple):
    """A model whose states are fed back."""

    states: Mapping[str, str]
    """Input to output."""

    open_reference: Callable[[], Session]
    """Opens the float reference, which records the states."""


def make_parts(
    sources: Mapping[str, SampleSource],
    specs: tuple[TensorSpec, ...],
    target: Path,
    *,
    preprocessing: Mapping[str, Preprocessing] | None = None,
    calibrated: bool = True,
    bounds: Bounds = DEFAULT_BOUNDS,
    sequences: Sequences | None = None,
    named: tuple[str, ...] = (),
) -> DataResult:
    """Read, divide and prepare samples.

    Args:
        sources: By the name of the set: `calibration`, `tuning`, `evaluation`, as far as given.
        specs: The model's inputs.
        target: A folder; each part gets a folder of its name there.
        preprocessing: By input, checked.
        calibrated: Whether anything is calibrated or tuned; else the gate is the only part.
        bounds: How much of each set is read at most.
        sequences: Set if the model has states; then the samples are sequences.
        named: Labels with a name of their own, which the gate's samples must have.

    Returns:
        What was made.

    Raises:
        DataError: The data cannot be used with this model.
        BuildError: A function cannot be imported.
    """
    how = preprocessing or {}
    wanted = raw_specs(specs, how)
    if sequences is not None:
        return _make_sequences(sources, specs, target, sequences, how, calibrated, bounds, named)
    sets: dict[str, RawSet] = {}
    more: dict[str, list[RawSet]] = {}
    for name, source in sources.items():
        scratch = target / RAW_FOLDER / name
        scratch.mkdir(parents=True)
        sets[name], *more[name] = read_shapes(source, wanted, scratch, bounds=bounds, named=named)
    given = {name: Given(digests(found.inputs), found.labels) for name, found in sets.items()}
    division = divide(given, calibrated=calibrated)
    for part, (name, indices) in division.parts.items():
        folder = target / part
        folder.mkdir()
        found = sets[name]
        save_samples(folder, found.inputs, found.labels, specs, preprocessing=how, indices=indices)
        save_named(folder, found.name, found.named, named if part == "gate" else (), indices)
    judged = division.parts["gate"][0]
    shared = calibrated and len(sources) == 1
    shapes = save_shapes(target / "gate", more[judged], specs, how, shared=shared)
    shutil.rmtree(target / RAW_FOLDER)
    samples: dict[str, int] = {part: len(i) for part, (_, i) in division.parts.items()}
    return DataResult(
        samples=samples | {"gate": samples["gate"] + sum(one.samples for one in shapes)},
        labelled=sets[judged].labels is not None,
        overlap=division.overlap,
        notes=(*division.notes, *notes_of(shapes, samples["gate"])),
    )


def _make_sequences(
    sources: Mapping[str, SampleSource],
    specs: tuple[TensorSpec, ...],
    target: Path,
    asked: Sequences,
    how: Mapping[str, Preprocessing],
    calibrated: bool,
    bounds: Bounds,
    named: tuple[str, ...],
) -> DataResult:
    """Read and divide sequences, unroll them, and record the states before each step.

    Raises:
        DataError: The data cannot be used with this model.
    """
    unit = unit_of(specs)
    free = tuple(spec for spec in specs if spec.name not in asked.states)
    held = tuple(spec for spec in specs if spec.name in asked.states)
    wanted = tuple(sequence_spec(spec, unit) for spec in raw_specs(free, how))
    optional = tuple(sequence_spec(spec, unit, state=True) for spec in held)
    sets = {}
    for name, source in sources.items():
        scratch = target / RAW_FOLDER / name
        scratch.mkdir(parents=True)
        sets[name] = read_samples(
            source,
            wanted,
            scratch,
            bounds=bounds,
            optional=optional,
            least=MIN_SEQUENCES,
            named=named,
        )
    given = {name: Given(digests(found.inputs), found.labels) for name, found in sets.items()}
    division = divide(given, calibrated=calibrated, least=MIN_SEQUENCES)
    session = asked.open_reference()
    samples: dict[str, int] = {}
    for part, (name, indices) in division.parts.items():
        folder = target / part
        folder.mkdir()
        found = sets[name]
        steps = steps_of(name, found.inputs, asked.states)
        form = Form(sequences=len(indices), steps=steps)
        samples[part] = form.sequences * form.steps
        if not MIN_SAMPLES <= samples[part] <= bounds.max_samples:
            raise DataError(
                f"the {name} data leave {samples[part]} steps for {part}, but {MIN_SAMPLES} to "
                f"{bounds.max_samples} are needed",
                remedy="give more or longer sequences, or fewer of them",
            )
        rows = rows_of(indices, steps)
        flat = {spec.name: unrolled(found.inputs[spec.name]) for spec in free}
        save_samples(folder, flat, None, free, preprocessing=how, indices=rows)
        initial = initial_states(name, found.inputs, held, indices, unit)
        record_states(folder, session, initial, specs, asked.states, form, unit)
        labels = None if found.labels is None else np.asarray(found.labels[indices])
        save_form(folder, form, labels)
        save_named(folder, found.name, found.named, named if part == "gate" else (), indices)
    session.close()
    labelled = sets[division.parts["gate"][0]].labels is not None
    shutil.rmtree(target / RAW_FOLDER)
    return DataResult(
        samples=samples, labelled=labelled, overlap=division.overlap, notes=division.notes
    )
