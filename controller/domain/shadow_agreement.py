"""Whether a shadow answers as the release that serves, as far as devices have told.

Rules:
- A device counts once, however many requests it compared: those of one device resemble each other.
- Few requests of a device, or few devices, tell nothing.
- A stage begins if the whole interval of the mean is above its limit, and halts if all of it is
  below. Else it waits: more devices or more requests will tell.
- A shadow harms nobody. So nothing is decided, and no chance to err is spent, before it has run for
  as long as it should and has answered as many requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from controller.domain.gates.contrast import Observed, against_before
from controller.domain.gates.looks import ERROR, share
from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.stage_shadow import LEAST_REQUESTS, ShadowNeed
from controller.domain.wording import counted
from wire.durations import format_duration

WHOLE_PERCENT = 100.0


class Heard(NamedTuple):
    """What devices have told of a shadow since it began."""

    requests: Mapping[str, float]
    """Device to the requests that its shadow got."""

    agreements: Mapping[str, float]
    """Device to those of them that both answered alike."""

    devices: int
    """How many there are that could tell."""

    ran_s: float
    """How long ago it began."""

    skipped: Mapping[str, float] = MappingProxyType({})
    """Why devices compared requests with no shadow, and how many."""


class Agreement(NamedTuple):
    """What a look at a shadow has shown."""

    state: GateState
    reason: str
    is_judged: bool
    """Whether there was enough to decide by, so that the look took its part of what may err."""


def shares(requests: Mapping[str, float], agreements: Mapping[str, float]) -> list[float]:
    """Return how often the shadow agrees on each device that compared enough requests.

    A device that tells of more agreements than requests counts as one that always agrees.
    """
    return [
        min(agreements.get(device, 0.0), count) / count
        for device, count in requests.items()
        if count >= LEAST_REQUESTS
    ]


def judged(need: ShadowNeed, heard: Heard, look: int) -> Agreement:
    """Return whether a stage may begin.

    Args:
        need: What the stage needs.
        heard: What devices have told.
        look: The number of this look among those by which something could be decided, from 1.
    """
    found = shares(heard.requests, heard.agreements)
    so_far = _so_far(need, heard, found)
    if len(found) < LEAST_DEVICES:
        why = f"{counted(len(found))} compared {LEAST_REQUESTS} or more; {LEAST_DEVICES} must"
        reason = f"{so_far}; {why}{_skipped(heard)}"
        return Agreement(GateState.HOLD, reason, is_judged=False)
    if sum(heard.requests.values()) < need.requests or heard.ran_s < need.for_s:
        return Agreement(GateState.HOLD, f"{so_far}{_skipped(heard)}", is_judged=False)
    allowed = 1.0 - need.agreement_percent / WHOLE_PERCENT
    apart = against_before([Observed(1.0 - share, 0.0, "") for share in found]).widened(allowed)
    at_level = ERROR * share(look)
    least, most = apart.interval(at_level)
    reason = (
        f"{so_far}; the mean over devices is {_percent(1.0 - most)} to {_percent(1.0 - least)} %"
    )
    if most < allowed:
        unseen = WHOLE_PERCENT * (1.0 - at_level ** (1.0 / len(found)))
        reason += f"; up to {unseen:.2g} % of devices may disagree wholly, unseen"
        return Agreement(GateState.PASS, reason, is_judged=True)
    if least > allowed:
        return Agreement(GateState.FAIL, reason, is_judged=True)
    return Agreement(GateState.HOLD, f"{reason}: cannot tell yet", is_judged=True)


def _so_far(need: ShadowNeed, heard: Heard, found: list[float]) -> str:
    """Say what is there of what a stage needs."""
    got = round(sum(heard.requests.values()))
    of = f" of {need.requests:,}" if got < need.requests else ""
    telling = sum(count > 0 for count in heard.requests.values())
    text = f"{got:,}{of} requests on {telling} of {counted(heard.devices)}"
    if found:
        text += f", {_percent(sum(found) / len(found))} % agree"
    text += f", at least {need.agreement_percent:g} % must"
    if heard.ran_s < need.for_s:
        text += f"; for {_minutes(heard.ran_s)} of {format_duration(need.for_s)}"
    return text


def _skipped(heard: Heard) -> str:
    """Say why requests were compared with no shadow, most of them first; empty for none."""
    found = sorted(heard.skipped.items(), key=lambda each: (-each[1], each[0]))
    told = ", ".join(f"{reason} {round(count):,}" for reason, count in found if count > 0)
    return f"; skipped: {told}" if told else ""


def _minutes(time_s: float) -> str:
    return format_duration(time_s // 60 * 60)


def _percent(share: float) -> str:
    """Return a share for people; never rounded up to all."""
    percent = min(max(share, 0.0), 1.0) * WHOLE_PERCENT
    return f"{percent:g}" if percent in {0.0, WHOLE_PERCENT} else f"{min(percent, 99.99):.4g}"


def why_not(
    requests: Mapping[str, float], agreements: Mapping[str, float], least_percent: float
) -> str:
    """Return why a shadow does not agree as often as it should; empty if it does.

    Args:
        requests: Device to the requests that its shadow got.
        agreements: Device to those of them that both answered alike.
        least_percent: How often they should, at the mean over devices.
    """
    found = shares(requests, agreements)
    if len(found) < LEAST_DEVICES:
        return (
            f"{len(found)} devices have compared {LEAST_REQUESTS} requests or more with it, and "
            f"it takes {LEAST_DEVICES}"
        )
    percent = WHOLE_PERCENT * sum(found) / len(found)
    if percent >= least_percent:
        return ""
    return f"it agrees in {percent:.4g} % of the requests, at the mean over {len(found)} devices"
