"""How the routes of lists are asked for a part, and say what asks for the next one.

Rules:
- Every list has the same parameters: `limit`, `cursor`, `sort` and `reverse`.
- The cursor of the next part is in the head of the answer, so that the body is the list alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Query, Response

from controller.domain.paging import (
    CURSOR_HEADER,
    MAX_CURSOR_CHARS,
    PageRequest,
    Part,
    Sorts,
    part_of,
    read_page,
)
from controller.errors import InvalidRequestError

T = TypeVar("T")
LimitParameter = Annotated[int | None, Query(ge=1, description="The greatest number.")]
CursorParameter = Annotated[
    str,
    Query(
        max_length=MAX_CURSOR_CHARS,
        description=f"The header {CURSOR_HEADER} of the part before; empty begins at the start.",
    ),
]
SortParameter = Annotated[
    str, Query(max_length=32, description="What it is sorted by; empty for the usual order.")
]
ReverseParameter = Annotated[bool, Query(description="The other way round.")]


@dataclass(frozen=True, slots=True)
class AskedPage(Generic[T]):
    """The part of a list that a request asks for."""

    request: PageRequest
    is_sorted: bool
    """Whether the request says by what."""

    _sorts: Sorts[T]
    _response: Response

    def of(self, things: Iterable[T]) -> list[T]:
        """Answer with a part of a list that is there as a whole."""
        return self.answer(part_of(things, self.request, self._sorts))

    def answer(self, part: Part[T]) -> list[T]:
        """Answer with a part, and say what asks for the next one."""
        if part.cursor:
            self._response.headers[CURSOR_HEADER] = part.cursor
        return part.items


class PageParameters(Generic[T]):
    """The parameters of a list; FastAPI calls it for each request.

    Args:
        sorts: The orders that the list can have.
        limit: How much is answered to a request that does not say.
        most: The greatest number that may be asked for.
    """

    def __init__(self, sorts: Sorts[T], *, limit: int, most: int) -> None:
        self._sorts, self._limit, self._most = sorts, limit, most

    def __call__(
        self,
        response: Response,
        limit: LimitParameter = None,
        cursor: CursorParameter = "",
        sort: SortParameter = "",
        reverse: ReverseParameter = False,
    ) -> AskedPage[T]:
        """Read the parameters of a request.

        Raises:
            InvalidRequestError: There is no such order, no such cursor, or the limit is too great.
        """
        if limit is not None and limit > self._most:
            raise InvalidRequestError(f"limit: at most {self._most} come at one time")
        page = read_page(
            self._sorts, sort=sort, reverse=reverse, limit=limit or self._limit, cursor=cursor
        )
        return AskedPage(page, bool(sort), self._sorts, response)
