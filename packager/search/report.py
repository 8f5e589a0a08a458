"""What a search did, for the report and the notes."""

from __future__ import annotations

from typing import Final

import msgspec

from packager.search.sampler import Method

NAMED: Final = 12
"""A note names this many candidates and counts the others; the report has all."""


class SearchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a search tried, in which order, and what it left out."""

    method: Method
    seed: int
    cap: int
    goals: tuple[str, ...]
    space: int
    """How many candidates there were, without the reference variant."""

    tried: tuple[str, ...]
    """In the order in which they were chosen."""

    untried: tuple[str, ...]
    """Left out because of the cap."""

    missed: dict[str, dict[str, str]] = {}
    """Profile to candidate to the goal that dropped it, and why."""

    unapplied: dict[str, tuple[str, ...]] = {}
    """Profile to the goals whose figures are not known there: this machine is no such device."""

    best: dict[str, str] = {}
    """Profile to the best of the candidates by the goals; without those where all miss one."""


class SearchRun(msgspec.Struct, frozen=True, kw_only=True):
    """Which points a search tried."""

    tried: tuple[str, ...]
    untried: tuple[str, ...]


def search_notes(report: SearchReport | None) -> tuple[str, ...]:
    """Say what a search did.

    Args:
        report: None without a search.

    Returns:
        A line for what was tried, for what was not, and for each profile.
    """
    if report is None:
        return ()
    seed = "" if report.method == "exhaustive" else f", seed {report.seed}"
    first = (
        f"search {report.method}{seed}: tried {len(report.tried)} of {report.space} candidates "
        f"beside the reference variant, for {'; '.join(report.goals)}: {_some(report.tried)}"
    )
    lines = [first]
    if report.untried:
        lines.append(
            f"search: {len(report.untried)} candidates were not tried because of --search-cap "
            f"{report.cap}: {_some(report.untried)}"
        )
    for profile, found in report.missed.items():
        lines += [f"search: {profile}: {name} dropped: {why}" for name, why in found.items()]
        if unknown := report.unapplied.get(profile):
            lines.append(
                f"search: {profile}: {', '.join(unknown)} cannot be judged: this machine is no "
                "such device"
            )
        chosen = report.best.get(profile)
        lines.append(
            f"search: {profile}: the best by the goals is {chosen}"
            if chosen
            else f"search: {profile}: no candidate but the reference variant keeps all goals"
        )
    return tuple(lines)


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
