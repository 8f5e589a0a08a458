"""Which devices are asked to measure, and which of their figures count for a profile.

Rules:
- Only a device that was lent is asked, never one that would refuse the package.
- The figures of a profile are those of one device, so that its variants are compared within one
  board: of the devices that measured as many variants as is usual, the middle one. Of three or more
  devices, one that lies does not decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from statistics import median_high

from controller.domain.preflight import Answer, Verdict
from controller.domain.states import DeviceState
from wire.measuring import MeasuredVariant

ABLE = frozenset({Answer.TAKES, Answer.RUNS})


class MeasurementState(StrEnum):
    """Where a request to one device is."""

    ASKED = "asked"
    MEASURED = "measured"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed-out"


NO_ANSWER = (
    "no answer in time: the device is busy or went offline, or its agent is an earlier version, "
    "which does not know such requests; one that enrolled with such a version must enrol again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurable:
    """A device that the selector names, as far as it decides whether it is asked."""

    device: str
    profile: str
    """Name of its profile."""

    state: str
    lent: bool
    online: bool
    busy: bool
    """Whether another request to it is not answered yet."""

    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who is asked, and why the others are not."""

    devices: tuple[str, ...]
    others: dict[str, str]
    """Device to reason."""


def choose(candidates: Iterable[Measurable], most: int) -> Asked:
    """Choose the devices that are asked.

    If not all can be, the profiles take turns: figures of one more profile are worth more than
    those of one more device.

    Args:
        candidates: The devices that the selector names.
        most: How many are asked at most.

    Returns:
        Them, and the reason of each of the others.
    """
    others: dict[str, str] = {}
    able: dict[str, list[str]] = {}
    for candidate in candidates:
        if reason := _why_not(candidate):
            others[candidate.device] = reason
        else:
            able.setdefault(candidate.profile, []).append(candidate.device)
    rounds = zip_longest(*(able[profile] for profile in sorted(able)))
    turns = [device for turn in rounds for device in turn if device is not None]
    others |= dict.fromkeys(turns[most:], f"{most} others are asked")
    return Asked(devices=tuple(turns[:most]), others=others)


def _why_not(candidate: Measurable) -> str:
    if candidate.state != DeviceState.ENROLLED:
        return f"it is {candidate.state}"
    if not candidate.lent:
        return f"it is not lent; `fleet device lend {candidate.device}` lends it"
    if not candidate.online:
        return "it is offline"
    if candidate.busy:
        return "another measurement on it is not answered yet"
    if candidate.verdict.answer is Answer.UNKNOWN:
        return "it has not said what it is since it enrolled"
    return "" if candidate.verdict.answer in ABLE else candidate.verdict.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one device measured of one release."""

    device: str
    profile: str
    release: str
    """Digest."""

    answered_at_s: float
    variants: tuple[MeasuredVariant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The figures that count for a profile and a release."""

    answered: Answered
    devices: int
    """How many devices of the profile measured the release."""


def by_profile(answers: Sequence[Answered]) -> list[Chosen]:
    """Choose the figures of each profile and release.

    Args:
        answers: What devices measured; of one device and release the newest counts.

    Returns:
        One for each profile and release, in that order.
    """
    newest: dict[tuple[str, str, str], Answered] = {}
    for answer in sorted(answers, key=lambda a: a.answered_at_s):
        if _measured(answer):
            newest[answer.profile, answer.release, answer.device] = answer
    groups: dict[tuple[str, str], list[Answered]] = {}
    for (profile, release, _), answer in sorted(newest.items()):
        groups.setdefault((profile, release), []).append(answer)
    return [Chosen(answered=_middle(group), devices=len(group)) for group in groups.values()]


def _middle(group: Sequence[Answered]) -> Answered:
    usual = median_high(len(_measured(answer)) for answer in group)
    whole = sorted(
        (answer for answer in group if len(_measured(answer)) == usual),
        key=lambda answer: (_total_ms(answer), answer.device),
    )
    return whole[(len(whole) - 1) // 2]


def _total_ms(answer: Answered) -> float:
    found = (variant.performance for variant in _measured(answer))
    return sum(performance.latency_p50_ms for performance in found if performance is not None)


def _measured(answer: Answered) -> list[MeasuredVariant]:
    return [variant for variant in answer.variants if variant.performance is not None]
