"""Further metrics: how they are written, and the gate of each. Pure.

Rules:
- The main metric keeps its meaning. A further one reads one output, which it names, and has a gate
  of retention of its own, which is judged like that of the main metric.
- A further metric takes only labels that it names. Without a name the reference's answers are the
  truth: the labels of the main metric describe another output.
- With further metrics a candidate is chosen by several gates, so each bound holds with
  `1 - ALPHA / (k * g)` for `k` candidates and `g` gates of retention (Bonferroni, as in
  `intervals`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from packager.errors import BuildError, DataError
from packager.judge.intervals import MOST_SAMPLES, ROUNDING, certainty, rounded_down
from packager.judge.metrics import AUTO, CHOICES, MAP, METRICS, OUTPUT, is_own, named, wanted
from packager.plan.figures import Comparison, FurtherComparison
from packager.plan.further import FurtherMetric
from wire.package.accuracy import Accuracy, Certainty, FurtherAccuracy

MAX_FURTHER: Final = 8
"""Each gate widens the ranges of all others, so many gates need many samples."""

LABELS_OPTION: Final = "labels"
RETENTION_OPTION: Final = "min-retention"
FORM: Final = "OUTPUT=METRIC[,labels=NAME][,min-retention=SHARE]"
_SHARE: Final = re.compile(r"0(\.[0-9]{1,9})?|1(\.0{1,9})?")
_REMEDY: Final = f"write --metric {FORM}, such as --metric boxes=mae,min-retention=0.98"


def read_further(texts: Sequence[str]) -> tuple[FurtherMetric, ...]:
    """Return the further metrics that were asked for.

    Args:
        texts: Each `OUTPUT=METRIC`, with the metric's options, `labels=NAME` and
            `min-retention=SHARE`.

    Returns:
        The metrics, in the given order.

    Raises:
        BuildError: A text is none, or two are of the same kind for the same output and labels, or
            there are too many.
    """
    if len(texts) > MAX_FURTHER:
        raise BuildError(
            f"{len(texts)} further metrics are given, but at most {MAX_FURTHER} can be judged",
            remedy="leave out some --metric after the first",
        )
    found: list[FurtherMetric] = []
    seen: set[tuple[str, str, str]] = set()
    for text in texts:
        one = _read(text)
        key = (one.output, named(one.metric), one.labels)
        if key in seen:
            raise BuildError(
                f"further metric {text[:80]!r} is given twice",
                remedy="keep one of them, or name other labels",
            )
        seen.add(key)
        found.append(one)
    return tuple(found)


def _read(text: str) -> FurtherMetric:
    """Return one further metric.

    Raises:
        BuildError: The text is none.
    """
    said = f"further metric {text[:80]!r}"
    if is_own(text):
        raise BuildError(
            f"{said} is no metric of one output",
            remedy=f"{_REMEDY}; a function can only be the first --metric",
        )
    head, *parts = text.split(",")
    name = head.rpartition("=")[2]
    if name not in CHOICES:
        raise BuildError(
            f"{said}: there is no metric {name[:40]!r}",
            remedy=f"write --metric OUTPUT= and one of {', '.join(METRICS)}",
        )
    own: dict[str, str] = {}
    rest: list[str] = []
    keys: set[str] = set()
    for part in parts:
        key, _, value = part.partition("=")
        if key in keys:
            raise BuildError(f"{said} has the option {key[:40]!r} twice", remedy="keep one of them")
        keys.add(key)
        if key in {LABELS_OPTION, RETENTION_OPTION}:
            own[key] = value
        else:
            rest.append(part)
    try:
        asked = wanted(",".join((head, *rest)))
    except DataError as exc:
        raise BuildError(
            f"{said}: {exc.message}",
            remedy=f"{exc.remedy}, {LABELS_OPTION}=NAME and {RETENTION_OPTION}=SHARE",
        ) from exc
    output = asked.options.get(OUTPUT, "")
    if not output:
        raise BuildError(f"{said} names no output", remedy=_REMEDY)
    if OUTPUT in keys and head != asked.name:
        raise BuildError(f"{said} names its output twice", remedy=_REMEDY)
    if asked.name == AUTO:
        raise BuildError(
            f"{said} is not settled: only the first metric can be auto", remedy=_REMEDY
        )
    return FurtherMetric(
        output=output,
        metric=asked.text(),
        labels=_labels(said, asked.name, own),
        min_retention=_share(said, own),
    )


def _labels(said: str, name: str, options: dict[str, str]) -> str:
    """Return the name of the labels.

    Raises:
        BuildError: The metric has no use for labels, or needs some.
    """
    labels = options.get(LABELS_OPTION)
    use = METRICS[name].labels
    if labels == "":
        raise BuildError(f"{said} names no labels after {LABELS_OPTION}=", remedy=_REMEDY)
    if labels is not None and use == "unused":
        raise BuildError(f"{said}: {name} uses no labels", remedy=f"leave out {LABELS_OPTION}=")
    if labels is None and use == "needed":
        raise BuildError(
            f"{said}: {name} needs labels",
            remedy=f"add ,{LABELS_OPTION}=NAME with the name of their array in the samples",
        )
    return labels or ""


def _share(said: str, options: dict[str, str]) -> float | None:
    """Return the gate.

    Raises:
        BuildError: It is no share.
    """
    text = options.get(RETENTION_OPTION)
    if text is None:
        return None
    if _SHARE.fullmatch(text) is None:
        raise BuildError(
            f"{said}: {RETENTION_OPTION} {text[:40]!r} is no share within 0 to 1",
            remedy=f"write a decimal number, such as {RETENTION_OPTION}=0.98",
        )
    return float(text)


def reads_boxes(main: str, further: Sequence[FurtherMetric]) -> bool:
    """Tell whether a metric of a build may compare the boxes of the declared postprocessing."""
    return named(main) in {AUTO, MAP} or any(named(one.metric) == MAP for one in further)


def clause(found: FurtherAccuracy) -> str:
    """Return a further metric as a user writes it, without its options."""
    return f"{found.output}={found.metric}" + (f",labels={found.labels}" if found.labels else "")


def figures_of(accuracy: Accuracy | None) -> tuple[FurtherAccuracy, ...]:
    """Return the figures of the further metrics; none where a build has none."""
    return (accuracy.further or ()) if accuracy is not None else ()


def further_provenance(settled: Sequence[FurtherMetric]) -> dict[str, str]:
    """Return what a variant's provenance says of the further metrics, with all their options."""
    texts = (f"{f.metric},{LABELS_OPTION}={f.labels}" if f.labels else f.metric for f in settled)
    return {f"metric.further.{number}": text for number, text in enumerate(texts, 1)}


def certain(
    comparison: Comparison,
    further: Sequence[FurtherMetric],
    *,
    compared: int,
    least_retention: float,
    most_disagreement: float | None,
    same: bool,
) -> Accuracy:
    """Return a variant's figures, the main metric's and the further ones', with their bounds.

    Args:
        comparison: The variant beside the reference.
        further: The further metrics, in the order of the comparison's.
        compared: As for `certainty`.
        least_retention: The gate of the main metric's retention.
        most_disagreement: As for `certainty`.
        same: As for `certainty`.

    Returns:
        The figures.
    """
    gates = 1 + len(further)
    accuracy = msgspec.structs.replace(
        comparison.accuracy,
        certainty=certainty(
            comparison,
            compared=compared,
            gates=gates,
            least_retention=least_retention,
            most_disagreement=most_disagreement,
            same=same,
        ),
    )
    if not further:
        return accuracy
    found = [
        msgspec.structs.replace(
            figures,
            certainty=certainty(
                FurtherComparison(accuracy=figures, evidence=evidence),
                compared=compared,
                gates=gates,
                least_retention=least_of(one, least_retention),
                most_disagreement=None,
                same=same,
            ),
        )
        for one, figures, evidence in zip(
            further, figures_of(accuracy), comparison.further, strict=True
        )
    ]
    return msgspec.structs.replace(accuracy, further=tuple(found))


def least_of(further: FurtherMetric, least_retention: float) -> float:
    """Return the gate of a further metric; that of the main metric where it has none."""
    return least_retention if further.min_retention is None else further.min_retention


def misses(
    accuracy: Accuracy, further: Sequence[FurtherMetric], least_retention: float
) -> Iterator[tuple[str, float]]:
    """Yield the further gates that a variant fails.

    Args:
        accuracy: Its figures.
        further: The further metrics, in their order.
        least_retention: The gate of the main metric.

    Yields:
        The fault, and by how much it is off.
    """
    for one, found in zip(further, figures_of(accuracy), strict=True):
        least = least_of(one, least_retention)
        if found.retention < least - ROUNDING:
            text = f"retention of {clause(found)} {found.retention:.4f} < {least:.4f}"
            yield text + _range(found), least - found.retention


def doubts(
    accuracy: Accuracy, further: Sequence[FurtherMetric], least_retention: float
) -> Iterator[tuple[str, float]]:
    """Yield the further gates that a variant's figure passes, but not its bound.

    Args:
        accuracy: Its figures.
        further: The further metrics, in their order.
        least_retention: The gate of the main metric.

    Yields:
        The doubt, and by how much the bound is off.
    """
    for one, found in zip(further, figures_of(accuracy), strict=True):
        least, known = least_of(one, least_retention), found.certainty
        if not known or not known.samples_needed or found.retention < least - ROUNDING:
            continue
        text = f"cannot tell: retention of {clause(found)} is {found.retention:.4f}, but "
        if known.retention_low is None:
            yield f"{text}{found.samples} samples give no bound for it", least
        elif known.retention_low < least - ROUNDING:
            text += (
                f"with {known.confidence:.2%} confidence only at least "
                f"{rounded_down(known.retention_low)}, "
                f"below {least:.4f}; about {needed_text(known)} samples would be needed instead of "
                f"{found.samples}"
            )
            yield text, least - known.retention_low


def neediest(accuracy: Accuracy) -> Certainty | None:
    """Return the bounds, of all metrics, whose gate needs the most samples; None without bounds."""
    known = [accuracy.certainty, *(found.certainty for found in figures_of(accuracy))]
    return max((one for one in known if one), key=lambda one: one.samples_needed, default=None)


def needed_text(known: Certainty) -> str:
    """Return about how many samples the gates of quality need."""
    more = known.samples_needed >= MOST_SAMPLES
    return f"{MOST_SAMPLES:,} or more" if more else f"{known.samples_needed:,}"


def kept_shares(accuracy: Accuracy) -> tuple[float, ...]:
    """Return the retention by each further metric, at most 1.0: more than that is chance."""
    return tuple(min(found.retention, 1.0) for found in figures_of(accuracy))


def _range(found: FurtherAccuracy) -> str:
    known = found.certainty
    if not known or known.retention_low is None or known.retention_high is None:
        return ""
    return (
        f" ({known.retention_low:.4f} to {known.retention_high:.4f}, each with "
        f"{known.confidence:.2%} confidence)"
    )
