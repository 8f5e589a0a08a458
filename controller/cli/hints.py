"""Why an answer may be empty: words of a question that name nothing that there is.

Rules:
- A hint is no fault: what is asked for may come yet. Where the controller cannot say what there is,
  there is no hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from controller.domain.names import which_there_are
from controller.query_schemas import TelemetryQuestion
from controller.telemetry_schemas import DeviceEvent


def about_selector(api: Fleet, selector: str) -> list[str]:
    """Return which labels of a selector, or values of them, no device has.

    Args:
        api: The controller, which has read the selector.
        selector: A label expression.

    Returns:
        A line for each.
    """
    return _doubts(api, selector) if selector else []


def about_question(api: Fleet, question: TelemetryQuestion) -> list[str]:
    """Return what a query names that there is not.

    Args:
        api: The controller, which has read the query.
        question: The query.

    Returns:
        A line for each.
    """
    if not (question.selector or question.where):
        return []
    return _doubts(api, question.selector, question.metric, question.where)


def _doubts(api: Fleet, selector: str, metric: str = "", where: Sequence[str] = ()) -> list[str]:
    found: list[str] = []
    with suppress(FaultError):  # a controller of an earlier version
        found = api.telemetry.doubts(selector=selector, metric=metric, where=where)
    return found


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
