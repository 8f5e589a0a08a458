"""The answers of a variant: a step lets it answer all samples, keeps them, and reads them again.

The samples of each further shape lie in folders of their own (`packager.samples.shapes`), and so do
the answers to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np

from packager.errors import DataError
from packager.run.job import Job
from packager.samples.shapes import folders_of
from packager.samples.store import Unit, has_batch, load_inputs, sample, unit_of
from packager.steps.processing import GATE
from runtime_adapters.batches import ranks_of
from runtime_adapters.protocol import Limits, Session, Tensors
from runtime_adapters.registry import open_session
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo


def answer_all(job: Job, info: VariantInfo, output: Path) -> tuple[Tensors, list[Tensors], str]:
    """Run a variant on every sample of the gate, one after the other, and keep its answers.

    Args:
        job: The job.
        info: The variant's declaration.
        output: The folder for the answers.

    Returns:
        The answers, those to the samples of each further shape, and whose kernels computed them.

    Raises:
        DataError: The outputs of samples of one shape cannot be put side by side.
    """
    gate = Path(job.inputs["data"]) / GATE
    session = open_session(Path(job.inputs["variant"]), info, Limits(threads=1))
    answers = _answer(session, info, gate, output)
    further: list[Tensors] = []
    for folder in folders_of(gate):
        target = output / folder.name
        target.mkdir()
        further.append(_answer(session, info, folder, target))
    kernels = session.describe().kernels
    session.close()
    return answers, further, kernels


def _answer(session: Session, info: VariantInfo, samples: Path, output: Path) -> Tensors:
    inputs = load_inputs(samples, info.inputs)
    unit = unit_of(info.inputs)
    total = len(next(iter(inputs.values())))
    rows = _rows(session, inputs, total, ranks_of(info.inputs))
    first = next(rows)
    answers = {
        spec.name: np.lib.format.open_memmap(
            answers_file(output, spec.name),
            mode="w+",
            dtype=first[spec.name].dtype,
            shape=(total, *_row_shape(spec, first, unit)),
        )
        for spec in info.outputs
    }
    for index, row in enumerate(itertools.chain((first,), rows)):
        for spec in info.outputs:
            if row[spec.name].shape != first[spec.name].shape:
                raise DataError(
                    f"output {spec.name!r} has shape {list(row[spec.name].shape)} for one sample "
                    f"and {list(first[spec.name].shape)} for another, which cannot be compared",
                    remedy="match boxes with --metric boxes=map,scores=scores,classes=labels, or "
                    "export the model without suppression; docs/shapes.md says how",
                )
            answer = row[spec.name]
            answers[spec.name][index] = answer[0] if has_batch(spec, unit) else answer
    for array in answers.values():
        array.flush()
    return dict(answers)


def _rows(
    session: Session, inputs: Tensors, total: int, ranks: Mapping[str, int]
) -> Iterator[Tensors]:
    for index in range(total):
        yield session.infer(sample(inputs, index, ranks))


def _row_shape(spec: TensorSpec, first: Tensors, unit: Unit) -> tuple[int, ...]:
    """Return the shape of one sample's answer.

    Raises:
        DataError: An answer to one sample is not a batch of one.
    """
    shape = first[spec.name].shape
    if not has_batch(spec, unit):
        return shape
    if shape[:1] != (1,):
        raise DataError(f"output {spec.name!r} of one sample has shape {list(shape)}")
    return shape[1:]


def load_answers(directory: Path, specs: tuple[TensorSpec, ...]) -> Tensors:
    """Map the answers that a step kept."""
    return {spec.name: np.load(answers_file(directory, spec.name), mmap_mode="r") for spec in specs}


def answers_file(directory: Path, name: str) -> Path:
    """Return the file of an output's answers."""
    return directory / f"answers.{quote(name, safe='')}.npy"
