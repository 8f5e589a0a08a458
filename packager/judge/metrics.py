"""The metrics that judge a variant, one row each, and the meaning of retention for each.

A metric reads one output: the one that the user names, else the first one that it can read. The
user may give it options, as in `miou,axis=1`; what steps hand on has every option that was settled.

Rules:
- A build reads the rows without loading NumPy.
- For every metric, retention is 1.0 for a variant as good as the reference.
- A user's own function is named `module:callable`, takes `(outputs, labels)` and gives one number,
  larger for better.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from packager.errors import DataError
from wire.package.accuracy import Accuracy

if TYPE_CHECKING:
    from packager.judge.sums import Sums
    from runtime_adapters.protocol import Tensor

AUTO: Final = "auto"
AGREEMENT: Final = "agreement"
MAP: Final = "map"
MIOU: Final = "miou"
PERPLEXITY: Final = "perplexity"
RATES: Final = ("wer", "cer")
OUTPUT: Final = "output"
MAX_RETENTION: Final = 2.0
"""A larger value would mean that the reference is almost useless, not that the variant is good."""

SCORES: Final = "scores"
CLASSES: Final = "classes"
ANY_NAME: Final = ("NAME|N",)
"""Values of an option that names an output, or a column."""

NUMBERED: Final = frozenset({"axis", "ignore", "blank", "end", "space", "first"})
"""Options whose value may be a whole number."""

Labels = Literal["needed", "used", "unused"]
Kept = Literal["ratio", "inverse", "complement"]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    sums: str
    """Where the function is that makes its sums, `module:function` of this package; empty for
    `map`, which does not follow from sums."""

    labels: Labels
    """`used`: compared with the labels if there are any, else with the reference's answers."""

    truth: Literal["classes", "targets", "own"] = "own"
    """What labels are, where they are used: classes of the scores, numbers of the output's shape,
    or what the metric's own module says."""

    class_scores: bool = False
    """Whether the last axis of the output must hold scores of classes."""

    kept: Kept = "ratio"
    """How retention follows: see `retention`. Where it is not `ratio`, smaller is better."""

    by_worst_error: bool = False
    """Whether variants are compared by their worst error instead of the metric."""

    options: dict[str, tuple[str, ...]] = {}
    """Option to its values, beside whole numbers."""

    @property
    def larger_is_better(self) -> bool:
        """Whether larger values are better."""
        return self.kept == "ratio"


METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric(
            name="top1", sums="classes:top1", labels="needed", truth="classes", class_scores=True
        ),
        Metric(
            name="top5", sums="classes:top5", labels="needed", truth="classes", class_scores=True
        ),
        Metric(name=AGREEMENT, sums="classes:agreement", labels="unused", class_scores=True),
        Metric(name="mae", sums="regression:mae", labels="used", truth="targets", kept="inverse"),
        Metric(name="rmse", sums="regression:rmse", labels="used", truth="targets", kept="inverse"),
        Metric(name="r2", sums="regression:r2", labels="used", truth="targets"),
        Metric(
            name="cosine",
            sums="regression:cosine",
            labels="unused",
            # The cosines of good variants are all close to 1, so their differences say little.
            by_worst_error=True,
        ),
        Metric(
            name=MIOU,
            sums="segmentation:miou",
            labels="used",
            options={"axis": ("numbers",), "ignore": ()},
        ),
        Metric(
            name=MAP,
            sums="",
            labels="used",
            options={
                "order": ("xy", "yx"),
                "truth": ("labels", "reference"),
                "boxes": ("corners", "centre"),
                "first": (),
                SCORES: ANY_NAME,
                CLASSES: ANY_NAME,
            },
        ),
        Metric(
            name="wer",
            sums="text:wer",
            labels="used",
            kept="complement",
            options={"blank": (), "end": (), "space": ()},
        ),
        Metric(
            name="cer",
            sums="text:cer",
            labels="used",
            kept="complement",
            options={"blank": (), "end": ()},
        ),
        Metric(
            name=PERPLEXITY,
            sums="text:perplexity",
            labels="needed",
            class_scores=True,
            kept="inverse",
            options={"scores": ("logits", "probabilities")},
        ),
    )
}

CHOICES: Final = (AUTO, *METRICS)
_DIGITS: Final = 9


class Wanted(NamedTuple):
    """A metric with its options."""

    name: str
    options: dict[str, str]

    def text(self) -> str:
        """Return it as a user writes it; equal metrics give equal texts."""
        return ",".join(
            (self.name, *(f"{key}={self.options[key]}" for key in sorted(self.options)))
        )


def wanted(text: str) -> Wanted:
    """Return the metric that a text names.

    Args:
        text: `name`, or `name,option=value,...`, or `output=name` for an output of that name; or
            `module:callable`.

    Returns:
        The metric; `auto` may have the option `output` alone.

    Raises:
        DataError: There is no such metric, or it has no such option or value.
    """
    if is_own(text):
        return Wanted(text, {})
    name, *parts = text.split(",")
    output, _, last = name.rpartition("=")
    if output and last in CHOICES:
        name, parts = last, [*parts, f"{OUTPUT}={output}"]
    row = METRICS.get(name)
    if row is None and name != AUTO:
        raise DataError(
            f"there is no metric {name[:80]!r}",
            remedy=f"use {', '.join(CHOICES)}, or a function as module:callable",
        )
    known: dict[str, tuple[str, ...]] = row.options if row else {}
    options: dict[str, str] = {}
    for part in parts:
        key, _, value = part.partition("=")
        fits = key in known and (
            value in known[key] or (key in NUMBERED and _is_whole(value)) or known[key] == ANY_NAME
        )
        if not (value and (key == OUTPUT or fits)):
            raise DataError(
                f"metric {name}: there is no option {part[:80]!r}",
                remedy=f"its options are {', '.join(_shown(known))}",
            )
        options[key] = value
    if (
        name == MAP
        and SCORES not in options
        and (extra := {"boxes", "first", CLASSES} & {*options})
    ):
        raise DataError(
            f"metric map: {min(extra)}= says nothing without scores=",
            remedy="name the output of the scores, or declare the boxes with --postprocessing",
        )
    return Wanted(name, options)


def is_matched(text: str) -> bool:
    """Tell whether a metric matches boxes that the model itself has suppressed."""
    return named(text) == MAP and SCORES in wanted(text).options


def is_own(text: str) -> bool:
    """Tell whether a metric is a user's function, by its name."""
    head = text.split(",", maxsplit=1)[0]
    return ":" in text and head.rpartition("=")[2] not in CHOICES


def named(text: str) -> str:
    """Return a metric's name without its options."""
    return text if is_own(text) else text.split(",", maxsplit=1)[0].rpartition("=")[2]


def scores_classes(text: str) -> bool:
    """Tell whether a metric takes the last axis of an output as scores of classes."""
    row = METRICS.get(named(text))
    return row is not None and row.class_scores


def sums_of(metric: Wanted, answers: Tensor, reference: Tensor, labels: Tensor | None) -> Sums:
    """Return what each sample adds to a metric that follows from sums.

    Args:
        metric: The metric.
        answers: The output that it reads, samples along the first axis.
        reference: The reference's answers to these samples.
        labels: Their labels, if there are any and the metric uses them.

    Returns:
        The sums.
    """
    module, _, function = METRICS[metric.name].sums.partition(":")
    make: Callable[..., Sums] = getattr(
        importlib.import_module(f"packager.judge.{module}"), function
    )
    return make(answers, reference, labels, metric.options)


def retention(
    name: str, value: float, reference: float, *, magnitude: float | None = None
) -> float:
    """Return how much of the reference's quality a variant keeps.

    - Larger is better: `value / reference`; where the reference is negative,
      `1 - (reference - value) / |reference|`, which is the same formula.
    - Smaller is better, against labels (`inverse`): `reference / value`.
    - Smaller is better, against the reference's own answers: `1 - value / magnitude`.
    - A share of errors (`complement`): `(1 - value) / (1 - reference)`, what is right of the truth,
      as for the larger. The ratio of two small shares would refuse a variant for a single error.

    The result is within 0 to `MAX_RETENTION`. If the divisor is 0, it is 1.0 for a variant as good
    as the reference, 0.0 for a worse one, and `MAX_RETENTION` for a better one.

    Args:
        name: Name of the metric.
        value: The variant's value.
        reference: The reference's value.
        magnitude: The metric's value of answers that are all 0, if a metric for which smaller is
            better compares with the reference's answers; None if it compares with labels.

    Returns:
        The retention.
    """
    kind: Kept = METRICS[name].kept if name in METRICS else "ratio"
    if kind == "complement":
        value, reference, kind = 1.0 - value, 1.0 - reference, "ratio"
    if kind == "ratio":
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
    if metric is not None and metric.by_worst_error:
        return -accuracy.worst_error
    return accuracy.value if metric is None or metric.larger_is_better else -accuracy.value


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) <= _DIGITS


def _shown(known: dict[str, tuple[str, ...]]) -> list[str]:
    shown = [
        f"{key}={'N' if key in NUMBERED else '|'.join(values)}" for key, values in known.items()
    ]
    return [*shown, f"{OUTPUT}=NAME"]
