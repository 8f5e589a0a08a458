"""The metrics that judge a variant, one row each, and the meaning of retention for each.

A metric gives one number per sample; its value is their mean. It reads one output: the first, or
the first with class scores if it needs those.

Rules:
- A build reads the rows without loading NumPy.
- For every metric, retention is 1.0 for a variant as good as the reference.
- A user's own function is named `module:callable`, takes `(outputs, labels)` and gives one number,
  larger for better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from wire.package.manifest import Accuracy

if TYPE_CHECKING:
    from runtime_adapters.protocol import Tensor

AUTO: Final = "auto"
AGREEMENT: Final = "agreement"
TOP5: Final = 5
MAX_RETENTION: Final = 2.0
"""A larger value would mean that the reference is almost useless, not that the variant is good."""

Labels = Literal["needed", "used", "unused"]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    labels: Labels
    """`used`: compared with the labels if there are any, else with the reference's answers."""

    class_scores: bool
    """Whether the last axis of the output must hold scores of classes."""

    larger_is_better: bool
    score: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """Answers, the reference's answers and labels of some samples to one number per sample."""

    quality: Callable[[Accuracy], float]
    """The number by which two variants are compared; larger is better."""


def _top(count: int) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    def score(answers: Tensor, _reference: Tensor, labels: Tensor | None) -> Tensor:
        """Return the share of places where the label is among the greatest scores."""
        import numpy as np

        wanted = np.asarray(labels)[..., None]
        own = np.take_along_axis(answers, wanted, axis=-1)
        places = np.arange(answers.shape[-1])
        # The rank of a stable sort: a greater score, or an equal and earlier one, comes before.
        before = (answers > own) | ((answers == own) & (places < wanted))
        return _mean_per_sample(before.sum(axis=-1) < count)

    return score


def _agreement(answers: Tensor, reference: Tensor, _labels: Tensor | None) -> Tensor:
    return _mean_per_sample(answers.argmax(axis=-1) == reference.argmax(axis=-1))


def _mae(answers: Tensor, reference: Tensor, labels: Tensor | None) -> Tensor:
    """Return the mean absolute error, without elements that are infinite in the reference."""
    import numpy as np

    target = reference if labels is None else labels.reshape(answers.shape)
    usable = np.isfinite(reference)
    ours, theirs = (np.where(usable, a, 0).astype(np.float64) for a in (answers, target))
    return _mean_per_sample(np.abs(ours - theirs))


def _cosine(answers: Tensor, reference: Tensor, _labels: Tensor | None) -> Tensor:
    """Return the cosine of the angle to the reference's answer; 1 if equal, 0 if only one is 0."""
    import numpy as np

    usable = np.isfinite(reference)
    ours, theirs = (
        np.where(usable, a, 0).reshape(len(a), -1).astype(np.float64) for a in (answers, reference)
    )
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = np.einsum("ij,ij->i", ours, theirs) / np.where(norms == 0, 1.0, norms)
    exact: Tensor = np.where((ours == theirs).all(axis=1), 1.0, cosines)
    return exact


METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric(
            name="top1",
            labels="needed",
            class_scores=True,
            larger_is_better=True,
            score=_top(1),
            quality=lambda accuracy: accuracy.value,
        ),
        Metric(
            name="top5",
            labels="needed",
            class_scores=True,
            larger_is_better=True,
            score=_top(TOP5),
            quality=lambda accuracy: accuracy.value,
        ),
        Metric(
            name=AGREEMENT,
            labels="unused",
            class_scores=True,
            larger_is_better=True,
            score=_agreement,
            quality=lambda accuracy: accuracy.value,
        ),
        Metric(
            name="mae",
            labels="used",
            class_scores=False,
            larger_is_better=False,
            score=_mae,
            quality=lambda accuracy: -accuracy.value,
        ),
        Metric(
            name="cosine",
            labels="unused",
            class_scores=False,
            larger_is_better=True,
            score=_cosine,
            # The cosines of good variants are all close to 1, so their differences say little.
            quality=lambda accuracy: -accuracy.worst_error,
        ),
    )
}

CHOICES: Final = (AUTO, *METRICS)


def is_own(name: str) -> bool:
    """Tell whether a metric is a user's function, by its name."""
    return ":" in name


def scores_classes(name: str) -> bool:
    """Tell whether a metric takes the last axis of an output as scores of classes."""
    return name in METRICS and METRICS[name].class_scores


def retention(
    name: str, value: float, reference: float, *, magnitude: float | None = None
) -> float:
    """Return how much of the reference's quality a variant keeps.

    - Larger is better: `value / reference`; where the reference is negative,
      `1 - (reference - value) / |reference|`, which is the same formula.
    - Smaller is better, against labels: `reference / value`.
    - Smaller is better, against the reference's own answers: `1 - value / magnitude`.

    The result is within 0 to `MAX_RETENTION`. If the divisor is 0, it is 1.0 for a variant as good
    as the reference, 0.0 for a worse one, and `MAX_RETENTION` for a better one.

    Args:
        name: Name of the metric.
        value: The variant's value.
        reference: The reference's value.
        magnitude: Mean absolute element of the reference's answers, if a metric for which smaller
            is better compares with those; None if it compares with labels.

    Returns:
        The retention.
    """
    if name not in METRICS or METRICS[name].larger_is_better:
        whole, gain = abs(reference), value - reference
        kept = value if reference >= 0 else value + 2 * whole
    elif magnitude is None:
        kept, whole, gain = reference, value, reference - value
    else:
        kept, whole, gain = magnitude - value, magnitude, -value
    if whole == 0:
        return 1.0 if gain == 0 else MAX_RETENTION if gain > 0 else 0.0
    return min(max(kept / whole, 0.0), MAX_RETENTION)


def quality(accuracy: Accuracy) -> float:
    """Return the number by which two variants' quality is compared: larger is better."""
    metric = METRICS.get(accuracy.metric)
    return accuracy.value if metric is None else metric.quality(accuracy)


def _mean_per_sample(values: Any) -> Tensor:  # noqa: ANN401 - an array, or what a comparison gives
    found: Tensor = values.reshape(len(values), -1).mean(axis=1)
    return found
