"""Predicts for each variant: answers in time, heat, memory, and how long the battery lasts.

There are two outlooks. Under `now` conditions stay as they are. Under `lately` they are as bad as
at the worst time of the last minutes, and stay so. A variant with more work is worth a switch only
if it keeps the objective under both.

Rules:
- Pure. A latency that was not measured is never fast enough.
- A quantity that was never read is not judged. If later readings are missing, the value comes from
  the model, or is the worst of the last minutes.

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
from wire.policy import PolicySpec

LIKELY: Final = 1.0
"""Standard deviations above the mean; one case in six exceeds them."""

RATHER: Final = 0.5
"""One case in three exceeds this; enough where a switch back is still possible and the policy
learns from the try."""

SOON_S: Final = (10.0, 60.0)
"""The shorter is the time to switch back; the longer shows whether that would be needed."""

LASTING_S: Final = 600.0
"""A switch to a variant is worth it only if heat probably stays below severe for this long."""

OFTEN: Final = 0.5
RESERVE: Final = 1.25
"""Factor by which the battery must outlast the objective before a switch to more work."""

UNKNOWN_RETENTION: Final = 0.5
"""Assumed for an accuracy that was not measured, if no variant keeps the objective."""

STAYS_FREE: Final = 0.5
"""Share of the memory reserve that must stay free under `now`; below it a variant has to go."""

TINY: Final = 1e-300
"""Used in place of zero, which has no logarithm."""

MS_PER_S: Final = 1000.0
MIB: Final = 1024 * 1024


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a variant misses the objective."""

    kind: str
    """`deadline`, `heat`, `memory`, `battery` or `accuracy`."""

    text: str
    cost: float
    """Share of the answers that it makes worthless; it counts if every variant has faults."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant would do."""

    candidate: Candidate
    load: float
    """Share of the processor that would be busy, the work of other programs included."""

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
    """Predict how a variant would do.

    Args:
        c: The variant.
        known: What was learnt of the device.
        spec: The objective.
        lately: Whether to assume that the worst of the last minutes lasts.

    Returns:
        The prediction.
    """
    demand = (known.demand_peak.value or 0.0) if lately else known.demand_per_s
    other = (known.other_peak.value or 0.0) if lately else known.other_load
    service_s = max(c.latency_p50_ms or 0.0, 0.0) * known.request_samples / MS_PER_S
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
        deadline_s: Time from a request to its answer; may be infinite.
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
    # Ten times the weight of the loss itself: the operator has excluded such a loss.
    return Fault(kind="accuracy", text=f"{text}, {least:g} is required", cost=10.0 * lacking)


def _deadline(
    c: Candidate, known: Estimates, spec: PolicySpec, demand_per_s: float, *, lately: bool
) -> tuple[float, float, Fault | None]:
    """Return the share in time lately, how often it turned late a second, and the fault if any."""
    if c.latency_p50_ms is None or c.latency_p50_ms <= 0.0:
        return 0.0, 0.0, Fault(kind="deadline", text="its latency was not measured", cost=1.0)
    limit_ms = spec.aim.deadline_ms
    deadline_s = math.inf if limit_ms is None else limit_ms / MS_PER_S
    left_s = max(deadline_s - max(known.waits.base, 0.0) / MS_PER_S, 0.0)
    longest_s = longest_service_s(left_s, demand_per_s, known.waits.slope)
    if math.isinf(longest_s):
        return 1.0, 0.0, None
    bearable = longest_s * MS_PER_S / (c.latency_p50_ms * known.request_samples)
    expected, wanted = known.slowdown.expected(c.name), spec.aim.deadline_probability
    # A rate must hold on average, a deadline for each answer. The median of a lognormal
    # distribution is below its mean by half the variance.
    apart = 0.0 if limit_ms is None else known.scatter.variance
    own = math.exp(known.slowdown.own(c.name))
    was_in_time = known.slowdown_lately.share_below(bearable / own, apart)
    turns_late = known.slowdown_lately.rises_per_s(bearable / own)
    margin = math.log(max(bearable, TINY)) - expected.mean + 0.5 * apart
    in_time = normal_share(margin / math.hypot(expected.sigma, math.sqrt(apart)))
    # One bad period is no trend: if the last minutes were good, a share of `OFTEN` is enough.
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
        # Unknown is not full: if only a low charge is known, the least work is best.
        low = battery.ratio is not None and battery.ratio < spec.low_battery_ratio
        return Fault(kind="battery", text="the battery is low", cost=0.5 * load) if low else None
    if lasts_s >= wish_s:
        return None
    text = (
        f"the battery would last {lasts_s / 3600.0:.1f} h of the required {wish_s / 3600.0:.1f} h"
    )
    return Fault(kind="battery", text=text, cost=0.5 * (1.0 - lasts_s / wish_s))
