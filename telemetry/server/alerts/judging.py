"""Judges all groups of a rule at one moment. Pure.

Rules:
- A group that is inactive is not kept: memory and tables grow with what is wrong, not with the
  fleet.
- A rule has at most `MAX_ALERTS` groups that are pending or firing. Those that there were stay; of
  new ones the first by name are taken, and the rule says how many were left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, Protocol

from telemetry.server.alerts.rules import Limits
from telemetry.server.alerts.states import Phase, State, Transition, step

MAX_ALERTS: Final = 1000
ACTIVE: Final = frozenset({Phase.PENDING, Phase.FIRING})

Group = tuple[str, ...]
"""The values of what parts the groups of a rule, in its order."""


class Answer(NamedTuple):
    """What a rule compares at one moment."""

    values: Mapping[Group, float | None]
    is_whole: bool = False
    """Whether there are no other groups: one that is not named is gone."""

    gone: frozenset[Group] = frozenset()
    """Groups that there are no more, and that have no value here."""

    note: str = ""
    """Why groups that had values are left out, if that is not what the rule says."""


class Asked(Protocol):
    """What answers a rule at a time."""

    def __call__(self, at_s: float, /, *, known: Collection[Group]) -> Answer:
        """Return what the rule compares.

        Args:
            at_s: Wall time.
            known: The groups that have a state.
        """
        ...


class Judged(NamedTuple):
    """What became of one group."""

    group: Group
    state: State
    transition: Transition | None


class Verdict(NamedTuple):
    """What became of the groups of a rule."""

    groups: tuple[Judged, ...]
    """Those that are not inactive, and those that have just become so."""

    left_out: int
    """How many more would have become alerts."""


def judge(
    limits: Limits,
    known: Mapping[Group, State],
    answer: Answer,
    now_s: float,
    passed_s: float = 0.0,
) -> Verdict:
    """Judge all groups of a rule.

    Args:
        limits: Its bounds.
        known: The groups that were not inactive.
        answer: What it compares now.
        now_s: Wall time.
        passed_s: How long after the look before; 0 if there was none.

    Returns:
        What became of them.
    """
    found = []
    for group, state in known.items():
        is_gone = group in answer.gone or (answer.is_whole and group not in answer.values)
        value = answer.values.get(group)
        found.append(Judged(group, *step(limits, state, value, now_s, passed_s, is_gone=is_gone)))
    fresh = State(since_s=now_s)
    new = []
    for group, value in answer.values.items():
        if group not in known and value is not None and limits.is_beyond(value):
            new.append(Judged(group, *step(limits, fresh, value, now_s)))
    room = max(MAX_ALERTS - sum(each.state.phase in ACTIVE for each in found), 0)
    new.sort(key=lambda each: each.group)
    return Verdict((*found, *new[:room]), max(len(new) - room, 0))
