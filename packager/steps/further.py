"""What the steps that run a variant do for the further metrics of a build."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from packager.judge.further_figures import Truth, check_differs, further_figures, settled
from packager.plan.figures import Comparison, ReferenceResult
from packager.plan.further import FurtherMetric
from packager.run.job import RESULT_FILE, Job
from packager.runtimes.common.detector import detector_of
from packager.samples.named_labels import load_named
from packager.samples.sequences import judged, load_form
from packager.samples.store import load_labels
from packager.steps.processing import GATE
from runtime_adapters.protocol import Tensor, Tensors
from wire.codec import convert, from_json
from wire.package.variant import VariantInfo


def settle(job: Job, info: VariantInfo, answers: Tensors, main: str) -> tuple[FurtherMetric, ...]:
    """Settle the further metrics of a build by the reference's answers.

    Args:
        job: The reference step.
        info: The declaration of the unchanged model.
        answers: Its answers to all samples; steps, where the samples are sequences.
        main: The main metric, settled.

    Returns:
        The metrics, in the order that the user gave.

    Raises:
        DataError: The model or the data do not fit one of them.
    """
    found: list[FurtherMetric] = []
    for asked in convert(job.options.get("further", []), list[FurtherMetric]):
        truth = _truth(job, info, asked, answers)
        check_differs(asked, main, truth.reference, labelled=_main_labels(job, info) is not None)
        found.append(settled(asked, truth))
    return tuple(found)


def with_further(
    job: Job,
    info: VariantInfo,
    found: Comparison,
    answers: Tensors,
    ideal: Tensors,
    indices: Sequence[int] | None = None,
) -> Comparison:
    """Return a comparison with the figures of the further metrics.

    Args:
        job: An evaluate step.
        info: The variant's declaration.
        found: The comparison by the main metric.
        answers: The variant's answers; steps, where the samples are sequences.
        ideal: The reference's answers to all samples, in the same form.
        indices: The samples that the variant got; None when it answered all.

    Returns:
        The comparison; as it was where the build has no further metric.

    Raises:
        DataError: An output cannot be compared.
    """
    path = Path(job.inputs["reference"]) / RESULT_FILE
    pairs = [
        further_figures(
            asked,
            _seen(job, info, asked, answers),
            _truth(job, info, asked, ideal),
            indices=indices,
        )
        for asked in from_json(path.read_bytes(), ReferenceResult).further
    ]
    if not pairs:
        return found
    return msgspec.structs.replace(
        found,
        accuracy=msgspec.structs.replace(
            found.accuracy, further=tuple(figures for figures, _ in pairs)
        ),
        further=tuple(known for _, known in pairs),
    )


def _truth(job: Job, info: VariantInfo, asked: FurtherMetric, ideal: Tensors) -> Truth:
    return Truth(
        reference=_seen(job, info, asked, ideal),
        labels=_labels(job, info, asked),
        detector=detector_of(job, asked.metric, info.outputs),
    )


def _seen(job: Job, info: VariantInfo, asked: FurtherMetric, answers: Tensors) -> Tensors:
    """Return the answers as the metric reads them: of sequences, by the labels that it has."""
    if not info.states:
        return answers
    form, _ = load_form(_gate(job))
    return judged(answers, _labels(job, info, asked), info.states, form)


def _labels(job: Job, info: VariantInfo, asked: FurtherMetric) -> Tensor | None:
    return load_named(_gate(job), asked.labels, _main_labels(job, info))


def _main_labels(job: Job, info: VariantInfo) -> Tensor | None:
    return load_form(_gate(job))[1] if info.states else load_labels(_gate(job))


def _gate(job: Job) -> Path:
    return Path(job.inputs["data"]) / GATE
