"""Which devices an enrolment token lets in by itself, and how often the others ask again. Pure.

Rules:
- A token lets in every device (`auto`), none (`by-hand`), or those that match a selector. What it
  does not let in by itself waits for an operator.
- Such a selector sees what a device says of itself: its labels, its serial number as `serial`, and
  its profile. None of it is proven: a rule saves work, and keeps out nobody who lies.
- It names no group, and nothing that a device only has once it is in: so it means the same for as
  long as the token lives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from controller.domain.attributes import DeviceValues, Value, attribute
from controller.domain.selector_tree import LABEL_PREFIX, Exists, Group, leaves
from controller.domain.selectors import parse_selector
from controller.domain.states import AUTO, BY_HAND
from controller.errors import InvalidRequestError

SERIAL: Final = "serial"
"""The name under which a rule asks for the serial number."""

MAX_SERIAL_CHARS: Final = 64
MAX_WAITING: Final = 2000
"""Devices in the queue, those that were refused included."""

FORGOTTEN_AFTER_S: Final = 7 * 86_400.0
"""A device that has not asked for so long is not in the queue any more."""

ASK_MIN_S: Final = 5.0
ASKED_PER_S: Final = 20.0
"""How often all waiting devices ask together."""

_SERIAL: Final = re.compile(rf"[A-Za-z0-9._:/-]{{1,{MAX_SERIAL_CHARS}}}")


def is_serial(text: str) -> bool:
    """Tell whether a text can be a serial number: selectors can hold it."""
    return _SERIAL.fullmatch(text) is not None


def checked_rule(rule: str) -> str:
    """Return which devices a token lets in by itself, as it is stored.

    Args:
        rule: `auto`, `by-hand` or a selector.

    Raises:
        SelectorError: It cannot be read.
        InvalidRequestError: It asks for nothing, for a group, or for what no new device has.
    """
    if rule in {AUTO, BY_HAND}:
        return rule
    tree = parse_selector(rule).tree
    if tree is None:
        raise InvalidRequestError(
            "the rule that accepts devices is empty",
            remedy=f"write {AUTO}, {BY_HAND} or a selector such as 'profile=pi5'",
        )
    if isinstance(tree, Exists) and LABEL_PREFIX not in rule and not _is_known(tree.key):
        near = get_close_matches(tree.key, (AUTO, BY_HAND), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InvalidRequestError(
            f"{tree.key!r} is no rule that accepts devices",
            remedy=f"{meant}write {AUTO}, {BY_HAND} or a selector; for those with the label, "
            f"{LABEL_PREFIX}{tree.key}",
        )
    for leaf in leaves(tree):
        if isinstance(leaf, Group):
            fault = f"group:{leaf.name}"
        elif (known := attribute(leaf.key)) is not None and not known.steady:
            fault = leaf.key
        else:
            continue
        raise InvalidRequestError(
            f"the rule that accepts devices asks for {fault}, which no device has before it is in",
            remedy="ask for labels, serial, or what devices report of their hardware",
        )
    return rule


def _is_known(key: str) -> bool:
    """Tell whether a word alone may ask for what it names."""
    return key == SERIAL or attribute(key) is not None


def accepts(
    rule: str, *, labels: Mapping[str, str], serial: str, attributes: Mapping[str, Value]
) -> bool:
    """Tell whether a token lets a device in by itself.

    Args:
        rule: As `checked_rule` returned it.
        labels: Those that the device claims and those of the token.
        serial: Its serial number as it says; empty for none.
        attributes: What it reports of itself.
    """
    if rule in {AUTO, BY_HAND}:
        return rule == AUTO
    claimed = {key: value for key, value in labels.items() if key != SERIAL}
    if serial:
        claimed[SERIAL] = serial
    return parse_selector(rule).matches(DeviceValues(labels=claimed, attributes=attributes))


def ask_again_s(waiting: int) -> float:
    """Return after how long a waiting device is to ask again: a long queue asks more seldom.

    Args:
        waiting: How many devices are in the queue.
    """
    return max(ASK_MIN_S, waiting / ASKED_PER_S)
