"""The options that every list has: how much of it, and in which order."""

from __future__ import annotations

from typing import Annotated, TypeVar

import typer

from controller.client.listing import Listing
from wire.console.output import remark

T = TypeVar("T")

CountOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Show at most so many.")
]
CursorOption = Annotated[
    str,
    typer.Option(
        "--cursor", metavar="TEXT", help="Go on after a list that --limit cut off, as it said."
    ),
]
ReverseOption = Annotated[bool, typer.Option("--reverse", help="The other way round.")]


def take(listing: Listing[T], limit: int | None, cursor: str) -> list[T]:
    """Return what a list holds, and say how to go on if there is more.

    Args:
        listing: The list.
        limit: The greatest number; None for all.
        cursor: Where to begin; empty for the start.
    """
    found: list[T] = []
    while True:
        rest = listing.at_once if limit is None else min(limit - len(found), listing.at_once)
        part, cursor = listing.page(limit=rest, cursor=cursor)
        found += part
        if not cursor:
            return found
        if limit is not None and len(found) >= limit:
            remark(f"there are more: add --cursor {cursor}")
            return found
