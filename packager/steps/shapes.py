"""What the steps that run a variant do where the samples have several shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from packager.errors import DataError
from packager.judge.choice import resolve_metric
from packager.judge.comparison import paired
from packager.judge.detection_form import Detector
from packager.judge.metrics import MAP, is_own, named
from packager.judge.shapes import OneShape, compare_shapes
from packager.plan.figures import Comparison, ReferenceResult
from packager.run.job import RESULT_FILE, Job
from packager.runtimes.common.detector import detector_of
from packager.samples.shapes import folders_of, sizes_of
from packager.samples.store import load_labels
from packager.steps.answers import load_answers
from packager.steps.processing import GATE
from runtime_adapters.protocol import Tensors
from wire.codec import from_json
from wire.package.variant import VariantInfo


def check_shapes(
    job: Job, further: Sequence[Tensors], metric: str, detector: Detector | None
) -> None:
    """Try the metric on the further shapes, so that its faults end the build here.

    Args:
        job: The reference step.
        further: The unchanged model's answers to the samples of each further shape.
        metric: The metric, settled.
        detector: The declared postprocessing, where it gives boxes.

    Raises:
        DataError: The metric cannot judge samples of several shapes.
    """
    if not further:
        return
    several = f"the samples have {1 + len(further)} shapes, which "
    if is_own(metric):
        raise DataError(
            f"{several}metric {metric} cannot take: it gets all samples in one array",
            remedy="name one of the metrics of the packager, or give samples of one shape",
        )
    if job.options.get("further"):
        raise DataError(
            f"{several}further metrics cannot judge",
            remedy="give one --metric, or samples of one shape",
        )
    for answers, folder in zip(further, folders_of(_gate(job)), strict=True):
        labels = load_labels(folder)
        if named(metric) != MAP:  # one shape may have no boxes at all, and all together have some
            resolve_metric(metric, answers, labels, detector)
        paired(answers, answers, labels, metric, detector=detector)


def compared_shapes(job: Job, info: VariantInfo, answers: Sequence[Tensors]) -> Comparison:
    """Compare a variant with the reference on the samples of all shapes.

    Args:
        job: An evaluate step.
        info: The variant's declaration.
        answers: What it answered, by shape.

    Returns:
        The comparison.

    Raises:
        DataError: The answers cannot be compared.
    """
    reference = Path(job.inputs["reference"])
    metric = from_json((reference / RESULT_FILE).read_bytes(), ReferenceResult).metric
    shapes = [
        OneShape(
            sizes=sizes_of(folder, info.inputs),
            answers=ours,
            reference=load_answers(kept, info.outputs),
            labels=load_labels(folder),
        )
        for ours, (folder, kept) in zip(answers, _folders(job, reference), strict=True)
    ]
    return compare_shapes(shapes, metric, detector=detector_of(job, metric, info.outputs))


def _folders(job: Job, reference: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of each shape's samples, and that of the reference's answers to them."""
    yield _gate(job), reference
    for folder in folders_of(_gate(job)):
        yield folder, reference / folder.name


def _gate(job: Job) -> Path:
    return Path(job.inputs["data"]) / GATE
