"""Which devices are asked to measure.

Rules:
- Only a device that was lent is asked, never one that would refuse the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from controller.domain.preflight import Answer, Verdict
from controller.domain.states import DeviceState

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
