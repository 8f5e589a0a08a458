"""Compares what devices counted of a release with the distributions that its package carries.

`run(store, query, release, distributions)` asks about the fleet, and `devices` which of its devices
have moved furthest; what of it is chance is decided in
`telemetry.server.drift`, and what counts as one observation in `telemetry.server.units`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from telemetry.server.drift import Drift, Floats, by_chance, drift, stability_indexes, told
from telemetry.server.query import filled
from telemetry.server.question import DEVICE, Query, check_query
from telemetry.server.store import TelemetryStore
from telemetry.server.units import Units, units_text, values_of
from wire.package.distribution import Distribution

METRIC: Final = "model_samples_total"
BIN: Final = "bin"


class Part(NamedTuple):
    """One measure of one tensor of one variant."""

    variant: str
    tensor: str
    """`input.NAME` or `output.NAME`."""

    measure: str
    devices: int
    """How many have counted; the result knows how many observations they are."""

    result: Drift
    moved: bool
    """Whether it is beyond what chance gives."""


LEAST_SAMPLES: Final = 30
"""Of fewer samples of a device the index says nothing."""


class Moved(NamedTuple):
    """One measure of one tensor of one variant, on one device."""

    device: str
    variant: str
    tensor: str
    measure: str
    stability_index: float
    by_chance: float
    samples: float


def run(
    store: TelemetryStore,
    query: Query,
    release: str,
    distributions: Mapping[str, Sequence[Distribution]],
    unit: str = "",
) -> tuple[Part, ...]:
    """Compare a release's requests and answers with its evaluation.

    Args:
        store: The telemetry.
        query: Which devices and what time count.
        release: `name:version`.
        distributions: By variant, what its package carries.
        unit: What holds devices together that are one observation, such as the label `site`;
            empty for each device alone.

    Returns:
        A part for each distribution that devices have counted, in that order.

    Raises:
        QueryError: The times make no sense, no device has the unit, or there are too many devices.
        TelemetryStoreError: The database failed.
    """
    found: list[tuple[str, str, str, int, Drift]] = []
    holds = values_of(query.device_values, unit)
    for part in _parts(store, query, release, distributions):
        counts = Units(part.devices, holds).summed(part.counts)
        result = drift(part.reference, counts, units_text(unit))
        having = int((part.counts.sum(axis=1) > 0).sum())
        found.append((part.variant, part.tensor, part.measure, having, result))
    moved = told([one[-1] for one in found])
    return tuple(Part(*one, moved=each) for one, each in zip(found, moved, strict=True))


def devices(
    store: TelemetryStore,
    query: Query,
    release: str,
    distributions: Mapping[str, Sequence[Distribution]],
    most: int,
) -> tuple[Moved, ...]:
    """Return which devices have moved furthest from the evaluation of a release.

    Whether one device moved by chance nobody can tell from that device: its requests resemble each
    other. So this names where to look, and no verdict.

    Args:
        store: The telemetry.
        query: Which devices and what time count.
        release: `name:version`.
        distributions: By variant, what its package carries.
        most: At most so many devices, each with what has moved furthest beyond chance.

    Raises:
        QueryError: The times make no sense, or there are too many devices.
        TelemetryStoreError: The database failed.
    """
    furthest: dict[str, Moved] = {}
    for part in _parts(store, query, release, distributions):
        enough = np.flatnonzero(part.counts.sum(axis=1) >= LEAST_SAMPLES)
        counts = part.counts[enough]
        figures = (
            stability_indexes(part.reference, counts),
            by_chance(part.reference, counts),
            counts.sum(axis=1),
        )
        for at, *of_device in zip(enough, *(each.tolist() for each in figures), strict=True):
            device = part.devices[at]
            moved = Moved(device, part.variant, part.tensor, part.measure, *of_device)
            before = furthest.get(device)
            if before is None or _beyond(moved) > _beyond(before):
                furthest[device] = moved
    return tuple(sorted(furthest.values(), key=_beyond, reverse=True)[:most])


def _beyond(moved: Moved) -> float:
    return moved.stability_index / moved.by_chance if moved.by_chance else 0.0  # of one bin


class _Part(NamedTuple):
    """What devices have counted for one distribution."""

    variant: str
    tensor: str
    measure: str
    reference: Floats
    devices: list[str]
    counts: Floats
    """Shape (devices, bins)."""


def _parts(
    store: TelemetryStore,
    query: Query,
    release: str,
    distributions: Mapping[str, Sequence[Distribution]],
) -> Iterator[_Part]:
    """Yield each distribution that devices have counted."""
    for variant, known in distributions.items():
        for each in known:
            tensor = f"{each.of}.{each.tensor}"
            where = {
                "release": release, "variant": variant, "tensor": tensor, "measure": each.measure,
            }  # fmt: skip
            names, counts = _counts(store, query, tuple(where.items()), len(each.counts))
            if counts.sum() > 0:
                reference = np.array(each.counts, np.float64)
                yield _Part(variant, tensor, each.measure, reference, names, counts)


def _counts(
    store: TelemetryStore, query: Query, where: tuple[tuple[str, str], ...], bins: int
) -> tuple[list[str], Floats]:
    """Return devices, and how many samples each has in each bin, shape (devices, bins)."""
    asked = replace(
        query, metric=METRIC, statistics=("total",), group_by=(DEVICE, BIN), where=where
    )
    check_query(asked)
    groups = filled(store, asked).groups
    named = groups.named()
    places = {device: at for at, device in enumerate(sorted({str(k[DEVICE]) for k in named}))}
    counts = np.zeros((len(places), bins))
    for key, total in zip(named, groups.aggregate.totals.tolist(), strict=True):
        place = str(key[BIN])
        if place.isascii() and place.isdigit() and int(place) < bins:
            counts[places[str(key[DEVICE])], int(place)] += total
    return list(places), counts
