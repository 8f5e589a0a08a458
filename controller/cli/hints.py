"""Why an answer may be empty: words of a question that name nothing that there is.

Rules:
- A hint is no fault: what is asked for may come yet. Where the controller cannot say what there is,
  there is no hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Final

from controller.cli.client import ApiClient
from controller.cli.errors import FaultError
from controller.domain.attributes import ATTRIBUTES
from controller.domain.names import which_there_are
from controller.domain.selectors import NEVER_LABELS, parse_selector
from controller.telemetry_schemas import DeviceEvent

LABELS_PATH: Final = "/v1/telemetry/labels"


def about_selector(api: ApiClient, selector: str) -> list[str]:
    """Return which labels of a selector no device has.

    Args:
        api: The controller, which has read the selector.
        selector: A label expression.

    Returns:
        A line for each.
    """
    asked = parse_selector(selector).needed_labels()
    if not asked:
        return []
    names: list[str] = []
    with suppress(FaultError):  # a controller of an earlier version
        names = api.get(LABELS_PATH, list[str])
    others = set(ATTRIBUTES) - NEVER_LABELS
    known = {*names, *NEVER_LABELS} - others
    return [
        f"no device has a label {key!r}; "
        + which_there_are(
            key, sorted({*known, *get_close_matches(key, others)}), what="labels", none=""
        )
        for key in asked
        if names and key not in known
    ]


def about_keys(where: Sequence[str], events: Iterable[DeviceEvent]) -> list[str]:
    """Return which keys of conditions stand in no event.

    Args:
        where: The conditions, each `key=value`.
        events: What there is without them.

    Returns:
        A line for each; none without events.
    """
    known = sorted({key for event in events for key in _keys(event.data)})
    asked = dict.fromkeys(pair.partition("=")[0].strip() for pair in where)
    return [
        f"no event has {key!r} in its data; "
        + which_there_are(key, known, what="keys", none="those that there are have none")
        for key in asked
        if known and key not in known
    ]


def _keys(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of what stands in data, with dots for what lies inside."""
    for name, value in data.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _keys(value))
