"""Queries of the telemetry over devices that are selected, and grouped by what they are.

The API's queries and alerts ask here, so a selector and a label mean the same in both. What is kept
for later, a rule or a saved query, may name a label that no device has yet: that is a doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from controller.domain import selectors
from controller.domain.names import which_there_are
from controller.services.devices import Devices
from telemetry.server.query import MODEL, Query
from telemetry.server.question import DEVICE, MINUTE

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
    known = sorted({*devices.names_to_group_by(), *selectors.NEVER_LABELS})
    for label in selectors.parse_selector(selector).needed_labels():
        if label not in known:
            near = which_there_are(label, known, what="labels", none="")
            return f"{doubt}, and none has a label {label!r}; {near}"
    return doubt
