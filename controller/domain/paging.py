"""Parts of lists: which order they have, where a part begins, and what asks for the next. Pure.

Rules:
- A cursor names the place of the last thing that was shown: its value in the order, and the thing
  itself. What is added or removed meanwhile moves nothing: no thing is shown twice or left out,
  unless its own value changed.
- A cursor counts for the order that it was made for. Any other is refused.
- Names ascend and times descend, unless the order is reversed; things of one value go by
  name, too.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from controller.errors import InvalidRequestError
from wire.codec import from_json, to_json
from wire.errors import WireFormatError

T = TypeVar("T")
Value = str | float

_MOST: Final = 2.0**63
"""No database has a greater number."""
MAX_CURSOR_CHARS: Final = 1024
CURSOR_HEADER: Final = "X-Edgefleet-Cursor"
"""Of an answer that is a part of a list: what asks for the next part."""

NO_CURSOR: Final = "cursor: it is not one that this list gave"
AS_BEFORE: Final = "give sort and reverse as before, or begin without a cursor"
NEVER_S: Final = -1.0
"""Where a time that is not known stands in an order."""


@dataclass(frozen=True, slots=True)
class SortKey(Generic[T]):
    """What a list can be sorted by."""

    of: Callable[[T], Value]
    """Its value of a thing."""

    is_text: bool
    descends: bool


def by_text(of: Callable[[T], str]) -> SortKey[T]:
    """Return a key of texts, which ascend."""
    return SortKey(of, is_text=True, descends=False)


def by_number(of: Callable[[T], float | None]) -> SortKey[T]:
    """Return a key of times or sizes, which descend; what is None comes last."""

    def value(thing: T) -> float:
        found = of(thing)
        return NEVER_S if found is None else float(found)

    return SortKey(value, is_text=False, descends=True)


@dataclass(frozen=True, slots=True)
class Sorts(Generic[T]):
    """The orders that a list can have; the first key is the usual one."""

    name: Callable[[T], str]
    """What tells one thing from all others."""

    keys: Mapping[str, SortKey[T]]


class Place(NamedTuple):
    """Where a thing stands in an order."""

    value: Value
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """Which part of a list is asked for."""

    key: str
    descends: bool
    """Whether the greatest value comes first."""

    reverse: bool = False
    """Whether it is the other way round, also for things of one value."""

    limit: int
    after: Place | None = None
    """The last thing that was shown; None to begin at the start."""


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """A part of a list."""

    items: list[T]
    cursor: str
    """What asks for the next part; empty at the end."""


def read_page(sorts: Sorts[T], *, sort: str, reverse: bool, limit: int, cursor: str) -> PageRequest:
    """Read what asks for a part of a list.

    Args:
        sorts: The orders that the list can have.
        sort: Name of a key; empty for the usual one.
        reverse: Whether it goes the other way round.
        limit: The greatest number of things.
        cursor: What came with the part before; empty to begin at the start.

    Returns:
        The part that is asked for.

    Raises:
        InvalidRequestError: There is no such order, or the cursor is not of this list and order.
    """
    key = sort or next(iter(sorts.keys))
    if key not in sorts.keys:
        raise InvalidRequestError(
            f"sort: this list has no order {key[:32]!r}",
            remedy=f"use one of: {', '.join(sorts.keys)}",
        )
    descends = sorts.keys[key].descends != reverse
    after = _place(cursor, key, descends, is_text=sorts.keys[key].is_text) if cursor else None
    return PageRequest(key=key, descends=descends, reverse=reverse, limit=limit, after=after)


def part_of(things: Iterable[T], page: PageRequest, sorts: Sorts[T]) -> Part[T]:
    """Return a part of a list that is there as a whole.

    Args:
        things: All of it, in any order.
        page: Which part.
        sorts: The orders that the list can have.
    """
    placed = [(_placed(thing, page, sorts), thing) for thing in things]
    placed.sort(key=lambda pair: pair[0].name, reverse=page.reverse)
    placed.sort(key=lambda pair: pair[0].value, reverse=page.descends)
    if page.after is not None:
        placed = [pair for pair in placed if _is_beyond(pair[0], page.after, page)]
    return cut([thing for _, thing in placed[: page.limit + 1]], page, sorts)


def cut(things: Sequence[T], page: PageRequest, sorts: Sorts[T]) -> Part[T]:
    """Return a part of a list, of which one more thing than asked for was read.

    Args:
        things: From the place on, in their order, up to one more than the limit.
        page: Which part.
        sorts: The orders that the list can have.
    """
    shown = list(things[: page.limit])
    if len(things) <= page.limit:
        return Part(shown, "")
    last = _placed(shown[-1], page, sorts)
    text = to_json([page.key, page.descends, last.value, last.name])
    return Part(shown, urlsafe_b64encode(text).decode().rstrip("="))


def _is_beyond(place: Place, after: Place, page: PageRequest) -> bool:
    if place.value == after.value:
        return place.name < after.name if page.reverse else place.name > after.name
    (low, high) = (place, after) if page.descends else (after, place)
    return bool(low.value < high.value)  # type: ignore[operator]  # both are of one key


def _placed(thing: T, page: PageRequest, sorts: Sorts[T]) -> Place:
    return Place(sorts.keys[page.key].of(thing), sorts.name(thing))


def _place(cursor: str, key: str, descends: bool, *, is_text: bool) -> Place:
    """Read a cursor.

    Raises:
        InvalidRequestError: It is none, or one of another order.
    """
    try:
        text = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        of_key, of_descends, value, name = from_json(
            text, tuple[str, bool, str | float, str], limit_bytes=MAX_CURSOR_CHARS
        )
    except (ValueError, WireFormatError) as exc:
        raise InvalidRequestError(NO_CURSOR, remedy=AS_BEFORE) from exc
    if (of_key, of_descends) != (key, descends):
        raise InvalidRequestError(
            f"cursor: it is of another order, {of_key[:32]!r}", remedy=AS_BEFORE
        )
    is_fitting = isinstance(value, str) if is_text else _is_number(value)
    if not is_fitting or "\0" in f"{value}{name}":
        raise InvalidRequestError(NO_CURSOR, remedy=AS_BEFORE)
    return Place(value if is_text else float(value), name)


def _is_number(value: Value) -> bool:
    return not isinstance(value, str) and math.isfinite(value) and abs(value) < _MOST
