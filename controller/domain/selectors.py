"""Selectors: expressions that devices match or do not match. Pure.

```
site=berlin and profile!=rpi4        both must hold; a comma is the same as `and`
arch in (x86_64,aarch64)             one of them
site=berlin-* or site=potsdam        wildcards, and one of two conditions
canary and not (rack=7 or rack=8)    the label `canary` exists; a negation of more
agent_version<1.4                    an attribute, which the device reports
model.detector=1.2.0                 the version of a release that it runs
group:cameras and !retired           what the operator saved by that name
```

Rules:
- An empty expression selects every device. An expression that cannot be read is refused; it never
  counts as an empty one.
- `!=` and `not in` also hold for a device without a value. Comparisons hold for none without.
- What a group means is looked up when the selector is used, not when it is written.
- What every earlier version could read means the same today.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from controller.domain.attributes import ATTRIBUTES, DeviceValues, attribute
from controller.domain.selector_parser import parse_tree
from controller.domain.selector_tree import (
    LABEL_PREFIX,
    And,
    Exists,
    Group,
    In,
    Node,
    Or,
    holds,
    leaves,
)
from controller.errors import InvalidRequestError

MAX_LABELS: Final = 32
NEVER_LABELS: Final = frozenset({"id", "profile", "arch"})
"""What no label could be called in any version."""

_CACHED: Final = 1024
_KEY: Final = re.compile(r"[a-z0-9][a-z0-9._/-]{0,62}")
_VALUE: Final = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Selector:
    """An expression that has been read."""

    tree: Node | None = None
    """None selects every device."""

    text: str = ""
    """As it was written."""

    at_s: float = 0.0
    """Wall time when it is used; ages are those of then."""

    @property
    def groups(self) -> frozenset[str]:
        """The names of the groups in it."""
        return groups_of(self.tree)

    def matches(self, device: DeviceValues) -> bool:
        """Tell whether a device matches; no group is left in the expression.

        Args:
            device: What is known of it.
        """
        return self.tree is None or holds(self.tree, device)

    def needed(self) -> list[In | Exists]:
        """Return the conditions that no device meets which lacks what they ask for."""
        return [] if self.tree is None else list(dict.fromkeys(_needed(self.tree)))


@lru_cache(maxsize=_CACHED)
def parse_selector(text: str) -> Selector:
    """Read an expression.

    Args:
        text: As the operator wrote it.

    Returns:
        The selector. What its groups mean is not known yet.

    Raises:
        SelectorError: Too long, or not an expression.
    """
    return Selector(parse_tree(text), text)


def groups_of(tree: Node | None) -> frozenset[str]:
    """Return the names of the groups in a tree."""
    found = () if tree is None else leaves(tree)
    return frozenset(leaf.name for leaf in found if isinstance(leaf, Group))


def _needed(node: Node) -> Iterator[In | Exists]:
    match node:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _needed(part)
        case In() | Exists():
            yield node
        case _:  # a negation holds without a label
            return


def joined(*texts: str) -> str:
    """Return an expression that holds where all of some hold.

    Args:
        texts: Expressions; an empty one always holds.

    Raises:
        SelectorError: One of them cannot be read.
    """
    found = [(text, parse_selector(text).tree) for text in texts]
    return ",".join(
        f"({text})" if isinstance(tree, Or) else text for text, tree in found if tree is not None
    )


def label_of(key: str) -> str | None:
    """Return the label that a key of a condition asks for; None if it asks for an attribute."""
    if key.startswith(LABEL_PREFIX):
        return key.removeprefix(LABEL_PREFIX)
    return key if attribute(key) is None else None


def is_label_key(key: str) -> bool:
    """Tell whether a device may have a label of this key, if only from an earlier version."""
    return key not in NEVER_LABELS and _KEY.fullmatch(key) is not None


def checked_labels(labels: Mapping[str, str], *, kept: Collection[str] = ()) -> dict[str, str]:
    """Return labels that selectors can name.

    Args:
        labels: As the operator or a device gave them.
        kept: Labels that may have the name of an attribute, because an earlier version took them.

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
        _check_key(key, is_kept=key in kept)
        if _VALUE.fullmatch(value) is None:
            raise InvalidRequestError(
                f"the value of label {key} is not 1 to 128 of A-Z a-z 0-9 . _ : / -",
                remedy="write other characters, such as - in place of a space",
            )
    return dict(labels)


def check_removed(keys: Iterable[str]) -> None:
    """Refuse names of labels to be removed that no device can have.

    One may be that of an attribute, because an earlier version took those.

    Args:
        keys: The names.

    Raises:
        InvalidRequestError: Characters that no selector can hold.
    """
    for key in keys:
        _check_key(key, is_kept=True)


def _check_key(key: str, *, is_kept: bool) -> None:
    if _KEY.fullmatch(key) is None:
        raise InvalidRequestError(
            f"{key[:64]!r} is not a valid label",
            remedy="use 1 to 63 of a-z 0-9 . _ / -, a letter or digit first, and none of "
            f"{', '.join(ATTRIBUTES)}, which each device has",
        )
    if key in NEVER_LABELS or (attribute(key) is not None and not is_kept):
        raise InvalidRequestError(
            f"{key!r} is not a valid label: it is an attribute, which devices report themselves",
            remedy="choose another name, such as my-" + key,
        )
