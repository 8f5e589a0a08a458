"""Groups: selectors with a name, and what they mean. Pure.

Rules:
- A group may name other groups, and never itself, also not through others.
- What a group means when all groups in it have been replaced is bounded, so that no selector with
  groups is more than the database takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from controller.domain.attributes import ATTRIBUTES, attribute
from controller.domain.names import which_there_are
from controller.domain.selector_parser import fault_at
from controller.domain.selector_tree import (
    LABEL_PREFIX,
    Group,
    Leaf,
    Node,
    depth,
    leaves,
    with_groups,
)
from controller.domain.selectors import Selector, parse_selector
from controller.errors import ConflictError, InvalidRequestError, SelectorError

MAX_GROUPS: Final = 200
MAX_GROUP_TERMS: Final = 64
"""Conditions of what a group means."""

MAX_GROUP_DEPTH: Final = 12
NONE: Final = "make one with `fleet group set NAME SELECTOR`"


def meaning(selector: Selector, groups: Mapping[str, str]) -> Selector:
    """Return a selector with what its groups mean in their places.

    Args:
        selector: The selector.
        groups: The expressions of all groups.

    Raises:
        SelectorError: It names a group that there is not, or one that cannot be read.
    """
    if selector.tree is None or not selector.groups:
        return selector
    trees = _meanings(selector, groups, ())
    return Selector(with_groups(selector.tree, trees), selector.text, selector.at_s)


def check_group(name: str, text: str, groups: Mapping[str, str]) -> None:
    """Refuse an expression that a group cannot have.

    Args:
        name: The name of the group.
        text: Its expression.
        groups: The expressions of the groups that there are.

    Raises:
        SelectorError: It cannot be read, names a group that there is not, or the group itself.
        InvalidRequestError: It means every device, or a group would mean too much with it.
        ConflictError: There are too many groups.
    """
    parsed = parse_selector(text)
    if parsed.tree is None:
        raise InvalidRequestError(
            "a group needs an expression; an empty one would mean every device",
            remedy="write one, such as site=berlin",
        )
    if name not in groups and len(groups) >= MAX_GROUPS:
        raise ConflictError(
            f"there are {MAX_GROUPS} groups, which is the greatest number",
            remedy="remove one that is no longer needed: fleet group remove NAME",
        )
    after = {**groups, name: text}
    for other in [name, *sorted(users(name, groups))]:
        found = meaning(Selector(Group(name=other)), after).tree
        if found is None:
            continue
        terms = sum(1 for _ in leaves(found))
        if terms > MAX_GROUP_TERMS or depth(found) > MAX_GROUP_DEPTH:
            raise InvalidRequestError(
                f"group {other} would have {terms} conditions, {depth(found)} within each other, "
                "with those of the groups in it",
                remedy=f"at most {MAX_GROUP_TERMS} are possible, {MAX_GROUP_DEPTH} within each "
                "other; a label can take the place of many",
            )


def users(name: str, groups: Mapping[str, str]) -> frozenset[str]:
    """Return the groups that name a group, directly or through others."""
    found: set[str] = set()
    wanted = {name}
    while wanted:
        direct = {each for each, text in groups.items() if _named(text) & wanted}
        wanted = direct - found
        found |= wanted
    return frozenset(found - {name})


def check_steady(selector: Selector, groups: Mapping[str, str], what: str) -> None:
    """Refuse a selector that asks for what changes while a device works.

    Args:
        selector: The selector.
        groups: The expressions of all groups.
        what: What it is of, such as `a policy`.

    Raises:
        SelectorError: It does, or it cannot be read.
    """
    for leaf in () if selector.tree is None else leaves(selector.tree):
        changing = next((key for key in _keys(leaf, selector.text, groups) if _changes(key)), None)
        if changing is None:
            continue
        wrong = f"{changing} changes while a device works, and cannot choose {what}"
        of_group = f"group {leaf.name} asks for {changing}: " if isinstance(leaf, Group) else ""
        steady = ", ".join(name for name, each in ATTRIBUTES.items() if each.steady)
        fault = fault_at(
            selector.text,
            leaf.at,
            of_group + wrong,
            f"use labels, or attributes that change only when a device connects: {steady}",
        )
        raise fault


def _keys(leaf: Leaf, text: str, groups: Mapping[str, str]) -> Iterator[str]:
    """Yield the keys of a condition, or of those that a group means."""
    if not isinstance(leaf, Group):
        yield leaf.key
        return
    tree = meaning(Selector(leaf, text), groups).tree
    for each in () if tree is None else leaves(tree):
        if not isinstance(each, Group):  # none is left
            yield each.key


def _changes(key: str) -> bool:
    what = None if key.startswith(LABEL_PREFIX) else attribute(key)
    return what is not None and not what.steady


def _meanings(
    selector: Selector, groups: Mapping[str, str], within: tuple[str, ...]
) -> dict[str, Node]:
    """Return what the groups of a selector mean, which stands in some groups itself.

    Raises:
        SelectorError: One of them cannot mean anything.
    """
    found: dict[str, Node] = {}
    for leaf in () if selector.tree is None else leaves(selector.tree):
        if not isinstance(leaf, Group) or leaf.name in found:
            continue
        wrong = _group_fault(leaf, selector.text, groups, within)
        if wrong is not None:
            raise wrong
        inner = parse_selector(groups[leaf.name])
        if inner.tree is None:
            raise SelectorError(f"group {leaf.name} has no expression", remedy=NONE)
        trees = _meanings(inner, groups, (*within, leaf.name))
        found[leaf.name] = with_groups(inner.tree, trees)
    return found


def _group_fault(
    leaf: Group, text: str, groups: Mapping[str, str], within: tuple[str, ...]
) -> SelectorError | None:
    if leaf.name in within:
        way = " > ".join([*within[within.index(leaf.name) :], leaf.name])
        return fault_at(text, leaf.at, f"a group cannot mean itself: {way}", "take one of them out")
    if leaf.name not in groups:
        there = which_there_are(leaf.name, sorted(groups), what="groups", none=NONE)
        return fault_at(text, leaf.at, f"there is no group {leaf.name!r}", there)
    return None


def _named(text: str) -> frozenset[str]:
    try:
        return parse_selector(text).groups
    except SelectorError:  # of another version
        return frozenset()
