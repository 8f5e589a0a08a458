"""Steps that run a variant: the reference, the evaluation, the measurement, the golden samples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from packager.errors import ModelError
from packager.judge.choice import (
    doubtful_labels,
    reading,
    reason_of,
    resolve_metric,
    scored_output,
)
from packager.judge.comparison import check_answers, compare, of_samples, paired
from packager.judge.distributions import distributions
from packager.judge.drift import drift
from packager.judge.elements import check_comparable, worst_errors
from packager.judge.evidence import evidence
from packager.judge.golden import GUARD, OTHER_GUARD, VariantAnswers, pick
from packager.judge.metrics import AUTO, is_matched, named
from packager.plan.figures import Comparison, GoldenChoice, ModelFacts, ReferenceResult
from packager.plan.recipes import SOURCE_MODEL_FILE
from packager.plan.step_names import ANSWERS_ROLE, OTHERS_ROLE
from packager.plan.targets import Target
from packager.run.job import GOLDEN_FOLDER, RESULT_FILE, Job
from packager.runtimes.common.detector import detector_of
from packager.runtimes.common.job_inputs import own_metric
from packager.samples.sequences import Form, judged, load_form, play
from packager.samples.store import (
    has_batch,
    load_inputs,
    load_labels,
    sample,
    spread,
    unit_of,
)
from packager.steps.answers import answer_all, answers_file, load_answers
from packager.steps.functions import emulator_of
from packager.steps.further import settle, with_further
from packager.steps.processing import GATE, processor
from packager.steps.shapes import check_shapes, compared_shapes
from runtime_adapters.batches import ranks_of
from runtime_adapters.errors import LoadError
from runtime_adapters.golden import save_golden
from runtime_adapters.measuring import Opened
from runtime_adapters.measuring import measure as measure_variant
from runtime_adapters.protocol import Limits, Tensor, Tensors
from runtime_adapters.registry import open_session
from wire.clock import SystemClock
from wire.codec import convert, from_json
from wire.package.performance import Performance
from wire.package.variant import VariantInfo

REPEATED_SAMPLES: Final = 3
EMULATED_SAMPLES: Final = 64
"""An emulator is a hundred times slower; so many answers show whether code computes the same."""


def reference(job: Job, output: Path) -> ReferenceResult:
    """Let the unchanged model answer all samples, and settle the metric.

    Raises:
        ModelError: Its runtime cannot run it, or it answers at random.
    """
    info = convert(job.options["info"], VariantInfo)
    try:
        _check_repeatable(job, info)
    except LoadError as exc:  # words about packages and their files help nobody here
        reason = exc.message.replace(repr(info.model_file), "the model")
        raise ModelError(
            reason, remedy="export it with operators and types that this runtime has"
        ) from exc
    if is_matched(job.options["metric"]):
        from packager.steps import matched  # a step that measures must stay small

        return matched.reference_of(job, info, output)
    answers, further, _ = answer_all(job, info, output)
    for name, tensor in itertools.chain(*(part.items() for part in (answers, *further))):
        check_answers(name, tensor)
    labels, raw = load_labels(_gate(job)), answers
    if info.states:
        form, labels = load_form(_gate(job))
        answers = judged(answers, labels, info.states, form)
    detector = detector_of(job, job.options["metric"], info.outputs)
    metric = resolve_metric(job.options["metric"], answers, labels, detector)
    if info.states:  # golden samples have the states among their outputs, too
        metric = reading(metric, scored_output(metric, answers))
    function = own_metric(job, metric)
    if function is not None:  # its faults end the build here, instead of costing every candidate
        compare(answers, answers, labels, metric, function=function)
    check_shapes(job, further, metric, detector)
    chosen = named(job.options["metric"]) == AUTO
    return ReferenceResult(
        metric=metric,
        reason=reason_of(metric, answers, labels) if chosen else "",
        further=settle(job, info, raw, metric),
        notes=(*_untaken(job, info), *filter(None, [doubtful_labels(metric, answers, labels)])),
    )


def evaluate(job: Job, output: Path) -> Comparison:
    """Let a variant answer all samples, and compare it with the reference."""
    info = convert(job.options["info"], VariantInfo)
    if is_matched(_metric(job)):
        from packager.steps import matched  # a step that measures must stay small

        return matched.compared(job, info, output)
    answers, further, kernels = answer_all(job, info, output)
    if info.states:
        found = _played(job, info, answers, output)
    elif further:
        found = compared_shapes(job, info, (answers, *further))
    else:
        found = _compared(job, info, answers, None)
    known = () if info.states else distributions(load_inputs(_gate(job), info.inputs), answers)
    return msgspec.structs.replace(found, kernels=kernels, distributions=known)


def emulate(job: Job, output: Path) -> Comparison:
    """Let a variant answer some samples under emulation, and compare it with the reference."""
    info = convert(job.options["info"], VariantInfo)
    inputs = load_inputs(_gate(job), info.inputs)
    chosen = _asked(len(next(iter(inputs.values()))))
    workspace = output.parent / "emulation"  # beside the output, so that it is not kept
    workspace.mkdir()
    answers = emulator_of(info.runtime)(
        Path(job.inputs["variant"]),
        info,
        convert(job.options["target"], Target),
        {name: tensor[chosen] for name, tensor in inputs.items()},
        workspace=workspace,
        timeout_s=job.options["seconds"],
    )
    for spec in info.outputs:
        np.save(answers_file(output, spec.name), answers[spec.name], allow_pickle=False)
    return _compared(job, info, answers, chosen)


def measure(job: Job, _output: Path) -> Performance:
    """Measure what a variant costs, in this process and on one sample."""
    return measure_variant(
        _opened(job, "variant", "info"),
        _opened(job, "reference", "reference"),
        limits=Limits(threads=job.options["threads"]),
        min_runs=job.options["min_runs"],
        min_duration_s=job.options["min_duration_s"],
        machine=job.machine,
        clock=SystemClock(),
    )


def _opened(job: Job, role: str, option: str) -> Opened:
    """Return a model with one sample."""
    info = convert(job.options[option], VariantInfo)
    inputs = load_inputs(_gate(job), info.inputs, role="first")
    return Opened(Path(job.inputs[role]), info, sample(inputs, 0, ranks_of(info.inputs)))


def golden(job: Job, output: Path) -> GoldenChoice:
    """Pick the samples that a device must reproduce before it serves."""
    facts = from_json((Path(job.inputs["model"]) / RESULT_FILE).read_bytes(), ModelFacts)
    if is_matched(job.options["metric"]):
        from packager.steps import matched  # a step that measures must stay small

        picked_from, ideal, answered = matched.golden_answers(job, facts)
    else:
        ideal, answered = _golden_answers(job, facts)
        picked_from = list(range(len(next(iter(ideal.values())))))
    chosen = pick(ideal, answered, job.options["metric"])
    inputs = load_inputs(_gate(job), facts.inputs)
    process, ranks = processor(job, facts.outputs), ranks_of(facts.outputs)
    for index in chosen.samples:
        process(sample(ideal, index, ranks))
        for one in answered:
            process(sample(one.answers, one.indices.index(index), ranks))
    picked = [picked_from[index] for index in chosen.samples]
    files = save_golden(
        {name: np.asarray(array[picked]) for name, array in inputs.items()},
        {name: np.asarray(array[chosen.samples]) for name, array in ideal.items()},
    )
    folder = output / GOLDEN_FOLDER
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return GoldenChoice(samples=tuple(picked), min_agreement=chosen.min_agreement)


def _golden_answers(job: Job, facts: ModelFacts) -> tuple[Tensors, Sequence[VariantAnswers]]:
    """Return the reference's answers to all samples, and those of each variant."""
    ideal = load_answers(Path(job.inputs["reference"]), facts.outputs)
    total = len(next(iter(ideal.values())))
    answered: list[VariantAnswers] = []
    for role, path in sorted(job.inputs.items()):
        if role.startswith((ANSWERS_ROLE, OTHERS_ROLE)):
            folder = Path(path)
            answers = load_answers(folder, facts.outputs)
            count = len(next(iter(answers.values())))
            indices = _asked(total) if count < total else range(total)
            comparison = from_json((folder / RESULT_FILE).read_bytes(), Comparison)
            guard = OTHER_GUARD if role.startswith(OTHERS_ROLE) else GUARD
            answered.append(VariantAnswers(answers, indices, comparison, guard))
    return ideal, answered


def _untaken(job: Job, info: VariantInfo) -> tuple[str, ...]:
    source = Path(job.inputs["variant"]) / SOURCE_MODEL_FILE
    if not source.is_file():
        return ()
    from packager.steps.branches import untaken_branches  # a step that measures must stay small

    return untaken_branches(source, load_inputs(_gate(job), info.inputs))


def _check_repeatable(job: Job, info: VariantInfo) -> None:
    """Run the model twice on some samples: answers by chance can be compared with nothing.

    Raises:
        ModelError: Two answers to one sample differ.
    """
    inputs = load_inputs(_gate(job), info.inputs)
    session = open_session(Path(job.inputs["variant"]), info, Limits(threads=1))
    for index in spread(len(next(iter(inputs.values()))), REPEATED_SAMPLES):
        asked = sample(inputs, index, ranks_of(info.inputs))
        first = {name: np.array(tensor) for name, tensor in session.infer(asked).items()}
        second = session.infer(asked)
        for name, tensor in first.items():
            inexact = tensor.dtype.kind == "f"
            if not np.array_equal(tensor, second[name], equal_nan=inexact):
                raise ModelError(
                    f"the model answers at random: output {name!r} differs between two runs on the "
                    "same sample",
                    remedy="export it for inference, in PyTorch after model.eval(), without "
                    "dropout and random numbers",
                )
    session.close()


def _played(job: Job, info: VariantInfo, answers: Tensors, output: Path) -> Comparison:
    """Play the sequences with the variant's own states, and compare them with the reference's.

    The reference's answers to single steps are those of its own play, because the samples hold its
    states. The tolerances of golden samples follow from single steps, which is what they are.

    Args:
        job: The job.
        info: The variant's declaration.
        answers: What it answered to single steps with the reference's states.
        output: The folder of the step.

    Returns:
        The comparison.

    Raises:
        DataError: A state of the variant is not finite.
    """
    states = info.states or {}
    ideal = load_answers(Path(job.inputs["reference"]), info.outputs)
    form, labels = load_form(_gate(job))
    own = _own_answers(job, info, form, ideal, output)
    check_comparable(own, ideal)
    one, other = (judged(tensors, labels, states, form) for tensors in (own, ideal))
    found = with_further(job, info, _judged(job, info, one, other, labels, None), own, ideal)
    drifted = drift(
        {name: form.folded(tensor) for name, tensor in own.items()},
        {name: form.folded(tensor) for name, tensor in ideal.items()},
    )
    accuracy = msgspec.structs.replace(found.accuracy, drift=drifted)
    return of_samples(
        msgspec.structs.replace(found, accuracy=accuracy), worst_errors(answers, ideal), ideal
    )


def _own_answers(
    job: Job, info: VariantInfo, form: Form, ideal: Tensors, output: Path
) -> dict[str, Tensor]:
    inputs, known = load_inputs(_gate(job), info.inputs), info.states or {}
    unit = unit_of(info.inputs)
    batched = {spec.name for spec in info.outputs if has_batch(spec, unit)}
    initial = {name: inputs[name][:: form.steps] for name in known}
    free = {name: array for name, array in inputs.items() if name not in known}
    folder = output.parent / "sequences"  # beside the output, so that it is not kept
    folder.mkdir()
    own = {
        name: np.lib.format.open_memmap(
            answers_file(folder, name), mode="w+", dtype=tensor.dtype, shape=tensor.shape
        )
        for name, tensor in ideal.items()
    }
    session = open_session(Path(job.inputs["variant"]), info, Limits(threads=1))
    for index, (_, row) in enumerate(play(session, free, initial, known, form)):
        for name, target in own.items():
            target[index] = row[name][0] if name in batched else row[name]
    session.close()
    return dict(own)


def _compared(
    job: Job, info: VariantInfo, answers: Tensors, indices: list[int] | None
) -> Comparison:
    ideal = load_answers(Path(job.inputs["reference"]), info.outputs)
    found = _judged(job, info, answers, ideal, load_labels(_gate(job)), indices)
    return with_further(job, info, found, answers, ideal, indices)


def _judged(
    job: Job,
    info: VariantInfo,
    answers: Tensors,
    ideal: Tensors,
    labels: Tensor | None,
    indices: list[int] | None,
) -> Comparison:
    metric = _metric(job)
    function = own_metric(job, metric)
    pair = None
    if function is None:
        detector = detector_of(job, metric, info.outputs)
        pair = paired(answers, ideal, labels, metric, indices=indices, detector=detector)
    found = compare(answers, ideal, labels, metric, indices=indices, function=function, pair=pair)
    known = evidence(answers, ideal, labels, metric, indices=indices, function=function, pair=pair)
    return msgspec.structs.replace(found, evidence=known)


def _metric(job: Job) -> str:
    path = Path(job.inputs["reference"]) / RESULT_FILE
    return from_json(path.read_bytes(), ReferenceResult).metric


def _asked(total: int) -> list[int]:
    return spread(total, EMULATED_SAMPLES)


def _gate(job: Job) -> Path:
    return Path(job.inputs["data"]) / GATE
