"""Lists of the API, part by part, and what the groups of requests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar, cast

from controller.client.connection import ApiClient, Params

T = TypeVar("T")
PAGE: Final = 1000


class Listing(Generic[T]):
    """What a list holds; it is asked for part by part, while one goes through it.

    What is added meanwhile moves nothing: each thing that was there all the time, and whose place
    in the order did not change, comes once.

    Args:
        api: The controller.
        path: Of the list.
        kind: What it is a list of.
        params: Which part of it, and in which order; what is empty is left out.
        at_once: How many things are asked for at one time.
    """

    def __init__(
        self, api: ApiClient, path: str, kind: type[T], params: Params, *, at_once: int = PAGE
    ) -> None:
        self._api, self._path, self._kind = api, path, kind
        self.at_once = at_once
        self._params = {name: value for name, value in params.items() if value}

    def __iter__(self) -> Iterator[T]:
        cursor = ""
        while True:
            part, cursor = self.page(limit=self.at_once, cursor=cursor)
            yield from part
            if not cursor:
                return

    def page(self, *, limit: int, cursor: str = "") -> tuple[list[T], str]:
        """Ask for a part of the list.

        Args:
            limit: The greatest number of things.
            cursor: Begin after the part that came with this; empty to begin at the start.

        Returns:
            The part, and the cursor for the next one: empty at the end.
        """
        kind = cast("Any", list)[self._kind]
        params = {**self._params, "limit": str(limit), **({"cursor": cursor} if cursor else {})}
        found: tuple[list[T], str] = self._api.get_page(self._path, kind, params)
        return found


class Resource:
    """Requests about one kind of thing.

    Args:
        api: The controller.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api


def order(sort: str, *, reverse: bool) -> dict[str, str]:
    """Return the query parameters of an order."""
    return {"sort": sort, "reverse": yes(reverse)}


def yes(asked: bool) -> str:
    """Return a switch as a query parameter; empty for one that is off."""
    return "true" if asked else ""
