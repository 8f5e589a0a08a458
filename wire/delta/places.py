"""Where the tensors of a file are. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from wire.delta.layout import Element, width_of

if TYPE_CHECKING:
    from collections.abc import Iterable


class Place(NamedTuple):
    """One tensor in a file."""

    name: str
    element: Element
    shape: tuple[int, ...]
    offset: int
    length: int
    """Both in bytes."""


Likeness = Literal["same", "near", "far"]
"""Whether two tensors are equal, differ by small steps alone, or may have nothing in common."""


class Pair(NamedTuple):
    """A tensor of the new file, and the one of the old file that it is made from."""

    new: Place
    old: Place
    likeness: Likeness


def within(places: Iterable[Place], size_bytes: int) -> list[Place]:
    """Return the tensors that a file of some size can hold, as a damaged one may claim others."""
    return [
        p
        for p in places
        if 0 <= p.offset <= p.offset + p.length <= size_bytes and not p.length % width_of(p.element)
    ]
