"""Which series are counted as one, so that no device makes too many. Pure.

Rules:
- Nothing is lost: the values of a series that there is no room for count for another one, in which
  the labels that have too many values are `OTHER`.
- A label of a metric has a bounded number of values in the whole fleet, of which a device brings a
  smaller number: so it can make up values for itself, and not use up those of the others.
- A device brings a bounded number of series; of further ones all labels become `OTHER`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from telemetry.metrics import Kind
from telemetry.server.bounds import Bounds
from telemetry.server.ingest import Fold, SeriesKey
from wire.codec import from_json, to_json

OTHER: Final = "other"
KIND: Final = "series"
"""Of the events about this."""

TOLD_EVERY_S: Final = 3600.0
"""How often one device is told of at most."""


def labels_of(key: SeriesKey) -> dict[str, str]:
    """Return the labels of a series that have a value."""
    named = {"release": key.release, "variant": key.variant}
    others = from_json(key.attributes.encode(), dict[str, str])
    return {name: value for name, value in (named | others).items() if value}


class Full(NamedTuple):
    """The labels of a new series whose values would be too many."""

    of_fleet: frozenset[str]
    of_device: frozenset[str]
    """Those of which its device has brought too many."""

    def without(self, names: Collection[str]) -> Full:
        """Return the same but for some labels."""
        return Full(self.of_fleet.difference(names), self.of_device.difference(names))

    def __bool__(self) -> bool:
        return bool(self.of_fleet or self.of_device)


def fold_values(key: SeriesKey, full: Full, device: str) -> Fold:
    """Return a series as it is counted when labels have too many values.

    Args:
        key: The series.
        full: Which labels.
        device: Who brings it.
    """
    found = fold(key, full.of_fleet | full.of_device)
    return found._replace(device=device, brings_values=True) if full.of_device else found


def fold(key: SeriesKey, names: Collection[str], device: str = "") -> Fold:
    """Return a series as it is counted when labels become `OTHER`.

    Args:
        key: The series.
        names: Which of its labels.
        device: Who brings too many series, if that is why.
    """
    others = from_json(key.attributes.encode(), dict[str, str])
    folded = {name: OTHER if name in names else value for name, value in others.items()}
    return Fold(
        key._replace(
            release=OTHER if "release" in names else key.release,
            variant=OTHER if "variant" in names else key.variant,
            attributes=to_json(folded).decode(),
        ),
        tuple(sorted(names)),
        device,
    )


class LabelValues:
    """The values that each label of one metric has.

    Args:
        brought: The series of the metric, the oldest first, and who brought each.
    """

    def __init__(self, brought: Iterable[tuple[SeriesKey, str | None]]) -> None:
        self.kind: Kind | None = None
        """That of the oldest series; None without any."""

        self._values: dict[str, set[str]] = {}
        self._brought: Counter[tuple[str, str]] = Counter()
        """How many values each device brought of each label."""

        for key, device in brought:
            self.add(key, device)

    def add(self, key: SeriesKey, device: str | None) -> None:
        """Take one more series, and who brings it; None where nobody knows."""
        self.kind = self.kind or key.kind
        for name, value in labels_of(key).items():
            known = self._values.setdefault(name, set())
            if value != OTHER and value not in known:
                known.add(value)
                self._brought[device or "", name] += 1

    def full(self, key: SeriesKey, device: str, bounds: Bounds) -> Full:
        """Return the labels of a new series whose values would be too many.

        Args:
            key: The series.
            device: Who brings it.
            bounds: How many values a label may have, beside `OTHER`.
        """
        new = {
            name
            for name, value in labels_of(key).items()
            if value != OTHER and value not in self._values.get(name, ())
        }
        of_fleet = {name for name in new if len(self._values.get(name, ())) >= bounds.label_values}
        most = bounds.device_label_values
        of_device = {name for name in new - of_fleet if self._brought[device, name] >= most}
        return Full(frozenset(of_fleet), frozenset(of_device))


def news(found: Fold, bounds: Bounds) -> tuple[str, dict[str, Any]]:
    """Return what is told of a device whose series are counted as others: reason and data.

    Args:
        found: The first of them.
        bounds: How many values and series there may be.
    """
    metric, labels = found.key.metric, " and ".join(f"`{name}`" for name in found.labels)
    data = {"metric": metric, "labels": list(found.labels)}
    if found.brings_values:
        why = f"this device brings more than {bounds.device_label_values} values of {labels}"
        return f"{why} of {metric}: further ones count as `{OTHER}`", data
    if found.device:
        why = f"this device brings more than the {bounds.device_series} series that it may at most"
        return f"{why}: {labels} of {metric} count as `{OTHER}`", data
    verb = "has" if len(found.labels) == 1 else "have"
    why = f"{labels} of {metric} {verb} {bounds.label_values} values in the fleet"
    return f"{why}: further ones count as `{OTHER}`", data
