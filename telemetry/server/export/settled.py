"""Which measurements will change no more, so that each can be handed on once. Pure.

A device sends what it measured in order, from a spool that outlasts an outage. So a minute of a
device is settled as soon as the device has gone on to a later one: what was measured while it was
offline is handed on when it comes, late as it is, because each device has a place of its own.

Rules:
- The newest minutes of a device that is silent are settled after `SILENT_MINUTES`; what it still
  sends of them later is not handed on.
- The same holds for a device whose clock went back: what it sends of minutes that were handed on
  is not.
- A device whose clock is ahead is taken as one that has gone on to now.
- What is read at once stays small after an outage: a window of many devices is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

LATER_MINUTES: Final = 2
"""How much later the newest minute of a device must be: batches are sent again, so they may come
out of their order."""

SILENT_MINUTES: Final = 60
MAX_DEVICE_MINUTES: Final = 2000
"""A device has some twenty series, so a window has some 40,000 rows."""

MAX_MINUTES: Final = 1440
MAX_DEVICES: Final = 2000
"""As many as one statement names."""


class Window(NamedTuple):
    """Minutes of some devices that are handed on together."""

    devices: tuple[str, ...]
    since: int
    """The first minute."""

    until: int
    """The first minute after it."""


def settled_until(newest: int, now: int) -> int:
    """Return the first minute of a device that is not settled.

    Args:
        newest: The newest minute of which the device has sent a measurement.
        now: The minute that the clock shows.
    """
    gone_on = min(newest, now) - LATER_MINUTES + 1
    silent = min(newest + 1, now - SILENT_MINUTES)
    return max(gone_on, silent)


def windows(
    newest: Mapping[str, int], done: Mapping[str, int], start: int, now: int
) -> Iterator[Window]:
    """Yield what can be handed on, what concerns the most devices first.

    Args:
        newest: Of each device, the newest minute of which it has sent something.
        done: Of each device, the first minute that was not handed on.
        start: The same for all others.
        now: The minute that the clock shows.

    Yields:
        The next window of each device that has one.
    """
    groups: dict[tuple[int, int], list[str]] = {}
    for device, minute in newest.items():
        since = done.get(device, start)
        until = settled_until(minute, now)
        if until > since:
            groups.setdefault((since, until), []).append(device)
    for (since, until), devices in sorted(groups.items(), key=lambda group: -len(group[1])):
        for at in range(0, len(devices), MAX_DEVICES):
            part = tuple(devices[at : at + MAX_DEVICES])
            most = min(MAX_DEVICE_MINUTES // len(part), MAX_MINUTES)
            yield Window(part, since, min(until, since + most))
