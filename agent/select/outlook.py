"""What would come of each variant: in time or not, how warm, whether it fits, how long it lasts.

Two outlooks are looked at. Under `now` things go on as they are; under `lately` they are as bad as
they were at some time in the last minutes, and last: only what keeps the objective so is worth a
switch towards more work.

Rules:
- Pure. A latency that nobody measured is never fast enough.
- What was never read is not judged; what was read once and is lost is taken from the model, or as
  it was at its worst lately.

Source:
    In time: a wait of `factor * use / (1 - use)` service times (Pollaczek and Khinchine;
    Kleinrock, Queueing Systems, volume 1, section 5.6) solved for the longest service time.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from agent.select.decisions import Candidate
from agent.select.estimates import Estimates
from agent.select.recent import normal_share
from wire.messages import PolicySpec

LIKELY: Final = 1.0
"""Standard deviations above the mean that one in six exceeds."""

RATHER: Final = 0.5
"""One in three exceeds this many; enough where one can still go back, and so learns more."""

SOON_S: Final = (10.0, 60.0)
"""To go back takes the lesser of these; the greater tells whether one would have to."""

LASTING_S: Final = 600.0
"""What would not rather stay below severe for so long is not worth going to."""

OFTEN: Final = 0.5
RESERVE: Final = 1.25
"""By which the battery has to outlast the objective before more work is taken on."""

UNKNOWN_RETENTION: Final = 0.5
"""What an accuracy that nobody measured counts as where only shortfalls are left to choose from."""

STAYS_FREE: Final = 0.5
"""Share of the memory to keep free that what serves may use up before it has to go."""

TINY: Final = 1e-300
"""In place of a zero of which there would be no logarithm."""

MS_PER_S: Final = 1000.0
MIB: Final = 1024 * 1024


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a variant misses the objective."""

    kind: str
    """`deadline`, `heat`, `memory`, `battery` or `accuracy`."""

    text: str
    cost: float
    """Share of the answers that are worth nothing for it; weighs where every variant has faults."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What would come of a variant."""

    candidate: Candidate
    load: float
    """Share of the processor that would be busy, others' work included."""

    in_time_lately: float
    """Share of the last minutes in which it would have answered in time."""

    turns_late_per_s: float
    """How often in the last minutes it would have begun to be late."""

    faults: tuple[Fault, ...]

    @property
    def cost(self) -> float:
        """Share of the worth of all answers that is lost, through faults and accuracy together."""
        accuracy = self.candidate.accuracy
        kept = UNKNOWN_RETENTION if accuracy is None else accuracy
        return 1.0 - kept * math.prod(1.0 - min(fault.cost, 1.0) for fault in self.faults)


def predict(c: Candidate, known: Estimates, spec: PolicySpec, *, lately: bool) -> Prediction:
    """Say what would come of a variant.

    Args:
        c: The variant.
        known: What was learnt of the device.
        spec: The objective.
        lately: Under the worst of the last minutes, and for long.

    Returns:
        The prediction.
    """
    demand = (known.demand_peak.value or 0.0) if lately else known.demand_per_s
    other = (known.other_peak.value or 0.0) if lately else known.other_load
    service_s = max(c.latency_p50_ms or 0.0, 0.0) / MS_PER_S
    use = demand * service_s * known.slowdown.expected(c.name).factor
    load = min(other + min(use, 1.0) * known.cpu_share, 1.0)
    in_time, turns_late, late = _deadline(c, known, spec, demand, lately=lately)
    found = (
        _accuracy(c, spec),
        late,
        _memory(c, known, spec, lately=lately),
        _heat(known, load, lasting=lately),
        _battery(known, spec, load, RESERVE if lately else 1.0),
    )
    return Prediction(
        candidate=c,
        load=load,
        in_time_lately=in_time,
        turns_late_per_s=turns_late,
        faults=tuple(f for f in found if f is not None),
    )


def longest_service_s(deadline_s: float, demand_per_s: float, wait_factor: float) -> float:
    """Return the longest service time with which requests are answered in time.

    Args:
        deadline_s: From a request to its answer; may be infinite.
        demand_per_s: Requests that come each second.
        wait_factor: Mean wait over `use / (1 - use)` service times.

    Returns:
        The greatest s for which s * (1 + factor * use / (1 - use)) is within the deadline, where
        use is demand times s and below 1.
    """
    if math.isinf(deadline_s):
        return 1.0 / demand_per_s if demand_per_s > 0.0 else math.inf
    come = demand_per_s * deadline_s
    root = math.hypot(1.0 - come, 2.0 * math.sqrt(wait_factor * come))
    return 2.0 * deadline_s / (1.0 + come + root)


def _accuracy(c: Candidate, spec: PolicySpec) -> Fault | None:
    least, kept = spec.aim.min_retention, c.accuracy
    if least <= 0.0 or (kept is not None and kept >= least):
        return None
    text = f"keeps {'an unknown part' if kept is None else f'{kept:.4g}'} of the quality"
    lacking = least if kept is None else least - kept
    # Ten times what the loss itself weighs: the operator said that it is too much.
    return Fault(kind="accuracy", text=f"{text}, {least:g} is required", cost=10.0 * lacking)


def _deadline(
    c: Candidate, known: Estimates, spec: PolicySpec, demand_per_s: float, *, lately: bool
) -> tuple[float, float, Fault | None]:
    """Return how it was lately, in time and how often it turned late, and what is wrong now."""
    if c.latency_p50_ms is None or c.latency_p50_ms <= 0.0:
        return 0.0, 0.0, Fault(kind="deadline", text="its latency was not measured", cost=1.0)
    limit_ms = spec.aim.deadline_ms
    deadline_s = math.inf if limit_ms is None else limit_ms / MS_PER_S
    left_s = max(deadline_s - max(known.waits.base, 0.0) / MS_PER_S, 0.0)
    longest_s = longest_service_s(left_s, demand_per_s, known.waits.slope)
    if math.isinf(longest_s):
        return 1.0, 0.0, None
    bearable = longest_s * MS_PER_S / c.latency_p50_ms
    expected, wanted = known.slowdown.expected(c.name), spec.aim.deadline_probability
    # The rate is kept on average, a deadline by each answer; of a lognormal distribution the median
    # is below the mean by half the variance.
    apart = 0.0 if limit_ms is None else known.scatter.variance
    own = math.exp(known.slowdown.own(c.name))
    was_in_time = known.slowdown_lately.share_below(bearable / own, apart)
    turns_late = known.slowdown_lately.rises_per_s(bearable / own)
    margin = math.log(max(bearable, TINY)) - expected.mean + 0.5 * apart
    in_time = normal_share(margin / math.hypot(expected.sigma, math.sqrt(apart)))
    # One bad period is no trend: while the last minutes were well, more than half is enough.
    enough = OFTEN if was_in_time >= wanted and not lately else wanted
    if in_time >= enough:
        return was_in_time, turns_late, None
    what = "keeps up with the requests" if limit_ms is None else f"answers within {limit_ms:g} ms"
    text = f"{what} with probability {in_time:.2f}, {enough:.2f} is required"
    return was_in_time, turns_late, Fault(kind="deadline", text=text, cost=1.0 - in_time)


def _memory(c: Candidate, known: Estimates, spec: PolicySpec, *, lately: bool) -> Fault | None:
    free = known.free_bytes
    if (lately or free is None) and known.taken_peak.value is not None:
        free = int(-known.taken_peak.value)
    if free is None or c.peak_memory_bytes is None:
        return None
    kept = spec.low_memory_bytes if lately else round(STAYS_FREE * spec.low_memory_bytes)
    need = c.peak_memory_bytes + kept
    if need <= free:
        return None
    text = f"needs {need / MIB:.0f} MiB with the reserve, {free / MIB:.0f} MiB are available"
    return Fault(kind="memory", text=text, cost=1.0 if c.peak_memory_bytes > free else 0.5)


def _heat(known: Estimates, load: float, *, lasting: bool) -> Fault | None:
    back_s, ahead_s = (max(after_s, known.period_s) for after_s in SOON_S)
    horizons = [(back_s, LIKELY)]
    if lasting:
        horizons += [(ahead_s, LIKELY), (LASTING_S, RATHER)]
    worst, at_s = -math.inf, 0.0
    for after_s, z in horizons:
        ahead = known.heat.forecast(load, after_s)
        if ahead is not None and ahead.at_most(z) > worst:
            worst, at_s = ahead.at_most(z), after_s
    if worst < 1.0:
        return None
    text = f"headroom may reach {worst:.2f} in {at_s:g} s"
    return Fault(kind="heat", text=text, cost=min(2.0 * (worst - 1.0) + 0.1, 1.0))


def _battery(known: Estimates, spec: PolicySpec, load: float, reserve: float) -> Fault | None:
    battery, wish_s = known.battery, spec.aim.battery_lasts_s * reserve
    if battery.discharging is not True or wish_s <= 0.0:
        return None
    lasts_s = battery.lasts_s(load)
    if lasts_s is None:
        # Unknown is not full: of what the charge alone tells, the least work is the best.
        low = battery.ratio is not None and battery.ratio < spec.low_battery_ratio
        return Fault(kind="battery", text="the battery is low", cost=0.5 * load) if low else None
    if lasts_s >= wish_s:
        return None
    text = (
        f"the battery would last {lasts_s / 3600.0:.1f} h of the required {wish_s / 3600.0:.1f} h"
    )
    return Fault(kind="battery", text=text, cost=0.5 * (1.0 - lasts_s / wish_s))
