"""Where the tensors of a file are, and which of the old file belongs to which of the new one. Pure.

Rules:
- Tensors are paired by name, shape and type. Those whose names were lost are paired in the order of
  the file with others of the same shape and type.
- Small tensors stay with the bytes between tensors: a segment of their own costs more.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from wire.delta.layout import Element, width_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

MIN_TENSOR_BYTES = 64


class Place(NamedTuple):
    """One tensor in a file."""

    name: str
    element: Element
    shape: tuple[int, ...]
    offset: int
    length: int
    """Both in bytes."""


class Pair(NamedTuple):
    """A tensor of the new file, and where the old one has it."""

    new: Place
    old: Place


def pairs(old: Iterable[Place], new: Iterable[Place]) -> list[Pair]:
    """Pair the tensors of two files.

    Args:
        old: Those of the old file.
        new: Those of the new file.

    Returns:
        The pairs, in the order of the new file; no two overlap there.
    """
    befores = _apart(old)
    afters = _apart(new)
    named = {(p.name, _kind(p)): p for p in befores}
    found = {p.offset: named.pop((p.name, _kind(p))) for p in afters if (p.name, _kind(p)) in named}
    waiting: dict[Hashable, deque[Place]] = defaultdict(deque)
    for place in sorted(named.values(), key=_offset):
        waiting[_kind(place)].append(place)
    for place in afters:
        if place.offset not in found and waiting[_kind(place)]:
            found[place.offset] = waiting[_kind(place)].popleft()
    return [Pair(p, found[p.offset]) for p in afters if p.offset in found]


def within(places: Iterable[Place], size_bytes: int) -> list[Place]:
    """Return the tensors that a file of some size can hold, as a damaged one may claim others."""
    return [
        p
        for p in places
        if 0 <= p.offset <= p.offset + p.length <= size_bytes and not p.length % width_of(p.element)
    ]


def _kind(place: Place) -> Hashable:
    return place.element, place.shape, place.length


def _offset(place: Place) -> int:
    return place.offset


def _apart(places: Iterable[Place]) -> Sequence[Place]:
    """Return the tensors in the order of the file, without small ones and overlaps."""
    kept: list[Place] = []
    for place in sorted(places, key=_offset):
        is_free = not kept or kept[-1].offset + kept[-1].length <= place.offset
        if is_free and place.length >= MIN_TENSOR_BYTES:
            kept.append(place)
    return kept
