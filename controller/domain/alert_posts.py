"""What is posted to a webhook, how it is signed, and when it is tried again.

Rules:
- A receiver must check the signature over the timestamp and the bytes of the body as they came.
- What is posted again has the same `id`; only the timestamp and the signature are new.
- Posts of one group of a rule come in the order in which things happened, also to a receiver that
  refuses some.
- No wait is longer than the longest one, wherever the wall clock was when it began.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from wire.codec import to_json

FORM: Final = 1
SIGNATURE_HEADER: Final = "X-Edgefleet-Signature"
TIMESTAMP_HEADER: Final = "X-Edgefleet-Timestamp"
DELIVERY_HEADER: Final = "X-Edgefleet-Delivery"
MAX_TOGETHER: Final = 100
"""Alerts in one post; each takes some kilobytes at most."""

MAX_TRIES: Final = 30
"""With the waits below about a day."""

FIRST_WAIT_S: Final = 10.0
LONGEST_WAIT_S: Final = 3600.0
JITTER: Final = 0.2
MAX_WAITING: Final = 1000
"""Posts that wait for one webhook; of more the oldest are given up."""

ID_CHARS: Final = 16
"""Of what names an alert, and a group of a rule."""


class DeliveryState(StrEnum):
    """Where a post is."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One alert in a post."""

    id: str
    """The same for all that is told of one alert from its firing to its end."""

    rule: str
    kind: str
    severity: str
    summary: str
    group: str
    labels: dict[str, str]
    state: str
    """`firing` or `resolved`."""

    value: float | None
    above: float | None
    below: float | None
    fired_at_s: float
    at_s: float
    repeated: bool = False
    """Whether it was told before and still fires."""

    reason: str = ""
    """Why it was resolved, if not by its value."""


def group_key(rule: str, group: str) -> str:
    """Return what names a group of a rule, whenever it fires, in few characters.

    Args:
        rule: The name of the rule.
        group: The group as text.
    """
    return hashlib.sha256(f"{rule}\n{group}".encode()).hexdigest()[:ID_CHARS]


def body(
    identifier: str, webhook: str, notices: list[Notice], *, now_s: float, is_test: bool = False
) -> str:
    """Return what is posted.

    Args:
        identifier: Of the post.
        webhook: The name of the receiver.
        notices: Alerts, in the order in which they happened.
        now_s: Wall time.
        is_test: Whether nothing has happened and somebody only tries the webhook.
    """
    content: dict[str, Any] = {
        "form": FORM,
        "id": identifier,
        "webhook": webhook,
        "created_at_s": now_s,
        "test": is_test,
        "alerts": [_shown(notice) for notice in notices],
    }
    return to_json(content).decode()


def signature(secret: bytes, timestamp: str, content: bytes) -> str:
    """Return the signature of a post, as its header has it.

    Args:
        secret: What both sides know.
        timestamp: As its header has it.
        content: The body.
    """
    signed = hmac.new(secret, timestamp.encode() + b"." + content, hashlib.sha256)
    return f"sha256={signed.hexdigest()}"


def wait_s(tries: int, chance: float) -> float:
    """Return how long to wait after a try.

    Args:
        tries: How many there were, this one included.
        chance: 0 to 1, drawn anew each time: many controllers do not come back at once.
    """
    length_s = min(FIRST_WAIT_S * 2.0 ** min(tries - 1, 20), LONGEST_WAIT_S)
    return length_s * (1.0 + JITTER * (2.0 * chance - 1.0))


def longest_wait_s() -> float:
    """Return the longest that a post may have to wait; what says more is due."""
    return LONGEST_WAIT_S * (1.0 + JITTER)


def _shown(notice: Notice) -> dict[str, Any]:
    return {
        "id": notice.id,
        "alert": notice.rule,
        "kind": notice.kind,
        "severity": notice.severity,
        "summary": notice.summary,
        "group": notice.group,
        "labels": notice.labels,
        "state": notice.state,
        "value": notice.value,
        "above": notice.above,
        "below": notice.below,
        "fired_at_s": notice.fired_at_s,
        "at_s": notice.at_s,
        "repeated": notice.repeated,
        "reason": notice.reason,
    }
