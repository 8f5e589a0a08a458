"""Sequences for models that feed a state back: unrolled into steps, and played step by step.

Rules:
- The arrays of a user have the axes (sequences, steps, ...). A set on disk holds steps, those of a
  sequence in order, so that everything that works on single samples works on steps.
- The steps of a sequence are never in two parts: they are not independent of each other.
- The states before each step are those of the float reference, from zeros or from given ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.samples.store import Unit, load_inputs, sample, sample_shape
from runtime_adapters.batches import ranks_of
from runtime_adapters.protocol import Session, Tensor, Tensors
from runtime_adapters.tensors import dtype_of
from wire.codec import from_json, to_json
from wire.package.tensors import TensorSpec

MIN_SEQUENCES: Final = 2
"""One sequence alone tells nothing of chance."""

FORM_FILE: Final = "sequences.json"
LABELS_FILE: Final = "sequence-labels.npy"
LABELS_PER_SEQUENCE_AXES: Final = 1
_NUMBERS_AXES: Final = 2
"""Sequences and steps, with one number each."""


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How the steps of a part form sequences."""

    sequences: int
    steps: int
    """Of each sequence."""

    def folded(self, steps: Tensor) -> Tensor:
        """Return an array of steps with the axes (sequences, steps, ...)."""
        return steps.reshape(self.sequences, self.steps, *steps.shape[1:])


def sequence_spec(spec: TensorSpec, unit: Unit, *, state: bool = False) -> TensorSpec:
    """Return what an array must be that holds sequences of an input, or its initial states."""
    axes = (-1,) if state else (-1, -1)
    return msgspec.structs.replace(spec, shape=(*axes, *sample_shape(spec, unit)))


def steps_of(name: str, inputs: Tensors, states: Mapping[str, str]) -> int:
    """Return the number of steps of each sequence.

    Args:
        name: Of the set, for messages.
        inputs: Arrays by input.
        states: Input to output; these arrays have no steps.

    Raises:
        DataError: Inputs differ in it.
    """
    found: set[int] = {array.shape[1] for key, array in inputs.items() if key not in states}
    if len(found) != 1:
        raise DataError(
            f"{name}: the inputs have {' and '.join(map(str, sorted(found)))} steps",
            remedy="give every input that is no state the axes (sequences, steps, ...)",
        )
    return found.pop()


def unrolled(array: Tensor) -> Tensor:
    """Return sequences as steps, those of a sequence in order."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def rows_of(sequences: NDArray[np.intp], steps: int) -> NDArray[np.intp]:
    """Return the numbers of the steps of some sequences."""
    rows: NDArray[np.intp] = (sequences[:, None] * steps + np.arange(steps)).reshape(-1)
    return rows


def initial_states(
    name: str,
    given: Tensors,
    specs: tuple[TensorSpec, ...],
    sequences: NDArray[np.intp],
    unit: Unit,
) -> Tensors:
    """Return the states before the first step: the given ones, else zeros.

    Args:
        name: Of the set, for messages.
        given: Arrays by input.
        specs: The inputs that are states.
        sequences: Which sequences.
        unit: What one sample is.

    Returns:
        By input, a row for each sequence.

    Raises:
        DataError: No states are given, and the model does not say how large they are.
    """
    found: dict[str, Tensor] = {}
    for spec in specs:
        if spec.name in given:
            found[spec.name] = np.asarray(given[spec.name][sequences])
            continue
        shape = sample_shape(spec, unit)
        if -1 in shape:
            raise DataError(
                f"{name}: the state {spec.name!r} has shape {list(spec.shape)}, so the size of "
                "zeros is not known",
                remedy=f"give an array {spec.name!r} with the first state of each sequence",
            )
        found[spec.name] = np.zeros((len(sequences), *shape), dtype_of(spec.datatype))
    return found


def play(
    session: Session,
    inputs: Tensors,
    initial: Tensors,
    states: Mapping[str, str],
    form: Form,
) -> Iterator[tuple[Tensors, Tensors]]:
    """Play sequences: each step gets the states that the same session gave at the step before.

    Args:
        session: The model.
        inputs: Steps of the inputs that are no states.
        initial: The states before the first step, a row for each sequence.
        states: Input to output.
        form: How the steps form sequences.

    Yields:
        What each step got and gave, in order.

    Raises:
        DataError: A state is not finite.
        InferenceError: The model failed.
    """
    ranks = ranks_of(session.describe().inputs)
    for sequence in range(form.sequences):
        held = sample(initial, sequence, ranks)
        for step in range(form.steps):
            asked = {**sample(inputs, sequence * form.steps + step, ranks), **held}
            answers = session.infer(asked)
            held = {name: np.array(answers[output]) for name, output in states.items()}
            for name, value in held.items():
                if value.dtype.kind == "f" and not np.isfinite(value).all():
                    raise DataError(
                        f"the state {states[name]!r} is not finite after step {step} of sequence "
                        f"{sequence}",
                        remedy="check how the samples are scaled, or the model",
                    )
            yield asked, answers


def record_states(
    folder: Path,
    session: Session,
    initial: Tensors,
    specs: tuple[TensorSpec, ...],
    states: Mapping[str, str],
    form: Form,
    unit: Unit,
) -> None:
    """Play the float reference, and store the states before each step as ordinary samples.

    Args:
        folder: A part, with the steps of the other inputs.
        session: The float reference.
        initial: The states before the first step.
        specs: All inputs of the model.
        states: Input to output.
        form: How the steps form sequences.
        unit: What one sample is.

    Raises:
        DataError: A state is not finite, or changes its shape.
        InferenceError: The model failed.
    """
    inputs = load_inputs(folder, (spec for spec in specs if spec.name not in states))
    stored = {
        name: np.lib.format.open_memmap(
            _file(folder, "all", name),
            mode="w+",
            dtype=rows.dtype,
            shape=(form.sequences * form.steps, *rows.shape[1:]),
        )
        for name, rows in initial.items()
    }
    for row, (asked, answers) in enumerate(play(session, inputs, initial, states, form)):
        for name, target in stored.items():
            if answers[states[name]].shape != asked[name].shape:
                raise DataError(
                    f"the state {name!r} changes its shape from {list(asked[name].shape)} to "
                    f"{list(answers[states[name]].shape)}",
                    remedy="give first states of the shape that the model answers",
                )
            target[row] = asked[name] if unit == "calls" else asked[name][0]
    for name, target in stored.items():
        target.flush()
        np.save(_file(folder, "first", name), target[:1], allow_pickle=False)


def save_form(folder: Path, form: Form, labels: NDArray[Any] | None) -> None:
    """Store how the steps of a part form sequences, and the labels as the user gave them."""
    (folder / FORM_FILE).write_bytes(to_json(form))
    if labels is not None:
        np.save(folder / LABELS_FILE, labels, allow_pickle=False)


def load_form(folder: Path) -> tuple[Form, NDArray[Any] | None]:
    """Return how the steps of a part form sequences, and the labels of the sequences."""
    labels = folder / LABELS_FILE
    form = from_json((folder / FORM_FILE).read_bytes(), Form)
    return form, np.load(labels, mmap_mode="r") if labels.exists() else None


def judged(
    answers: Tensors, labels: Tensor | None, states: Mapping[str, str], form: Form
) -> Tensors:
    """Return the answers that a metric reads: a sequence is a sample with many places.

    Args:
        answers: Steps by output.
        labels: Of the sequences. One number each is about the answer after the last step.
        states: Input to output. States are not judged, unless there is no other output.
        form: How the steps form sequences.

    Returns:
        Shape (sequences, steps, ...), or (sequences, ...) after the last step. Without labels, one
        number a step has shape (sequences, steps, 1): the steps are no classes.
    """
    named = [name for name in answers if name not in states.values()] or list(answers)
    found = {name: form.folded(answers[name]) for name in named}
    if labels is not None and labels.ndim == LABELS_PER_SEQUENCE_AXES:
        return {name: array[:, -1] for name, array in found.items()}
    if labels is None:
        return {name: a[..., None] if a.ndim == _NUMBERS_AXES else a for name, a in found.items()}
    return found


def _file(folder: Path, role: str, name: str) -> Path:
    return folder / f"{role}.{quote(name, safe='')}.npy"
