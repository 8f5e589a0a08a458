"""Builds and parses MQTT topics; no other module spells them.

```
edgefleet/v1/enrol/{device}/request      an unknown device asks to be enrolled
edgefleet/v1/enrol/{device}/reply        the answer; holds no secret
edgefleet/v1/dev/{device}/up/{kind}      only that device may publish
edgefleet/v1/dev/{device}/down/{kind}    only that device may subscribe
edgefleet/v1/cast/{32 hex digits}        pieces for the devices that were told of it
edgefleet/v1/controller/start            a controller tells other controllers that it has connected
```
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

from wire.errors import TopicError
from wire.profile import NAME_PATTERN

PREFIX = "edgefleet/v1"
UpKind = Literal[
    "hello",
    "presence",
    "report",
    "refusal",
    "chunk_request",
    "source_request",
    "cast_report",
    "telemetry",
    "measured",
    "certificate_request",
    "sample",
]
UP_KINDS: tuple[UpKind, ...] = get_args(UpKind)
DownKind = Literal[
    "desired",
    "chunk",
    "sources",
    "telemetry_ack",
    "report_request",
    "measure",
    "metadata",
    "certificate",
    "sample_ack",
]

ENROL = f"{PREFIX}/enrol/"
"""What all topics of enrolments begin with."""

ENROL_REQUESTS = f"{ENROL}+/request"
ENROL_REPLIES = f"{ENROL}+/reply"
CONTROLLER_STARTS = f"{PREFIX}/controller/start"
ALL_UP = f"{PREFIX}/dev/+/up/+"
CASTS = f"{PREFIX}/cast/+"
"""The pattern of what a device may subscribe to; nobody may subscribe to all of it."""

_CAST = re.compile(r"[0-9a-f]{32}")

DELIVERY_KINDS: tuple[UpKind, ...] = ("chunk_request", "source_request", "cast_report")
"""What concerns the delivery of packages, which has a connection of its own."""

CHUNK_REQUESTS, SOURCE_REQUESTS, CAST_REPORTS = (
    f"{PREFIX}/dev/+/up/{kind}" for kind in DELIVERY_KINDS
)

CONTROL_UP = tuple(f"{PREFIX}/dev/+/up/{kind}" for kind in UP_KINDS if kind not in DELIVERY_KINDS)
"""The filters over all else that devices send."""


class UpTopic(NamedTuple):
    """A device and what it sent."""

    device: str
    kind: UpKind


def up(device: str, kind: UpKind) -> str:
    """Return the topic on which a device publishes a kind of message."""
    return f"{PREFIX}/dev/{checked_device(device)}/up/{kind}"


def down(device: str, kind: DownKind) -> str:
    """Return the topic on which a device receives a kind of message."""
    return f"{PREFIX}/dev/{checked_device(device)}/down/{kind}"


def all_down(device: str) -> str:
    """Return the filter over everything that one device may receive."""
    return f"{PREFIX}/dev/{checked_device(device)}/down/#"


def cast(name: str) -> str:
    """Return the topic on which a blob comes to many devices.

    Args:
        name: As the controller told it; random.

    Returns:
        The topic.

    Raises:
        TopicError: It is no such name.
    """
    if _CAST.fullmatch(name) is None:
        raise TopicError("the name of a cast is not 32 hexadecimal digits")
    return f"{PREFIX}/cast/{name}"


def cast_name(topic: str) -> str | None:
    """Return the name of a cast from its topic; None for other topics."""
    before, _, name = topic.rpartition("/")
    return name if before == f"{PREFIX}/cast" and _CAST.fullmatch(name) else None


def enrol_request(device: str) -> str:
    """Return the topic on which a device asks to be enrolled."""
    return f"{PREFIX}/enrol/{checked_device(device)}/request"


def enrol_reply(device: str) -> str:
    """Return the topic on which the controller answers an enrolment."""
    return f"{PREFIX}/enrol/{checked_device(device)}/reply"


def shared(topic_filter: str, group: str | None) -> str:
    """Return the filter whose messages the broker deals out among the members of a group.

    Args:
        topic_filter: Over topics.
        group: Its name; None to receive all messages.
    """
    return topic_filter if group is None else f"$share/{group}/{topic_filter}"


def parse_up(topic: str) -> UpTopic:
    """Return the device and the kind from a topic.

    Args:
        topic: As received.

    Returns:
        Both.

    Raises:
        TopicError: Not a topic on which devices publish.
    """
    parts = topic.removeprefix(f"{PREFIX}/").split("/")
    if len(parts) != 4 or parts[0] != "dev" or parts[2] != "up":  # noqa: PLR2004
        raise TopicError(f"not a device's topic: {topic!r}")
    for kind in UP_KINDS:
        if parts[3] == kind:
            return UpTopic(checked_device(parts[1]), kind)
    raise TopicError(f"unknown kind of message: {topic!r}")


def is_telemetry(topic: str) -> bool:
    """Tell whether a topic, as received, is that of a device's telemetry."""
    return topic.startswith(f"{PREFIX}/dev/") and topic.endswith("/up/telemetry")


def sender_of(topic: str) -> str:
    """Return who sent a message to the controller.

    Args:
        topic: As received; any text.

    Returns:
        The level that names the device in a device's own topic. Empty for other topics: who is not
        enrolled chooses the name in them.
    """
    own = f"{PREFIX}/dev/"
    return topic.removeprefix(own).partition("/")[0] if topic.startswith(own) else ""


def parse_enrol_request(topic: str) -> str:
    """Return the device that asks to be enrolled.

    Args:
        topic: As received.

    Returns:
        The identifier.

    Raises:
        TopicError: Not an enrolment topic.
    """
    parts = topic.removeprefix(f"{PREFIX}/").split("/")
    if len(parts) != 3 or parts[0] != "enrol" or parts[2] != "request":  # noqa: PLR2004
        raise TopicError(f"not an enrolment topic: {topic!r}")
    return checked_device(parts[1])


def down_kind(topic: str) -> DownKind:
    """Return the kind of a message that a device received.

    Args:
        topic: As received.

    Returns:
        The kind of message.

    Raises:
        TopicError: Not a topic on which devices receive.
    """
    for kind in get_args(DownKind):
        if topic.endswith(f"/down/{kind}"):
            return kind  # type: ignore[no-any-return]  # get_args forgets the literal
    raise TopicError(f"unknown kind of message: {topic!r}")


def checked_device(device: str) -> str:
    """Return a device identifier if it is safe as a topic level and a file name.

    Args:
        device: The identifier.

    Returns:
        The same.

    Raises:
        TopicError: Empty, too long, or with characters other than a-z 0-9 . _ -
    """
    if NAME_PATTERN.fullmatch(device) is None:
        raise TopicError(
            f"not a device identifier: {device!r}",
            remedy="use 1 to 63 of a-z 0-9 . _ - and begin with a letter or digit",
        )
    return device
