"""Which metric of devices gets a name at Prometheus, where several would have the same. Pure.

The name that a metric gets depends on what a device calls it: `a.b` and `a_b` are one name there,
and a histogram `n_total` has the name of a counter `n`. Prometheus refuses a page on which two
samples have one name and the same labels, and a name has one type.

Rules:
- A metric that agents report (`telemetry.metrics`) has its names, whether one does or not. Of the
  others the first by name has them. Names that begin with `OWN_PREFIX` are the controller's.
- Of several series of a metric with the same labels one is taken: one with attributes that agents
  report, else the oldest. They are not added up: the sum would fall when one of them goes.
- What is left out is told (`LeftOut`), and is in the store nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from telemetry.metrics import METRICS, OLD_NAMES, Kind, known, own_attributes
from telemetry.server.export.families import (
    PREFIX,
    Family,
    FamilyKind,
    HistogramValue,
    Labels,
    Sample,
    gathered,
    labels_of,
    meaning_of,
    names_at,
)
from telemetry.server.kinds import kind_of
from telemetry.server.question import DEVICE

OWN_PREFIX: Final = f"{PREFIX}controller_"
"""Of the names of the controller's own figures."""


Value = tuple[str, FamilyKind, float | HistogramValue]
"""The name, the type and the value of a sample."""


class Offered(NamedTuple):
    """A series of devices, as it would be at Prometheus."""

    metric: str
    kind: Kind
    attributes: Mapping[str, str]
    values: tuple[Value, ...]
    age: float
    """Less than that of a newer series of the metric."""

    created_at_s: float | None = None
    """Since when it was counted; None for what is not counted."""


class LeftOut(NamedTuple):
    """A metric that is not at Prometheus, or a series of it."""

    metric: str
    why: str


class Shown(NamedTuple):
    """What is at Prometheus."""

    families: list[Family]
    left_out: list[LeftOut]
    """One for each metric and reason."""


Chosen = dict[Labels, Offered]
Named = tuple[str, Kind]


def shown(offered: Iterable[Offered]) -> Shown:
    """Return what of the devices' series is at Prometheus.

    Args:
        offered: The series; those of a kind that their metric does not have are left out, and not
            told: nobody reports them any more.
    """
    chosen, left_out = _by_labels(offered)
    takers = dict(_KNOWN)
    rows = []
    for named in sorted(chosen, key=lambda named: (known(named[0]) is None, named)):
        names = names_at(*named)
        if why := _fault(named, names, takers):
            left_out.append(LeftOut(named[0], why))
            continue
        takers |= dict.fromkeys(names, named)
        meaning = meaning_of(named[0])
        for labels, one in chosen[named].items():
            rows += [
                (name, kind, meaning, Sample(labels, value, one.created_at_s))
                for name, kind, value in one.values
            ]
    return Shown(gathered(rows), left_out)


def _by_labels(offered: Iterable[Offered]) -> tuple[dict[Named, Chosen], list[LeftOut]]:
    """Return one series for the labels of each metric, and the metrics that have several."""
    chosen: dict[Named, Chosen] = {}
    several: dict[str, LeftOut] = {}
    for one in offered:
        if kind_of(one.metric, one.kind) != one.kind:
            continue
        of_metric = chosen.setdefault((one.metric, one.kind), {})
        labels = labels_of(one.attributes)
        other = of_metric.setdefault(labels, one)
        if other is not one:
            of_metric[labels] = min(other, one, key=_rank)
            why = f"several series have the same labels there: {dict(labels)}"
            several.setdefault(one.metric, LeftOut(one.metric, why))
    return chosen, list(several.values())


def _rank(one: Offered) -> tuple[bool, float, list[tuple[str, str]]]:
    """Return what is less for the series that is to be taken."""
    is_foreign = bool(one.attributes.keys() - own_attributes(one.metric) - {DEVICE})
    return is_foreign, one.age, sorted(one.attributes.items())


def _fault(named: Named, names: Iterable[str], takers: Mapping[str, Named]) -> str:
    """Return why a metric does not get its names; empty if it does."""
    for name in names:
        if name.startswith(OWN_PREFIX):
            return f"{name} is a name of the controller's own figures"
        other = takers.get(name, named)
        if other != named:
            return f"{name} is the name of `{other[0]}` there"
    return ""


_KNOWN: Final[dict[str, Named]] = {
    name: (metric, METRICS[present].kind)
    for metric, present in [*zip(METRICS, METRICS, strict=True), *OLD_NAMES.items()]
    for name in names_at(metric, METRICS[present].kind)
}
"""The names of metrics that agents report."""
