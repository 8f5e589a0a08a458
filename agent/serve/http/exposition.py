"""Prometheus' text format 0.0.4 and OpenMetrics 1.0. Pure.

Rules:
- A family names its metric without the ending that its kind adds (`_total`, `_info`, `_bucket`):
  OpenMetrics declares the short name, the older format the whole one.
- A value that is not known has no sample: it is never 0.
- Labels are escaped, so no name of a model can forge a line.

Source:
    Prometheus, "Exposition formats" and "Metric and label naming"; OpenMetrics 1.0.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

Kind = Literal["counter", "gauge", "histogram", "info"]

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ENDINGS: Final[Mapping[Kind, str]] = {"counter": "_total", "info": "_info"}
_NO_LABELS: Final[Mapping[str, str]] = {}


class Sample(msgspec.Struct, frozen=True):
    """One line of a metric."""

    value: float
    labels: Mapping[str, str] = _NO_LABELS
    ending: str = ""
    """What follows the name of the family, for the lines of a histogram."""


class Family(msgspec.Struct, frozen=True):
    """A metric with all its labels."""

    name: str
    kind: Kind
    about: str
    """One line for people."""

    samples: tuple[Sample, ...]


def reading(name: str, about: str, value: float | None) -> Family:
    """Return a gauge without labels; one without samples if the value is not known.

    Args:
        name: Its name, with the unit.
        about: One line for people.
        value: The value.
    """
    samples = () if value is None else (Sample(float(value)),)
    return Family(name, "gauge", about, samples)


def histogram(
    bounds: Iterable[float], counts: Iterable[int], total: float, labels: Mapping[str, str]
) -> Iterator[Sample]:
    """Yield the lines of a histogram.

    Args:
        bounds: Upper bounds of the buckets, but for the last one, which has none.
        counts: How many values lie in each bucket, the last one included.
        total: Their sum.
        labels: Those of the histogram.
    """
    below = 0
    for bound, count in zip((*map(_number, bounds), "+Inf"), counts, strict=True):
        below += count
        yield Sample(below, {**labels, "le": bound}, "_bucket")
    yield Sample(below, labels, "_count")
    yield Sample(total, labels, "_sum")


def asks_for_open_metrics(accept: str) -> bool:
    """Tell whether a client would rather have OpenMetrics than the older format.

    Args:
        accept: Its `Accept` header; empty if it sent none.
    """
    open_metrics = plain = 0.0
    for part in accept.lower().split(","):
        kind, *parameters = (text.strip() for text in part.split(";"))
        weight = _weight(parameters)
        if kind == "application/openmetrics-text":
            open_metrics = max(open_metrics, weight)
        elif kind == "text/plain":
            plain = max(plain, weight)
    return 0 < open_metrics >= plain


def exposed(families: Iterable[Family], *, open_metrics: bool) -> bytes:
    """Write metrics.

    Args:
        families: The metrics; those without samples are left out.
        open_metrics: Whether as OpenMetrics, or in the older format.

    Returns:
        The text.
    """
    lines = list[str]()
    for family in families:
        if family.samples:
            lines += _lines(family, open_metrics=open_metrics)
    return "\n".join([*lines, *(["# EOF"] if open_metrics else []), ""]).encode()


def _lines(family: Family, *, open_metrics: bool) -> Iterator[str]:
    ending = _ENDINGS.get(family.kind, "")
    name = family.name if open_metrics else family.name + ending
    kind = "gauge" if family.kind == "info" and not open_metrics else family.kind
    yield f"# HELP {name} {family.about}"
    yield f"# TYPE {name} {kind}"
    for sample in family.samples:
        yield f"{family.name}{sample.ending or ending}{_labels(sample)} {_number(sample.value)}"


def _labels(sample: Sample) -> str:
    if not sample.labels:
        return ""
    return "{" + ",".join(f'{k}="{_escaped(v)}"' for k, v in sample.labels.items()) + "}"


def _escaped(text: str) -> str:
    text = text.encode(errors="replace").decode()  # a lone surrogate has no UTF-8
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Return a number as both formats read it; they write infinity in their own way."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
