"""The syntax tree of a selector: what it is made of, how it is written, whom it means. Pure.

Rules:
- What a tree is written as, `text_of`, is read as the same tree.
- `controller.store.selector_conditions` means the same devices with SQL.
- `a!=b` is the negation of `a=b`, and `a not in (b)` that of `a in (b)`: both hold without a value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from controller.domain.attributes import DeviceValues, Value, attribute, parse_amount
from controller.domain.version_order import order_key

LABEL_PREFIX: Final = "label:"
GROUP_PREFIX: Final = "group:"
KEYWORDS: Final = frozenset({"and", "or", "not"})
WILDCARDS: Final = frozenset("*?")

Comparison = Literal["<", "<=", ">", ">="]
COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class In:
    """A key has one of some values; `=` has one."""

    key: str
    values: tuple[str, ...]
    """As they are written; in texts `*` stands for any characters and `?` for one."""

    at: int = field(default=0, compare=False)
    """Where it stands in the expression: how many characters are before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exists:
    """A key has a value."""

    key: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """An attribute is less or greater than a value."""

    key: str
    comparison: Comparison
    value: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What a group means at present."""

    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Not:
    """Something does not hold."""

    part: Node


@dataclass(frozen=True, slots=True)
class And:
    """All hold."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one holds."""

    parts: tuple[Node, ...]


Leaf = In | Exists | Compare | Group
Node = Leaf | Not | And | Or


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the conditions and groups of a tree, from the left."""
    match node:
        case Not(part):
            yield from leaves(part)
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves(part)
        case _:
            yield node


def depth(node: Node) -> int:
    """Return how deep the conditions of a tree lie; 0 for one alone."""
    match node:
        case Not(part):
            return 1 + depth(part)
        case And(parts) | Or(parts):
            return 1 + max(map(depth, parts))
        case _:
            return 0


def with_groups(node: Node, groups: Mapping[str, Node]) -> Node:
    """Return a tree with what groups mean in their places; all of them are known."""
    match node:
        case Not(part):
            return Not(with_groups(part, groups))
        case And(parts):
            return And(tuple(with_groups(part, groups) for part in parts))
        case Or(parts):
            return Or(tuple(with_groups(part, groups) for part in parts))
        case Group(name=name):
            return groups[name]
        case _:
            return node


def text_of(node: Node) -> str:
    """Return a tree as an expression."""
    match node:
        case Not(In() as part):
            return _set_text(part, "!=", "not in")
        case Not(Exists() as part):
            return f"!{text_of(part)}"
        case Not(part):
            return f"not {_within(part, And, Or)}"
        case And(parts):
            return " and ".join(_within(part, And, Or) for part in parts)
        case Or(parts):
            return " or ".join(_within(part, Or) for part in parts)
        case _:
            return _leaf_text(node)


def holds(node: Node, device: DeviceValues) -> bool:
    """Tell whether a device matches a tree without groups.

    Args:
        node: The tree.
        device: What is known of the device.

    Raises:
        TypeError: A group is in it: `with_groups` puts what it means in its place.
    """
    match node:
        case Not(part):
            return not holds(part, device)
        case And(parts):
            return all(holds(part, device) for part in parts)
        case Or(parts):
            return any(holds(part, device) for part in parts)
        case Group(name=name):
            raise TypeError(f"group {name} is not resolved")
        case _:
            return _leaf_holds(node, _value(node.key, device))


def version_holds(comparison: Comparison, known: str, value: str) -> bool:
    """Tell whether a version is before or after another; one that is no version is neither."""
    ours, theirs = order_key(known), order_key(value)
    return ours is not None and theirs is not None and bool(COMPARISONS[comparison](ours, theirs))


def has_wildcard(value: str) -> bool:
    """Tell whether a value stands for several."""
    return not WILDCARDS.isdisjoint(value)


def _within(node: Node, *kinds: type[And | Or]) -> str:
    """Return a part of a tree as it stands within another: of some kinds in parentheses."""
    text = text_of(node)
    return f"({text})" if isinstance(node, kinds) else text


def _leaf_text(leaf: Leaf) -> str:
    match leaf:
        case In():
            return _set_text(leaf, "=", "in")
        case Exists(key=key):
            return _key_text(key)
        case Compare(key=key, comparison=comparison, value=value):
            return f"{_key_text(key)}{comparison}{value}"
        case Group(name=name):
            return f"{GROUP_PREFIX}{name}"


def _set_text(node: In, equals: str, among: str) -> str:
    if len(node.values) == 1:
        return f"{_key_text(node.key)}{equals}{node.values[0]}"
    return f"{_key_text(node.key)} {among} ({','.join(node.values)})"


def _key_text(key: str) -> str:
    return f"{LABEL_PREFIX}{key}" if key in KEYWORDS else key


def _value(key: str, device: DeviceValues) -> Value | None:
    if key.startswith(LABEL_PREFIX):
        return device.labels.get(key.removeprefix(LABEL_PREFIX))
    source: Mapping[str, Value] = device.labels if attribute(key) is None else device.attributes
    return source.get(key)


def _leaf_holds(leaf: In | Exists | Compare, known: Value | None) -> bool:
    if known is None:
        return False
    match leaf:
        case In(key=key, values=values):
            return any(_equals(key, known, value) for value in values)
        case Compare():
            return _compares(leaf, known)
        case Exists():
            return True


def _equals(key: str, known: Value, value: str) -> bool:
    if isinstance(known, str):
        return fnmatchcase(known, value)
    if isinstance(known, tuple):
        return any(fnmatchcase(item, value) for item in known)
    what = attribute(key)
    return what is not None and known == parse_amount(value, what.unit)


def _compares(node: Compare, known: Value) -> bool:
    what = attribute(node.key)
    if what is None:
        return False
    if isinstance(known, str):
        return version_holds(node.comparison, known, node.value)
    bound = parse_amount(node.value, what.unit)
    return bound is not None and bool(COMPARISONS[node.comparison](known, bound))
