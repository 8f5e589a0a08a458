"""Queries of the telemetry over devices that are selected, and grouped by what they are.

The API's queries and alerts ask here, so a selector and a label mean the same in both. What is kept
for later, a rule or a saved query, may name a label that no device has yet: that is a doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from controller.domain.names import which_there_are
from controller.domain.selectors import OWN_KEYS, Term, parse_selector
from controller.services.devices import Devices
from telemetry.metrics import names_of
from telemetry.server.query import MODEL, Query
from telemetry.server.question import DEVICE, MINUTE
from telemetry.server.store import TelemetryStore

NO_LABEL: Final = "agent_version"
"""What devices can be grouped by, and not selected."""

NEEDS_LABEL: Final = ("in", "exists")
"""The conditions that no device without the label meets."""

NEVER_LABELS: Final = {"", DEVICE, MINUTE, MODEL, "release", "variant"}
"""What is grouped by most often, and is not looked for among labels."""


def over_devices(
    devices: Devices, selector: str, names: tuple[str, ...]
) -> Callable[[Query], Query]:
    """Return what narrows queries to the devices that match, which may be grouped by what they are.

    The devices are looked up once, for all queries.

    Args:
        devices: The devices of the fleet.
        selector: A label expression.
        names: What is grouped by, and what may be taken for a label.

    Raises:
        SelectorError: The selector cannot be read.
    """
    chosen, values = devices.chosen(selector), devices.values_by_name(names)
    is_all = values.keys() >= set(names) - NEVER_LABELS
    known = frozenset() if is_all else frozenset(devices.names_to_group_by())

    def narrowed(query: Query) -> Query:
        return replace(query, devices=chosen, device_values=values, device_names=known)

    return narrowed


def selector_doubt(devices: Devices, selector: str) -> str:
    """Return that no device matches a selector, and what may be meant; empty if one does.

    Args:
        devices: The devices of the fleet.
        selector: A label expression.

    Raises:
        SelectorError: The selector cannot be read.
    """
    if devices.chosen(selector) != frozenset():
        return ""
    doubt = f"no device matches its selector {selector!r}"
    return "; ".join([doubt, *selector_doubts(devices, selector)])


def selector_doubts(devices: Devices, selector: str) -> list[str]:
    """Return what a selector names that no device has, a line each.

    Args:
        devices: The devices of the fleet.
        selector: A label expression.

    Raises:
        SelectorError: The selector cannot be read.
    """
    terms = [each for each in parse_selector(selector).terms if each.operator in NEEDS_LABEL]
    if not terms:
        return []
    known = sorted({*devices.names_to_group_by(), *OWN_KEYS} - {NO_LABEL})
    values = devices.values_by_name({each.key for each in terms} & set(known))
    return [
        doubt
        for term in terms
        for doubt in _term_doubts(term, known, values.get(term.key, {}).values())
    ]


def _term_doubts(term: Term, known: list[str], values: Iterable[str]) -> Iterator[str]:
    if term.key == DEVICE and DEVICE not in known:
        yield f"a device is selected by its id: id={term.values[0] if term.values else 'NAME'}"
        return
    if term.key not in known:
        near = which_there_are(term.key, known, what="labels", none="")
        yield f"no device has a label {term.key!r}; {near}"
        return
    there = sorted(set(values))
    what = "devices" if term.key == "id" else f"values of {term.key}"
    for value in term.values:
        if value not in there:
            near = which_there_are(value, there, what=what, none="there are no devices yet")
            yield f"no device has {term.key}={value}; {near}"


def condition_doubts(
    telemetry: TelemetryStore, metric: str, where: Sequence[tuple[str, str]]
) -> list[str]:
    """Return which values of conditions nothing that was reported has, a line each.

    Args:
        telemetry: What devices have reported.
        metric: The metric; what is not reported yet has no doubts.
        where: Attributes, or `device`, and their values.

    Raises:
        TelemetryStoreError: The database failed.
    """
    found = []
    series = [one for name in names_of(metric) for one in telemetry.series(name)] if where else []
    for name, value in where if series else ():
        if name == DEVICE:
            there = {each.device for each in telemetry.devices()}
        else:
            there = {one.attributes.get(name, "") for one in series}
        if value not in there:
            what = "devices" if name == DEVICE else f"values of {name}"
            near = which_there_are(value, sorted(there - {""}), what=what, none="it has no values")
            found.append(f"no {metric} has {name}={value}; {near}")
    return found
