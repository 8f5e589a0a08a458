"""What the steps that run a variant do where outputs differ in size and boxes are matched.

The answers to all samples lie in a file for each output, one after the other, with the shape of
each in a file beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import numpy as np

from packager.errors import DataError
from packager.judge.golden import GUARD, OTHER_GUARD, VariantAnswers
from packager.judge.matched import compare_matched, found_in, golden_group, settled
from packager.judge.metrics import wanted
from packager.judge.shapes import OneShape
from packager.plan.figures import Comparison, ModelFacts, ReferenceResult
from packager.plan.step_names import ANSWERS_ROLE, OTHERS_ROLE
from packager.run.job import RESULT_FILE, Job
from packager.samples.shapes import folders_of, sizes_of
from packager.samples.store import load_inputs, load_labels, sample
from packager.steps.processing import GATE
from runtime_adapters.batches import ranks_of
from runtime_adapters.protocol import Limits, Session, Tensor, Tensors
from runtime_adapters.registry import open_session
from runtime_adapters.tensors import dtype_of
from wire.codec import from_json
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

MOST_BYTES: Final = 2**31
"""Of all answers to an output; boxes take a small part of it."""


def reference_of(job: Job, info: VariantInfo, output: Path) -> ReferenceResult:
    """Let the unchanged model answer all samples, and settle the metric.

    Raises:
        DataError: The outputs hold no boxes, or what was asked needs outputs of one size.
    """
    if job.options.get("further"):
        raise DataError(
            "metric map with scores= matches boxes, and further metrics cannot judge those",
            remedy="give one --metric",
        )
    if info.states:
        raise DataError(
            "metric map with scores= matches boxes, and sequences cannot be matched",
            remedy="judge a model with states by another metric",
        )
    answers, _ = answer_each(job, info, output)
    labels = [load_labels(folder) for folder in _gates(job)]
    metric = settled(job.options["metric"], answers[0], labels[0])
    for found in answers[1:]:  # their faults end the build here, instead of costing every candidate
        found_in(found, wanted(metric))
    return ReferenceResult(metric=metric)


def compared(job: Job, info: VariantInfo, output: Path) -> Comparison:
    """Let a variant answer all samples, and match its boxes with the reference's.

    Raises:
        DataError: The answers cannot be compared.
    """
    answers, kernels = answer_each(job, info, output)
    reference = Path(job.inputs["reference"])
    metric = from_json((reference / RESULT_FILE).read_bytes(), ReferenceResult).metric
    sets = [
        OneShape(
            sizes=sizes_of(folder, info.inputs),
            answers=ours,
            reference=load_each(place, info.outputs),
            labels=load_labels(folder),
        )
        for ours, folder, place in zip(answers, _gates(job), _places(job, reference), strict=True)
    ]
    return msgspec.structs.replace(compare_matched(sets, metric), kernels=kernels)


def answer_each(job: Job, info: VariantInfo, output: Path) -> tuple[list[Tensors], str]:
    """Run a variant on every sample of the gate, and keep its answers, whatever their sizes.

    Args:
        job: The job.
        info: The variant's declaration.
        output: The folder for the answers.

    Returns:
        The set of answers for each shape of the samples, and whose kernels computed them.

    Raises:
        DataError: An output changes its number of axes, or there is too much.
    """
    session = open_session(Path(job.inputs["variant"]), info, Limits(threads=1))
    found = []
    for folder, place in zip(_gates(job), _places(job, output), strict=True):
        place.mkdir(exist_ok=True)
        _answer(session, info, folder, place)
        found.append(load_each(place, info.outputs))
    kernels = session.describe().kernels
    session.close()
    return found, kernels


def load_each(folder: Path, specs: tuple[TensorSpec, ...]) -> Tensors:
    """Map the answers that a step kept: an array of arrays for each output."""
    return {spec.name: _load(folder, spec) for spec in specs}


def golden_answers(
    job: Job, facts: ModelFacts
) -> tuple[list[int], Tensors, Sequence[VariantAnswers]]:
    """Return the answers among which the golden samples are chosen.

    Args:
        job: The golden step.
        facts: The model's facts.

    Returns:
        The samples, the reference's answers to them, and those of each variant.

    Raises:
        DataError: There is no sample that all variants answer alike.
    """
    ideal = load_each(Path(job.inputs["reference"]), facts.outputs)
    folders = {
        role: Path(path)
        for role, path in sorted(job.inputs.items())
        if role.startswith((ANSWERS_ROLE, OTHERS_ROLE))
    }
    loaded = {role: load_each(folder, facts.outputs) for role, folder in folders.items()}
    rows = golden_group(ideal, list(loaded.values()), wanted(job.options["metric"]))
    answered = [
        VariantAnswers(
            _stacked(loaded[role], rows),
            range(len(rows)),
            from_json((folder / RESULT_FILE).read_bytes(), Comparison),
            OTHER_GUARD if role.startswith(OTHERS_ROLE) else GUARD,
        )
        for role, folder in folders.items()
    ]
    return rows, _stacked(ideal, rows), answered


def _answer(session: Session, info: VariantInfo, samples: Path, place: Path) -> None:
    inputs, ranks = load_inputs(samples, info.inputs), ranks_of(info.inputs)
    shapes: dict[str, list[tuple[int, ...]]] = {spec.name: [] for spec in info.outputs}
    size_bytes = dict.fromkeys(shapes, 0)
    with ExitStack() as files:
        opened = {
            name: files.enter_context(_file(place, name, "raw").open("wb")) for name in shapes
        }
        for index in range(len(next(iter(inputs.values())))):
            row = session.infer(sample(inputs, index, ranks))
            for name, known in shapes.items():
                tensor = row[name]
                if known and len(known[0]) != tensor.ndim:
                    raise DataError(
                        f"output {name!r} has {tensor.ndim} axes for one sample and "
                        f"{len(known[0])} for another"
                    )
                size_bytes[name] += tensor.nbytes
                if size_bytes[name] > MOST_BYTES:
                    raise DataError(
                        f"the answers to output {name!r} are over {MOST_BYTES} bytes",
                        remedy="give fewer samples, or leave the output out of the model",
                    )
                known.append(tensor.shape)
                opened[name].write(np.ascontiguousarray(tensor).tobytes())
    for name, known in shapes.items():
        table = np.array(known, np.int64).reshape(len(known), -1)
        np.save(_file(place, name, "npy"), table, allow_pickle=False)


def _load(folder: Path, spec: TensorSpec) -> Tensor:
    shapes = np.load(_file(folder, spec.name, "npy"), allow_pickle=False)
    path = _file(folder, spec.name, "raw")
    dtype = dtype_of(spec.datatype)
    data = np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
    ends = np.cumsum(np.prod(shapes, axis=1, dtype=np.int64))
    found = np.empty(len(shapes), np.object_)
    for index, (shape, end) in enumerate(zip(shapes, ends, strict=True)):
        start = int(ends[index - 1]) if index else 0
        found[index] = np.asarray(data[start : int(end)]).reshape(tuple(map(int, shape)))
    return found


def _stacked(answers: Tensors, rows: Sequence[int]) -> Tensors:
    return {name: np.stack([tensor[row] for row in rows]) for name, tensor in answers.items()}


def _gates(job: Job) -> list[Path]:
    gate = Path(job.inputs["data"]) / GATE
    return [gate, *folders_of(gate)]


def _places(job: Job, folder: Path) -> list[Path]:
    return [folder, *(folder / one.name for one in _gates(job)[1:])]


def _file(folder: Path, name: str, suffix: str) -> Path:
    return folder / f"matched.{quote(name, safe='')}.{suffix}"
