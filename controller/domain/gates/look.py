"""One look at a gate: over what time, which devices are compared, and what follows. Pure.

Rules:
- All devices are looked at over the same time: since the stage was complete, or else over the last
  soak time, then only those that had the release all the while. The minute that still runs does
  not count.
- While a stage runs, those that have the release may be the ones that could begin first, such as
  those where it is night. So it is looked at when nearly all that have begun have it.
- The control group, and the devices that have not begun, are compared with those that have the
  release. Without a control group, once all have begun, devices are compared with themselves in the
  same hours of the last day that ended before the rollout.
- A device tells only if it told towards the end, too: else one that the release has killed would
  tell of when it lived. Where nobody of the control group told towards the end, nobody has to.
- Devices with the release that were away at their turn in a later stage are compared with nobody,
  as those without it, but their silence counts.
- In the worst case, devices with the release that told enough before and are silent now count as
  harmed wholly. They make no gate fail: only what devices tell does.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from controller.domain.gates.bounded import most_harm
from controller.domain.gates.contrast import Observed, against_before, contrast
from controller.domain.gates.language import Gate
from controller.domain.gates.silence import (
    MOST_SILENT,
    NOBODY,
    Coverage,
    Silence,
    Telling,
)
from controller.domain.gates.states import LEAST_DEVICES
from controller.domain.gates.verdicts import Verdict, verdict
from controller.domain.starting_order import group_of
from wire.durations import DAY_S, MINUTE_S

LEAST_WINDOW_S: Final = 600.0
"""Over how long devices are looked at, at least, while a stage still runs."""

Span = tuple[float, float]
"""A time, from its first moment to its end, exclusive."""


LATE: Final = 1.0 / 3.0
"""The part of the time at whose end a device must tell something, too."""

LEAST_LATE_S: Final = 300.0
"""How long that is at least: devices report each minute, some each few minutes."""


class Member(NamedTuple):
    """A device that gates compare."""

    device: str
    profile: str
    place: int
    """In the order of starting."""

    @property
    def stratum(self) -> str:
        """With which devices it is compared: of its profile, chosen by the same stage, if any."""
        return f"{self.profile} {group_of(self.place)}"


class Window(NamedTuple):
    """Over what time devices are looked at."""

    since_s: float
    until_s: float
    had_s: float
    """Devices count that have had the release since then."""

    is_complete: bool
    """Whether the stage is."""


def window(now_s: float, *, complete_for_s: float | None, soak_s: float) -> Window | None:
    """Return over what time devices are looked at now; None if no whole minute is over.

    Args:
        now_s: The time in which devices measure.
        complete_for_s: For how long the stage has been complete; None while it runs.
        soak_s: How long the stage is to stay good.
    """
    long_s = max(soak_s, LEAST_WINDOW_S) if complete_for_s is None else complete_for_s
    since_s = math.ceil((now_s - long_s) / MINUTE_S) * MINUTE_S
    until_s = math.floor(now_s / MINUTE_S) * MINUTE_S
    if since_s >= until_s:
        return None
    is_complete = complete_for_s is not None
    return Window(since_s, until_s, now_s if is_complete else since_s, is_complete)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The devices that a look compares, and when."""

    treated: Sequence[Member]
    control: Sequence[Member]

    away: Sequence[Member] = ()
    """Devices with the release that were away at their turn in a later stage."""

    span: Span
    before: Span
    """By what they are known from before."""

    with_itself: bool = False
    """Whether each device is compared with itself before."""

    @property
    def devices(self) -> frozenset[str]:
        """All of them."""
        sides = self.treated, self.control, self.away
        return frozenset(member.device for side in sides for member in side)

    @property
    def late(self) -> Span:
        """The end of the time, in which devices must tell something, too."""
        since_s, until_s = self.span
        long_s = max((until_s - since_s) * LATE, LEAST_LATE_S)
        return max(since_s, math.floor((until_s - long_s) / MINUTE_S) * MINUTE_S), until_s


def compared(
    treated: Sequence[Member],
    control: Sequence[Member],
    at: Window,
    *,
    away: Sequence[Member] = (),
    has_control: bool = True,
    began_s: float,
    under_way: int,
) -> Compared | None:
    """Return what a look compares.

    Args:
        treated: The devices that have had the release since `at.had_s`.
        control: Those that keep the old one.
        at: When.
        away: Devices with the release that were away at their turn in a later stage.
        has_control: Whether the rollout has a control group; without one a few devices that have
            not begun are none.
        began_s: When the rollout began.
        under_way: How many devices had begun by `at.had_s` and had no outcome then.

    Returns:
        None while the stage runs and hardly anybody has had the release all the while, or too many
        of those that had begun did not have it yet.
    """
    if not at.is_complete and len(treated) < LEAST_DEVICES:
        return None
    if not at.is_complete and under_way > MOST_SILENT * (len(treated) + under_way):
        return None
    if not has_control and len(control) < LEAST_DEVICES:
        control = ()
    # Telemetry is kept by the minute: in the one in which the rollout began some have the release.
    known_s = math.floor(began_s / MINUTE_S) * MINUTE_S
    before = known_s - DAY_S, known_s
    # A control group of which nobody is left to compare with tells nothing: other days are no
    # control group.
    with_itself = not has_control and not control
    if with_itself:
        # The same hours of an earlier day: nothing else stands for how a day goes.
        back_s = math.ceil((at.until_s - began_s) / DAY_S) * DAY_S
        before = at.since_s - back_s, at.until_s - back_s
    return Compared(
        treated=treated,
        control=control,
        away=away,
        span=(at.since_s, at.until_s),
        before=before,
        with_itself=with_itself,
    )


def judged(
    gate: Gate,
    of: Compared,
    after: Mapping[str, float],
    before: Mapping[str, float],
    late: Collection[str],
    level: float,
    earlier: Sequence[Silence] = (),
    *,
    trials: Mapping[str, float],
) -> Verdict:
    """Return what a gate says.

    Args:
        gate: The gate.
        of: The devices that are compared.
        after: What each measured, of those that told enough; of a gate on parts the logarithm,
            -inf of 0.
        before: The same of the time before.
        late: The devices that measured something towards the end, too.
        level: The chance that the interval may err.
        earlier: The silence at earlier looks in the stage.
        trials: Of how many trials each share is, where that is known.
    """
    # What measured 0 has no part to grow by. It is left out, and the gate told of it.
    zero = {name for each in (after, before) for name, value in each.items() if value == -math.inf}
    told = {name: value for name, value in after.items() if name not in zero}
    treated, control = (_observed(side, told, before, trials) for side in (of.treated, of.control))
    if of.control and not any(one.device in late for one in of.control):
        late = after.keys()
    has_it = [*of.treated, *of.away]
    most = None
    if gate.in_worst_case:
        worst = dict.fromkeys(before, 1.0 if gate.limit > 0 else 0.0)
        alive = {name: value for name, value in told.items() if name in late}
        harmed = _observed(has_it, worst | alive, before, trials)
        most = most_harm(harmed, control, level / 2.0, falls=gate.limit < 0)
    if of.with_itself:
        found = against_before(treated, step=gate.step)
    else:
        found = contrast(treated, control, step=gate.step)
    tells = {name for name in after if name in late}
    coverage = Coverage(
        treated=_telling(has_it, tells, before, zero),
        control=_telling(of.control, tells, before, zero),
    )
    return verdict(gate, found, level, coverage, most=most, earlier=earlier)


def _observed(
    side: Sequence[Member],
    after: Mapping[str, float],
    before: Mapping[str, float],
    trials: Mapping[str, float],
) -> list[Observed]:
    return [
        Observed(after[name], before.get(name, math.nan), one.stratum, trials.get(name, math.inf))
        for one in side
        if (name := one.device) in after
    ]


def _telling(
    side: Sequence[Member],
    tells: Collection[str],
    before: Collection[str],
    zero: Collection[str],
) -> dict[str, Telling]:
    """Return who tells enough, by stratum."""
    found: dict[str, Telling] = {}
    for stratum, name in ((one.stratum, one.device) for one in side):
        of, told, known = found.get(stratum, NOBODY), name in tells, name in before
        found[stratum] = Telling(
            devices=of.devices + 1,
            told=of.told + told,
            zero=of.zero + (told and name in zero),
            known=of.known + known,
            still=of.still + (known and told),
        )
    return found
