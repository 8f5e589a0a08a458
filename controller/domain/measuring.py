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
NAMED = 3
"""Reasons that are told where nobody is asked."""


class MeasurementState(StrEnum):
    """Where a request to one device is."""

    ASKED = "asked"
    MEASURED = "measured"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed-out"


CANCELLED = "the operator waits for it no longer"
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
    busy: str
    """Identifier of another request to it that is not answered yet; empty without one."""

    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a device is not asked, and what can be done about it."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who is asked, and why the others are not."""

    devices: tuple[str, ...]
    others: dict[str, Obstacle]

    @property
    def reasons(self) -> dict[str, str]:
        """Device that is not asked to the reason."""
        return {device: obstacle.reason for device, obstacle in self.others.items()}

    @property
    def why_none(self) -> Obstacle:
        """Why nobody is asked: a few of the reasons, each with a device that it holds for."""
        if not self.others:
            return Obstacle(
                reason="the selector names none",
                remedy="choose others: `fleet device list` shows the devices and their labels",
            )
        first: dict[str, tuple[str, Obstacle]] = {}
        for device, obstacle in self.others.items():
            first.setdefault(obstacle.reason, (device, obstacle))
        named = list(first.values())[:NAMED]
        return Obstacle(
            reason="; ".join(f"{device}: {obstacle.reason}" for device, obstacle in named),
            remedy="; ".join(dict.fromkeys(obstacle.remedy for _, obstacle in named)),
        )


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
    others: dict[str, Obstacle] = {}
    able: dict[str, list[str]] = {}
    for candidate in candidates:
        if (obstacle := _obstacle(candidate)) is not None:
            others[candidate.device] = obstacle
        else:
            able.setdefault(candidate.profile, []).append(candidate.device)
    rounds = zip_longest(*(able[profile] for profile in sorted(able)))
    turns = [device for turn in rounds for device in turn if device is not None]
    enough = Obstacle(reason=f"{most} others are asked", remedy="ask more: --most-devices")
    others |= dict.fromkeys(turns[most:], enough)
    return Asked(devices=tuple(turns[:most]), others=others)


def _obstacle(candidate: Measurable) -> Obstacle | None:
    device, busy = candidate.device, candidate.busy
    if candidate.state != DeviceState.ENROLLED:
        return Obstacle(
            reason=f"it is {candidate.state}", remedy="choose devices that are enrolled"
        )
    if not candidate.lent:
        return Obstacle(reason="it is not lent", remedy=f"lend it: fleet device lend {device}")
    if not candidate.online:
        return Obstacle(reason="it is offline", remedy="try again when it is online")
    if busy:
        return Obstacle(
            reason=f"measurement {busy} on it is not answered yet",
            remedy=f"wait for it: fleet measure show {busy}, or do so no longer: fleet measure "
            f"cancel {busy}",
        )
    return _unfit(candidate.verdict)


def _unfit(verdict: Verdict) -> Obstacle | None:
    if verdict.answer is Answer.UNKNOWN:
        return Obstacle(
            reason="it has not said what it is since it enrolled",
            remedy="try again when it has connected",
        )
    if verdict.answer in ABLE:
        return None
    return Obstacle(reason=verdict.reason, remedy="choose devices that can take the release")
