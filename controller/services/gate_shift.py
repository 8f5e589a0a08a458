"""How often the answers of each device name each class, so that two releases can be compared.

Devices count answers by the bins of their own release's evaluation: bin 3 of one release may be
another class than bin 3 of the next, and the stability index of each is a distance from another
reference. Classes are the same for both. So bins become classes by what each package carries, and
shares of classes are compared.

Rules:
- A class that any of the releases and variants does not list counts with all other classes.
- Answers of a release whose package is not known, or carries no classes, do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from controller.domain.gates.language import Gate
from controller.errors import InvalidRequestError
from controller.services.gate_figures import LEAST_VALUES, of_model
from controller.services.preflight import Preflight
from telemetry.server.query import Query, run
from telemetry.server.question import DEVICE
from telemetry.server.store import TelemetryStore
from wire.errors import FleetError
from wire.package.distribution import CLASS, Distribution

OTHERS: Final = -1
"""Stands for all classes that are not compared."""

_AT_ONCE: Final = 250
"""Devices of one question: each has a row for each class of each variant."""

_GROUPS: Final = (DEVICE, "release", "variant", "tensor", "bin")

References = Callable[[str], Mapping[str, Sequence[Distribution]]]
"""Returns by variant what a release's package carries; nothing of one that is not known."""


class _Count(NamedTuple):
    """Answers of a device by a bin."""

    device: str
    classes: tuple[int, ...]
    """What the bins of its release and variant stand for."""

    at: int
    answers: float


def references(preflight: Preflight) -> References:
    """Return what reads the distributions that packages carry.

    Args:
        preflight: Reads their manifests.
    """

    def read(release: str) -> Mapping[str, Sequence[Distribution]]:
        try:
            variants = preflight.find(release).manifest.variants
        except FleetError:
            return {}
        return {each.name: each.info.distributions or () for each in variants}

    return read


def class_shares(
    store: TelemetryStore,
    known: References,
    gate: Gate,
    model: str,
    devices: Iterable[str],
    spans: Sequence[tuple[float, float]],
) -> list[dict[str, dict[int, float]]]:
    """Return for each span of time and device the share of its answers that name each class.

    Args:
        store: The telemetry.
        known: What packages carry.
        gate: Which answers.
        model: Whose.
        devices: Which devices.
        spans: Since when and until when, in wall time.

    Returns:
        By span and device, all classes that are compared, `OTHERS` among them; nothing of devices
        that have counted too few answers.

    Raises:
        FleetError: The telemetry does not answer, or several outputs name classes.
    """
    chosen = sorted(devices)
    counts = [
        [
            count
            for at in range(0, len(chosen), _AT_ONCE)
            for count in _counts(
                store, known, gate, model, frozenset(chosen[at : at + _AT_ONCE]), span
            )
        ]
        for span in spans
    ]
    lists = {count.classes for of_span in counts for count in of_span}
    shared = frozenset.intersection(*map(frozenset, lists)) if lists else frozenset()
    return [_shares(of_span, shared) for of_span in counts]


def _counts(
    store: TelemetryStore,
    known: References,
    gate: Gate,
    model: str,
    devices: frozenset[str],
    span: tuple[float, float],
) -> list[_Count]:
    query = Query(
        metric=gate.metric,
        statistics=("total",),
        group_by=_GROUPS,
        where=(*gate.where, ("measure", CLASS), *of_model(gate.metric, model)),
        devices=devices,
        since_s=max(span[0], 0.0),
        until_s=span[1],
    )
    rows = [row for row in run(store, query).rows if None not in row]
    tensors = sorted({str(row[3]) for row in rows})
    if len(tensors) > 1:
        raise InvalidRequestError(
            f"several outputs name classes: {', '.join(tensors)}",
            remedy=f"ask for one: shift({gate.metric}{{tensor={tensors[0]}}})",
        )
    read: dict[str, Mapping[str, Sequence[Distribution]]] = {}
    found = []
    for device, release, variant, tensor, place, total in rows:
        of_release = read.setdefault(str(release), known(str(release)))
        classes = _classes(of_release.get(str(variant), ()), str(tensor))
        if classes and str(place).isdecimal() and isinstance(total, int | float):
            found.append(_Count(str(device), classes, int(str(place)), float(total)))
    return found


def _classes(distributions: Iterable[Distribution], tensor: str) -> tuple[int, ...]:
    for each in distributions:
        if each.measure == CLASS and f"{each.of}.{each.tensor}" == tensor:
            return each.classes
    return ()


def _shares(counts: Iterable[_Count], shared: frozenset[int]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for count in counts:
        of_device = found.setdefault(count.device, dict.fromkeys((*shared, OTHERS), 0.0))
        named = count.classes[count.at] if count.at < len(count.classes) else OTHERS
        of_device[named if named in shared else OTHERS] += count.answers
    totals = {device: sum(classes.values()) for device, classes in found.items()}
    return {
        device: {each: number / totals[device] for each, number in classes.items()}
        for device, classes in found.items()
        if totals[device] >= LEAST_VALUES
    }


def check_shift(store: TelemetryStore, gate: Gate) -> None:
    """Ask for a shift once, so that a misspelt word is told.

    Raises:
        QueryError: It asks for what the metric has not.
        TelemetryStoreError: The database failed.
    """
    asked = Query(metric=gate.metric, group_by=_GROUPS, where=gate.where, devices=frozenset({""}))
    run(store, replace(asked, since_s=0.0, until_s=60.0, statistics=("total",)))
