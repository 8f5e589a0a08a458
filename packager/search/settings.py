"""What a user asks of a search."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from packager.errors import BuildError
from packager.search.goals import Goal, read_goals
from packager.search.sampler import METHODS, Method, check_sampler

DEFAULT_CAP: Final = 24


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """How candidates are searched."""

    method: Method
    cap: int = DEFAULT_CAP
    """How many candidates are built and measured, beside the reference variant."""

    goals: tuple[Goal, ...]
    seed: int = 0


def read_search(
    method: str | None, cap: int | None, goals: tuple[str, ...], seed: int | None
) -> Search | None:
    """Read the options of a search.

    Args:
        method: One of `METHODS`; None for no search.
        cap: None for the default.
        goals: The texts of the goals.
        seed: None for 0.

    Returns:
        The search; None without one.

    Raises:
        BuildError: An option is wrong, or useless without a search; or a library is missing.
    """
    if method is None:
        if goals or cap is not None or seed is not None:
            given = "--goal" if goals else "--search-cap" if cap is not None else "--search-seed"
            raise BuildError(f"{given} has no use without --search", remedy="add --search tpe")
        return None
    if method not in METHODS:
        raise BuildError(f"there is no search {method[:40]!r}", remedy=f"use {', '.join(METHODS)}")
    read = read_goals(goals)
    check_sampler(cast("Method", method))
    return Search(
        method=cast("Method", method),
        cap=DEFAULT_CAP if cap is None else cap,
        goals=read,
        seed=seed or 0,
    )
