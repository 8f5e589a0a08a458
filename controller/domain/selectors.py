"""Selectors: label expressions that devices match or do not match.

```
site=berlin,profile!=rpi4        both must hold
arch in (x86_64,aarch64)         one of them
stage not in (lab), canary       the label `canary` exists
!retired                         the label `retired` does not exist
id=cam-17                        that device
```

Rules:
- `id`, `profile` and `arch` ask for the device's own data; no label may have these names.
- An empty expression selects every device. An expression that cannot be read is refused; it never
  counts as an empty one.
- `!=` and `not in` also hold for a device without that label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controller.errors import InvalidRequestError, SelectorError

OWN_KEYS = ("id", "profile", "arch")
MAX_SELECTOR_CHARS = 1024
MAX_TERMS = 32
MAX_LABELS = 32
_KEY = re.compile(r"[a-z0-9][a-z0-9._/-]{0,62}")
_VALUE = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_NAME = r"[A-Za-z0-9._:/-]+"
_TERM = re.compile(
    rf"""\s*(?:
      (?P<absent>!)\s*(?P<absent_key>{_NAME})
    | (?P<key>{_NAME})\s*(?:
        (?P<op>==|=|!=)\s*(?P<value>{_NAME})
      | (?P<set>in|not\s+in|notin)\s*\((?P<values>[^()]*)\)
      )?
    )\s*(?:,|$)""",
    re.VERBOSE,
)

Operator = Literal["in", "not_in", "exists", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One condition; `=` is `in` with one value."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Conditions that must all hold."""

    terms: tuple[Term, ...] = ()

    def matches(self, values: Mapping[str, str]) -> bool:
        """Tell whether a device matches.

        Args:
            values: Its labels and its own data under `OWN_KEYS`.
        """
        return all(_holds(term, values.get(term.key)) for term in self.terms)


def parse_selector(text: str) -> Selector:
    """Read an expression.

    Args:
        text: As the operator wrote it.

    Returns:
        The conditions.

    Raises:
        SelectorError: Too long, or not an expression.
    """
    if len(text) > MAX_SELECTOR_CHARS:
        raise SelectorError(
            f"a selector of {len(text)} characters is too long",
            remedy=f"write at most {MAX_SELECTOR_CHARS}; a label can name many devices at once",
        )
    if not text.strip():
        return Selector()
    terms: list[Term] = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise SelectorError(
                f"cannot read the selector at {text[position:].strip()[:40]!r}",
                remedy="write conditions such as site=berlin,arch in (aarch64,x86_64)",
            )
        terms.append(_term(match))
        position = match.end()
    if text.rstrip().endswith(",") or len(terms) > MAX_TERMS:
        raise SelectorError(
            f"a selector needs 1 to {MAX_TERMS} conditions, none of them empty",
            remedy="write conditions with commas between them, such as site=berlin,stage!=lab",
        )
    return Selector(terms=tuple(terms))


def is_label_key(key: str) -> bool:
    """Tell whether a label may have this key."""
    return key not in OWN_KEYS and _KEY.fullmatch(key) is not None


def checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels that selectors can name.

    Args:
        labels: As the operator or a device gave them.

    Returns:
        The same.

    Raises:
        InvalidRequestError: Too many, a reserved key, or characters that no selector can hold.
    """
    if len(labels) > MAX_LABELS:
        raise InvalidRequestError(
            f"{len(labels)} labels are more than the limit of {MAX_LABELS}",
            remedy="remove some: `fleet device label DEVICE KEY-`",
        )
    for key, value in labels.items():
        if not is_label_key(key):
            own = f", and none of {', '.join(OWN_KEYS)}, which each device has"
            raise InvalidRequestError(
                f"{key[:64]!r} is not a valid label",
                remedy=f"use 1 to 63 of a-z 0-9 . _ / -, a letter or digit first{own}",
            )
        if _VALUE.fullmatch(value) is None:
            raise InvalidRequestError(
                f"the value of label {key} is not 1 to 128 of A-Z a-z 0-9 . _ : / -",
                remedy="write other characters, such as - in place of a space",
            )
    return dict(labels)


def _term(match: re.Match[str]) -> Term:
    if match["absent"]:
        return Term(key=match["absent_key"], operator="absent")
    key = match["key"]
    if match["op"]:
        operator: Operator = "not_in" if match["op"] == "!=" else "in"
        return Term(key=key, operator=operator, values=(match["value"],))
    if match["set"]:
        values = tuple(value.strip() for value in match["values"].split(","))
        if not all(_VALUE.fullmatch(value) for value in values):
            raise SelectorError(
                f"the set of {key!r} contains an invalid value",
                remedy="write values of A-Z a-z 0-9 . _ : / - with commas between them",
            )
        operator = "in" if match["set"] == "in" else "not_in"
        return Term(key=key, operator=operator, values=values)
    return Term(key=key, operator="exists")


def _holds(term: Term, value: str | None) -> bool:
    match term.operator:
        case "in":
            return value in term.values
        case "not_in":
            return value not in term.values
        case "exists":
            return value is not None
        case "absent":
            return value is None
