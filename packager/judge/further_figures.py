"""Figures of further metrics: one output of a variant beside the reference's, and its evidence.

Rules:
- A metric sees its own output alone, so that its figures, its worst error among them, are those of
  this output. `map` sees all, because boxes and scores may be outputs of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from packager.errors import DataError
from packager.judge.choice import resolve_metric, scored_output
from packager.judge.comparison import compare, paired
from packager.judge.detection_form import Detector
from packager.judge.evidence import evidence
from packager.judge.metrics import MAP, METRICS, is_own, named
from packager.plan.figures import Evidence
from packager.plan.further import LABELS, FurtherMetric
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.accuracy import FurtherAccuracy


class Truth(NamedTuple):
    """What a further metric compares with."""

    reference: Tensors
    """By output name, samples along the first axis."""

    labels: Tensor | None
    detector: Detector | None


def settled(asked: FurtherMetric, truth: Truth) -> FurtherMetric:
    """Return a further metric with every option that the data or the model decide.

    Args:
        asked: The metric.
        truth: The reference's answers to all samples, and the metric's labels.

    Returns:
        The metric, without its gate.

    Raises:
        DataError: The model has no such output, or the data do not fit.
    """
    metric = resolve_metric(asked.metric, truth.reference, truth.labels, truth.detector)
    return FurtherMetric(output=asked.output, metric=metric, labels=asked.labels)


def check_differs(asked: FurtherMetric, main: str, reference: Tensors, *, labelled: bool) -> None:
    """Refuse a further metric that is the main metric once more.

    Args:
        asked: The further metric.
        main: The main metric, settled.
        reference: The reference's answers.
        labelled: Whether the samples have labels for the main metric.

    Raises:
        DataError: It is.
    """
    if is_own(main) or named(asked.metric) != named(main):
        return
    used = labelled and METRICS[named(main)].labels != "unused"
    same = asked.labels in LABELS if used else not asked.labels
    if same and scored_output(main, reference) == asked.output:
        raise DataError(
            f"further metric {named(main)} of {asked.output!r} is the main metric already",
            remedy="leave it out, or name another output, metric or labels",
        )


def further_figures(
    asked: FurtherMetric,
    answers: Tensors,
    truth: Truth,
    *,
    indices: Sequence[int] | None = None,
) -> tuple[FurtherAccuracy, Evidence]:
    """Compare one output of a variant with the reference's.

    Args:
        asked: What `settled` returned.
        answers: The variant's answers, by output name.
        truth: What they are compared with, for all samples.
        indices: As for `compare`.

    Returns:
        The figures, and what the samples tell of how far chance may have moved them.

    Raises:
        DataError: As for `compare`.
    """
    read = set(truth.reference) if named(asked.metric) == MAP else {asked.output}
    ours, theirs = (
        {name: tensor for name, tensor in tensors.items() if name in read}
        for tensors in (answers, truth.reference)
    )
    pair = paired(
        ours, theirs, truth.labels, asked.metric, indices=indices, detector=truth.detector
    )
    found = compare(ours, theirs, truth.labels, asked.metric, indices=indices, pair=pair)
    known = evidence(ours, theirs, truth.labels, asked.metric, indices=indices, pair=pair)
    figures = FurtherAccuracy(
        output=asked.output,
        metric=found.accuracy.metric,
        labels=asked.labels,
        value=found.accuracy.value,
        reference=found.accuracy.reference,
        retention=found.accuracy.retention,
        worst_error=found.worst_errors[asked.output],
        samples=found.accuracy.samples,
    )
    # The gate of disagreement is that of the main metric.
    return figures, msgspec.structs.replace(known, agreed=None)
