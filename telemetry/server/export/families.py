"""Metrics as Prometheus knows them: their names, their labels and their values. Pure.

Rules:
- A name begins with `PREFIX` and ends with its unit, spelled out; a counter ends with `_total`. A
  dot becomes `_`, and a name of OpenTelemetry's, which has no unit, gets it: as OpenTelemetry's
  "Prometheus and OpenMetrics Compatibility" says.
  Milliseconds stay milliseconds: the buckets of a native histogram are powers of 2, and a thousand
  is none.
- A gauge of the fleet is three: the mean, the least and the greatest of the last minutes.
- No two samples have one name and the same labels: Prometheus would refuse them all.
- Attributes of one series that become one label have their values in it, with `;` in between: as
  the same document of OpenTelemetry says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from telemetry.histogram import ExponentialHistogram
from telemetry.metrics import METRICS, Kind, known

PREFIX: Final = "edgefleet_"
TOTAL: Final = "_total"
DOT: Final = "."
SPELLED: Final = {"_ms": "_milliseconds", "_s": "_seconds", "_c": "_celsius"}
UNITS: Final = {
    "By": "bytes", "s": "seconds", "J": "joules", "W": "watts", "Cel": "celsius", "1": "ratio",
}  # fmt: skip
OF_GAUGE: Final = ("mean", "min", "max")
OWN_LABELS: Final = frozenset({"le", "quantile"})
"""What Prometheus itself writes into labels."""

OF_HISTOGRAM: Final = ("", "_bucket", "_sum", "_count")
"""What Prometheus appends to the name of a histogram with classic buckets."""

FamilyKind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]


class HistogramValue(NamedTuple):
    """The value of a histogram."""

    total: float
    histogram: ExponentialHistogram

    @property
    def number(self) -> int:
        """How many values there are: what its buckets and zeros count together.

        Where that is not so, Prometheus refuses the whole page. A bucket that is full counts no
        further, so the number does not either.
        """
        return self.histogram.count


class Sample(NamedTuple):
    """A value and its labels."""

    labels: Labels
    value: float | HistogramValue
    created_at_s: float | None = None
    """Since when it was counted; None for what is not counted."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its samples."""

    name: str
    kind: FamilyKind
    meaning: str
    samples: tuple[Sample, ...]


def prometheus_name(metric: str, kind: Kind) -> str:
    """Return how a metric of devices is called.

    Args:
        metric: Its name in the store.
        kind: Its kind.
    """
    stem = metric.removesuffix(TOTAL) if kind == "sum" else metric
    if DOT in metric:
        named = known(metric)
        unit = UNITS.get(named.unit, "") if named is not None else ""
        stem = "_".join(filter(None, (stem.replace(DOT, "_"), unit)))
    for short, spelled in SPELLED.items():
        if stem.endswith(short):
            stem = stem.removesuffix(short) + spelled
    return PREFIX + stem + (TOTAL if kind == "sum" else "")


def gauge_names(metric: str) -> tuple[str, ...]:
    """Return how the three of a gauge are called, in the order of `OF_GAUGE`."""
    name = prometheus_name(metric, "gauge")
    return tuple(f"{name}_{each}" for each in OF_GAUGE)


def names_at(metric: str, kind: Kind) -> tuple[str, ...]:
    """Return all names that a metric of devices takes at Prometheus.

    Args:
        metric: Its name in the store.
        kind: Its kind.
    """
    if kind == "gauge":
        return gauge_names(metric)
    name = prometheus_name(metric, kind)
    return tuple(name + each for each in OF_HISTOGRAM) if kind == "histogram" else (name,)


def document() -> str:
    """Return the table of names as it stands in `docs/exports.md`."""
    lines = ["| metric | at `/metrics` | type |", "|---|---|---|"]
    for metric, found in sorted(METRICS.items()):
        if found.kind == "gauge":
            names = ", ".join(f"`{name}`" for name in gauge_names(metric))
            lines.append(f"| `{metric}` | {names} | gauges |")
        else:
            kind = "native histogram" if found.kind == "histogram" else "counter"
            lines.append(f"| `{metric}` | `{prometheus_name(metric, found.kind)}` | {kind} |")
    return "\n".join(lines) + "\n"


def meaning_of(metric: str) -> str:
    """Return what a metric means; empty where only the devices know."""
    found = known(metric)
    return found.meaning if found is not None else ""


def labels_of(attributes: Mapping[str, str]) -> Labels:
    """Return attributes as labels, in the order of their names."""
    named: dict[str, str] = {}
    for name, value in sorted(attributes.items()):
        label = f"{name}_" if name in OWN_LABELS else name.replace(DOT, "_")
        named[label] = f"{named[label]};{value}" if label in named else value
    return tuple(sorted(named.items()))


def gathered(found: Iterable[tuple[str, FamilyKind, str, Sample]]) -> list[Family]:
    """Return samples as families.

    Args:
        found: Name, kind, meaning and sample; all samples of a name have one kind, and no two of
            them the same labels.

    Returns:
        By name; each with its samples by labels.
    """
    samples: dict[tuple[str, FamilyKind, str], list[Sample]] = {}
    for name, kind, meaning, sample in found:
        samples.setdefault((name, kind, meaning), []).append(sample)
    return [
        Family(*named, tuple(sorted(samples[named], key=lambda sample: sample.labels)))
        for named in sorted(samples)
    ]
