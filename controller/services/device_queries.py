"""Queries of the telemetry over devices that are selected, and grouped by what they are.

The API's queries and alerts ask here, so a selector and a label mean the same in both. What is kept
for later, a rule or a saved query, may name a label that no device has yet: that is a doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from controller.domain import selectors
from controller.domain.attributes import ATTRIBUTES
from controller.domain.names import which_there_are
from controller.domain.selector_tree import Exists, In, has_wildcard
from controller.services.devices import Devices
from telemetry.metrics import names_of
from telemetry.server.query import MODEL, Query
from telemetry.server.question import DEVICE, MINUTE
from telemetry.server.store import TelemetryStore

NO_LABEL: Final = "agent_version"
"""What devices can be grouped by, and not selected."""

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
    asked = [(_name_of(each), each) for each in selectors.parse_selector(selector).needed()]
    named = [(name, each) for name, each in asked if name is not None]
    if not named:
        return []
    known = sorted({*devices.names_to_group_by(), *selectors.NEVER_LABELS} - {NO_LABEL})
    values = devices.values_by_name({name for name, _ in named} & set(known))
    return [
        doubt
        for name, each in named
        for doubt in _doubts(name, each, known, values.get(name, {}).values())
    ]


def _name_of(asked: In | Exists) -> str | None:
    """Return the label, or own key, that a condition asks for; None for other attributes."""
    return asked.key if asked.key in selectors.NEVER_LABELS else selectors.label_of(asked.key)


def _doubts(
    name: str, asked: In | Exists, known: list[str], values: Iterable[str]
) -> Iterator[str]:
    wanted = asked.values if isinstance(asked, In) else ()
    if name == DEVICE and DEVICE not in known:
        yield f"a device is selected by its id: id={wanted[0] if wanted else 'NAME'}"
        return
    if name not in known:
        others = get_close_matches(name, set(ATTRIBUTES) - set(known))
        near = which_there_are(name, sorted({*known, *others}), what="labels", none="")
        yield f"no device has a label {name!r}; {near}"
        return
    there = sorted(set(values))
    what = "devices" if name == "id" else f"values of {name}"
    for value in wanted:
        if value not in there and not has_wildcard(value):
            near = which_there_are(value, there, what=what, none="there are no devices yet")
            yield f"no device has {name}={value}; {near}"


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
