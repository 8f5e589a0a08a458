"""Which series are counted as one, so that no device makes too many. Pure.

Rules:
- Nothing is lost: the values of a series that there is no room for count for another one, in which
  the labels that have too many values are `OTHER`.
- A label of a metric has a bounded number of values in the whole fleet. A device brings a bounded
  number of series; of further ones all labels become `OTHER`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from telemetry.metrics import Kind
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
        keys: The series of the metric, the oldest first.
    """

    def __init__(self, keys: Iterable[SeriesKey]) -> None:
        self.kind: Kind | None = None
        """That of the oldest series; None without any."""

        self._values: dict[str, set[str]] = {}
        for key in keys:
            self.add(key)

    def add(self, key: SeriesKey) -> None:
        """Take one more series."""
        self.kind = self.kind or key.kind
        for name, value in labels_of(key).items():
            if value != OTHER:
                self._values.setdefault(name, set()).add(value)

    def full(self, key: SeriesKey, most: int) -> tuple[str, ...]:
        """Return the labels of a new series whose values would be too many.

        Args:
            key: The series.
            most: How many values a label may have, beside `OTHER`.
        """
        return tuple(
            name
            for name, value in labels_of(key).items()
            if value != OTHER
            and value not in (known := self._values.get(name, set()))
            and len(known) >= most
        )


def news(found: Fold, most_values: int, most_series: int) -> tuple[str, dict[str, Any]]:
    """Return what is told of a device whose series are counted as others: reason and data.

    Args:
        found: The first of them.
        most_values: How many values a label may have.
        most_series: How many series a device may bring.
    """
    metric, labels = found.key.metric, " and ".join(f"`{name}`" for name in found.labels)
    data = {"metric": metric, "labels": list(found.labels)}
    if found.device:
        why = f"this device brings more than the {most_series} series that it may at most"
        return f"{why}: {labels} of {metric} count as `{OTHER}`", data
    verb = "has" if len(found.labels) == 1 else "have"
    why = f"{labels} of {metric} {verb} {most_values} values in the fleet"
    return f"{why}: further ones count as `{OTHER}`", data
