"""Compares a variant with the reference on samples of several shapes: one figure over all of them.

Arrays of different shapes cannot be put side by side, but what each sample adds to a metric can. So
each shape is compared by itself, and the figures of the whole follow from the sums of all samples,
as if they had one shape. Each sample has the same weight, whatever its shape.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from packager.errors import DataError
from packager.judge.comparison import Pair, compare, paired
from packager.judge.detection_form import Detector
from packager.judge.elements import powers, sqnr_db
from packager.judge.evidence import agreed_of, evidence_of
from packager.judge.metrics import named, retention
from packager.judge.sums import Sums
from packager.plan.figures import Comparison
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.accuracy import ShapeAccuracy
from wire.package.variant import Variant

if TYPE_CHECKING:
    from packager.judge.detection import Matches


class OneShape(NamedTuple):
    """The samples of one shape."""

    sizes: Mapping[str, tuple[int, ...]]
    """The shape of one sample, by input."""

    answers: Tensors
    """The variant's, by output name, samples along the first axis."""

    reference: Tensors
    labels: Tensor | None


def compare_shapes(
    shapes: Sequence[OneShape], metric: str, *, detector: Detector | None = None
) -> Comparison:
    """Compare a variant's answers with the reference's, over samples of several shapes.

    Args:
        shapes: The samples; the first shape is that of the golden samples, so that the tolerances
            follow from it.
        metric: What `resolve_metric` returned; no user's function.
        detector: The declared postprocessing, where it gives boxes.

    Returns:
        The comparison, with the figures of each shape.

    Raises:
        DataError: Answers are missing, differ in shape, or contain NaN, or the metric cannot put
            these shapes together.
    """
    pairs = [
        paired(one.answers, one.reference, one.labels, metric, detector=detector) for one in shapes
    ]
    found = [
        compare(one.answers, one.reference, one.labels, metric, detector=detector, pair=pair)
        for one, pair in zip(shapes, pairs, strict=True)
    ]
    whole = _joined(pairs)
    value, best = whole.ours.value(), whole.theirs.value()
    magnitude = None if whole.size is None else whole.size.value()
    parts = [one.accuracy for one in found]
    samples = sum(part.samples for part in parts)
    sums = [powers(one.answers, one.reference) for one in shapes]
    agreements = [part.agreement for part in parts if part.agreement is not None]
    agreed = [agreed_of(metric, one.answers, one.reference) for one in shapes]
    accuracy = msgspec.structs.replace(
        parts[0],
        value=value,
        reference=best,
        retention=retention(named(metric), value, best, magnitude=magnitude),
        agreement=(
            sum(a * part.samples for a, part in zip(agreements, parts, strict=True)) / samples
            if len(agreements) == len(parts)
            else None
        ),
        sqnr_db=sqnr_db(
            {n: (sum(s[n][0] for s in sums), sum(s[n][1] for s in sums)) for n in sums[0]}
        ),
        worst_error=max(part.worst_error for part in parts),
        samples=samples,
        shapes=tuple(
            ShapeAccuracy(
                sizes=dict(one.sizes),
                samples=part.samples,
                value=part.value,
                reference=part.reference,
                retention=part.retention,
                worst_error=part.worst_error,
            )
            for one, part in zip(shapes, parts, strict=True)
        ),
    )
    counts = [count for count in agreed if count is not None]
    known = evidence_of(metric, whole, samples, sum(counts) if len(counts) == len(shapes) else None)
    return msgspec.structs.replace(found[0], accuracy=accuracy, evidence=known)


def weak_notes(
    variants: Sequence[Variant], kept: Collection[str], min_retention: float
) -> tuple[str, ...]:
    """Tell which variants of a package keep less than the gate asks on the samples of one shape.

    Args:
        variants: The variants that were built.
        kept: The names of those in the package.
        min_retention: What the gate asks of all samples together.

    Returns:
        A line for each, with its weakest shape.
    """
    notes = []
    for variant in variants:
        accuracy = variant.info.accuracy
        if variant.name not in kept or accuracy is None or not accuracy.shapes:
            continue
        weakest = min(accuracy.shapes, key=lambda one: one.retention)
        if weakest.retention < min_retention:
            notes.append(
                f"{variant.name}: retention {weakest.retention:.4f} on the {weakest.samples} "
                f"samples of shape {shape_text(weakest.sizes)}, below {min_retention:.4f}; the "
                "gate judges the samples of all shapes together"
            )
    return tuple(notes)


def shape_text(sizes: Mapping[str, Sequence[int]]) -> str:
    """Return the shapes of one sample's inputs, as `x 3x48x320`; of a single number as `x 1`."""
    return ", ".join(f"{name} {'x'.join(map(str, size)) or 1}" for name, size in sizes.items())


def _joined(pairs: Sequence[Pair]) -> Pair:
    """Return what the metric of all samples follows from.

    Raises:
        DataError: The shapes have different sums.
    """
    sizes = [pair.size for pair in pairs if pair.size is not None]
    return Pair(
        _whole([pair.ours for pair in pairs]),
        _whole([pair.theirs for pair in pairs]),
        _sums(sizes) if sizes else None,
    )


def _whole(parts: Sequence[Sums | Matches]) -> Sums | Matches:
    sums = [part for part in parts if isinstance(part, Sums)]
    if len(sums) == len(parts):
        return _sums(sums)
    from packager.judge.detection import Matches as Boxes

    boxes = [part for part in parts if isinstance(part, Boxes)]
    return Boxes(
        [image for part in boxes for image in part.found],
        [image for part in boxes for image in part.truth],
    )


def _sums(parts: Sequence[Sums]) -> Sums:
    """Return the sums of all samples.

    Raises:
        DataError: The shapes have different sums, such as those of more classes.
    """
    if len({part.table.shape[1] for part in parts}) > 1:
        raise DataError(
            "the metric counts something else for samples of another shape, such as more classes",
            remedy="name a metric that does not depend on the shape with --metric",
        )
    return parts[0]._replace(table=np.concatenate([part.table for part in parts]))
