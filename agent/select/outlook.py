"""Predicts for each variant: answers in time, heat, memory, and how long the battery lasts.

Each prediction ends in one number: the share of an answer's worth that is expected to be lost.
What makes it greater has a name and a text, so that a person can read why a variant does not serve.

Rules:
- Pure. A latency that was not measured is never fast enough.
- A quantity that was never read is not judged. If later readings are missing, the value comes from
  the model, or is the worst of the last minutes.
- A variant that needs less time for an answer is never said to be later, but for conditions that
  turned too bad for it alone: for a slower one they were never good.

Source:
    In time: `agent.select.queueing`.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from agent.select import reach
from agent.select.decisions import MS_PER_S, Candidate, apart
from agent.select.estimates import GIB, Estimates
from agent.select.heat import Forecast
from agent.select.queueing import drained_share, excess, most_per_s, share_in_time
from agent.select.recent import normal_share
from wire.durations import DAY_S
from wire.policy import PolicySpec

LIKELY: Final = 1.0
"""Standard deviations above the mean; one case in six exceeds them."""

RATHER: Final = 0.5
"""One case in three exceeds this; enough where a switch back is still possible and the policy
learns from the try."""

SOON_S: Final = (10.0, 60.0)
"""The shorter is the time to switch back; the longer shows whether that would be needed."""

LASTING_S: Final = 600.0
"""A switch to more work is worth it only if heat probably stays below severe for this long."""

COOLING_S: Final = (2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""When to look whether a board that is too hot has cooled down."""

SHORTFALL: Final = 6.0
"""How many answers a late one counts as, beyond the share that may be late."""

SOON_HOT: Final = 4.0
"""How many answers one from a board in severe heat counts as."""

THROTTLED: Final = 0.1
"""Answers that a throttled processor costs beside its slowness, as a share: it shows that the board
is hot, even where its sensor reads too low."""

HIDDEN: Final = 2.0
"""How many answers one counts as from a board that is throttled for a heat that no sensor shows:
half as many as in severe heat, because throttling may begin below it or above it."""

UNKNOWN_DRAW: Final = 4.0
"""How many answers one counts as that a low battery may not give: nobody knows how low it is."""

SLIGHT: Final = 0.01
"""A cost below this is not worth a name."""

SENSOR_SIGMA: Final = 0.03
"""What a sensor may be off by for all time: a degree; good ones are calibrated to one or two."""

LEAST_S: Final = 1e-9
AHEAD_S: Final = 10.0
"""Over this time requests that wait already count."""

UNKNOWN_RETENTION: Final = 0.5
"""Assumed for an accuracy that was not measured."""

STAYS_FREE: Final = 0.5
"""Share of the memory reserve that must stay free; below it a variant has to go."""

SCARCE: Final = 0.5
"""Answers that a variant costs whose memory is all that there is: the next program that needs some
ends it."""

RATHER_THAN_NOT, SURELY = 0.5, 0.9
"""Probabilities that the battery reaches the aim: to go on, and to begin more work."""

EFFORT: Final = 0.001
"""What the whole processor's work is worth beside accuracy: evaluation sets are too small to tell
retentions that differ by less."""

MIB: Final = 1024 * 1024

Kind = Literal["deadline", "heat", "memory", "battery", "accuracy"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a variant misses the objective."""

    kind: Kind
    text: str
    cost: float
    """Answers that it loses, as a share; it may be above 1 where worse than no answer."""

    urgent: bool = False
    """Whether the variant must go at once."""

    void: bool = False
    """Whether no answer of it counts, however good it is."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant would do."""

    candidate: Candidate
    load: float
    """Share of the processor that would be busy, the work of other programs included."""

    in_time: float
    """Share of the answers that would be in time."""

    turns_per_s: float
    """How often in the last hour conditions would have become too bad for it."""

    faults: tuple[Fault, ...]
    lasting: tuple[Fault, ...]
    """What speaks against a switch to it, if it is more work."""

    loss: float
    """Share of an answer's worth that is lost; above 1 where a variant does harm."""

    @property
    def retention(self) -> float:
        """Share of the quality that it keeps; a half if it is not known."""
        known = self.candidate.accuracy
        return UNKNOWN_RETENTION if known is None else known


def predict(c: Candidate, known: Estimates, spec: PolicySpec) -> Prediction:
    """Predict how a variant would do.

    Args:
        c: The variant.
        known: What was learnt of the device.
        spec: The objective.

    Returns:
        The prediction.
    """
    service_s = mean_service_s(c, known)
    use = known.demand_per_s * service_s
    load = min(known.other_load + min(use, 1.0) * known.cpu_share, 1.0)
    in_time = known.record.corrected(predicted_share(c, known, spec))
    in_time *= drained_share(
        known.waiting, known.demand_per_s, service_s, allowed_s(known, spec), AHEAD_S
    )
    turns_per_s = _turns_per_s(c, known, spec)
    # Until the next decision conditions may turn too bad for it, as they did before.
    in_time *= max(1.0 - turns_per_s * known.period_s, 0.0)
    emptied, not_surely = _battery(c, known, spec)
    hard = [f for f in (_memory(c, known, spec, lately=False), _heat(known, load)) if f is not None]
    soft = (_accuracy(c, spec), _deadline(c, in_time, spec), _hidden_heat(known, load), emptied)
    found = (*(f for f in soft if f is not None), *hard)
    worth, costs = in_time * max(1.0 - turns_per_s * c.load_s, 0.0), [f.cost for f in found]
    if any(f.void for f in hard):
        # Where no answer counts, all are as late: of several, the smallest or the coolest is best.
        worth, costs = 0.0, [SHORTFALL, *(f.cost for f in found if f.kind != "deadline")]
    lasting = (
        _memory(c, known, spec, lately=True),
        _lasting_heat(known, load),
        not_surely,
    )
    retention = UNKNOWN_RETENTION if c.accuracy is None else c.accuracy
    loss = 1.0 - retention * worth + math.fsum(costs) + excess(use) + EFFORT * load
    return Prediction(
        candidate=c,
        load=load,
        in_time=in_time,
        turns_per_s=turns_per_s,
        faults=found,
        lasting=tuple(f for f in lasting if f is not None),
        loss=loss,
    )


def predicted_share(c: Candidate, known: Estimates, spec: PolicySpec) -> float:
    """Return the share of a variant's answers that would be in time, by theory alone.

    Args:
        c: The variant.
        known: What was learnt of the device.
        spec: The objective.

    Returns:
        0 to 1, not corrected by the record; 0 if its latency was not measured.
    """
    if c.latency_p50_ms is None or c.latency_p50_ms <= 0.0:
        return 0.0
    doubt = known.slowdown.expected(c.name).sigma ** 2
    return share_in_time(
        allowed_s(known, spec),
        known.demand.points(),
        service_s=mean_service_s(c, known),
        log_sigma=math.sqrt(doubt + known.scatter.variance),
        wait_factor=known.wait_factor,
        batch=known.demand.batches.mean,
    )


def mean_service_s(c: Candidate, known: Estimates) -> float:
    """Return how long a variant runs for a request here, in the mean; 0 if nobody knows.

    Args:
        c: The variant.
        known: What was learnt of the device.
    """
    alone_s = max(c.latency_p50_ms or 0.0, 0.0) * known.request_samples / MS_PER_S
    return alone_s * known.slowdown.expected(c.name).factor


def allowed_s(known: Estimates, spec: PolicySpec) -> float:
    """Return how long running and waiting may take; infinite without a deadline.

    Args:
        known: What was learnt of the device.
        spec: The objective.
    """
    limit_ms = math.inf if spec.aim.deadline_ms is None else spec.aim.deadline_ms
    return max(limit_ms - max(known.waits.base, 0.0), 0.0) / MS_PER_S


def _turns_per_s(c: Candidate, known: Estimates, spec: PolicySpec) -> float:
    """Return how often conditions became too bad for a variant in the last hour."""
    if c.latency_p50_ms is None or c.latency_p50_ms <= 0.0:
        return 0.0
    left_s, service_s = allowed_s(known, spec), mean_service_s(c, known)
    most = most_per_s(
        left_s, service_s=service_s, wait_factor=known.wait_factor, batch=known.demand.batches.mean
    )
    own_s = c.latency_p50_ms * known.request_samples / MS_PER_S
    bears = left_s / max(own_s * math.exp(known.slowdown.own(c.name)), LEAST_S)
    turns = known.demand_lately.rises_per_s(most) + known.slowdown_lately.rises_per_s(bears)
    if c.peak_memory_bytes:
        turns += known.memory_lately.rises_per_s(GIB / c.peak_memory_bytes)
    return turns


def _accuracy(c: Candidate, spec: PolicySpec) -> Fault | None:
    least, kept = spec.aim.min_retention, c.accuracy
    if least <= 0.0 or (kept is not None and kept >= least):
        return None
    share, required = ("an unknown part", f"{least:g}") if kept is None else apart(kept, least, 4)
    text = f"keeps {share} of the quality, {required} is required"
    lacking = least if kept is None else least - kept
    # Ten times the weight of the loss itself: the operator has excluded such a loss.
    return Fault(kind="accuracy", text=text, cost=10.0 * lacking)


def _deadline(c: Candidate, in_time: float, spec: PolicySpec) -> Fault | None:
    """Return the fault of a variant that is late too often."""
    if c.latency_p50_ms is None or c.latency_p50_ms <= 0.0:
        return Fault(kind="deadline", text="its latency was not measured", cost=SHORTFALL)
    wanted, limit_ms = spec.aim.deadline_probability, spec.aim.deadline_ms
    if in_time >= wanted:
        return None
    what = "keeps up with the requests" if limit_ms is None else f"answers within {limit_ms:g} ms"
    share, required = apart(in_time, wanted, 2)
    text = f"{what} with probability {share}, {required} is required"
    return Fault(kind="deadline", text=text, cost=SHORTFALL * (wanted - in_time))


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
    there, needed = apart(free / MIB, need / MIB, 0)
    text = f"needs {needed} MiB with the reserve, {there} MiB are available"
    if c.peak_memory_bytes > free:
        # The less a variant needs, the sooner there is enough of it.
        cost = 1.0 + need / (need + GIB)
        return Fault(kind="memory", text=text, cost=cost, urgent=True, void=True)
    return Fault(kind="memory", text=text, cost=SCARCE * (need - free) / kept)


def _heat(known: Estimates, load: float) -> Fault | None:
    now = known.heat.now
    if now is not None and now.mean >= 1.0:
        # Until the board has cooled down no answer counts, whatever the forecast is.
        ahead = [known.heat.forecast(load, after_s) for after_s in COOLING_S]
        hot = sum(1.0 for forecast in ahead if forecast is None or forecast.mean >= 1.0)
        cost = SOON_HOT * (1.0 + hot + load) / (1.0 + len(COOLING_S))
        text = f"headroom is {now.mean:.2f}: the board is too hot"
        return Fault(kind="heat", text=text, cost=cost, urgent=True, void=True)
    (near_s, near), (far_s, far) = ((s, known.heat.forecast(load, s)) for s in _horizons(known))
    if near is None or far is None:
        return None
    cost = SOON_HOT * (_chance(near, 1.0) + near_s / far_s * _chance(far, 1.0))
    slowed_at = known.throttling.at
    if slowed_at is not None:
        cost += THROTTLED * _chance(far, slowed_at)
    soon = _hottest([(near_s, near, LIKELY)])
    if soon is not None:
        return Fault(kind="heat", text=soon, cost=cost, urgent=True)
    if cost < SLIGHT:
        return None
    limit = "severe" if slowed_at is None else f"{slowed_at:.2f}, where it is throttled,"
    text = f"headroom may reach {limit} within {far_s:g} s"
    return Fault(kind="heat", text=text, cost=cost)


def _hidden_heat(known: Estimates, load: float) -> Fault | None:
    """Return the fault of a variant whose heat only throttling shows."""
    bearable = known.throttling.hidden
    cost = 0.0 if bearable is None else HIDDEN * bearable.chance(load)
    if cost < SLIGHT:
        return None
    text = "the processor may be throttled, and no sensor shows why"
    return Fault(kind="heat", text=text, cost=cost)


def _horizons(known: Estimates) -> tuple[float, float]:
    """Return the times to look ahead: no shorter than it takes to decide again."""
    near_s, far_s = (max(after_s, 2.0 * known.period_s) for after_s in SOON_S)
    return near_s, far_s


def _chance(ahead: Forecast, limit: float) -> float:
    """Return the probability that a headroom is above a limit."""
    return normal_share((ahead.mean - limit) / math.hypot(ahead.sigma, SENSOR_SIGMA))


def _hottest(ahead: list[tuple[float, Forecast | None, float]]) -> str | None:
    """Return what the greatest headroom may be, so many deviations above each forecast's mean."""
    reached = [(f.at_most(z), after_s) for after_s, f, z in ahead if f is not None]
    worst, at_s = max(reached, default=(-math.inf, 0.0))
    return f"headroom may reach {worst:.2f} in {at_s:g} s" if worst >= 1.0 else None


def _lasting_heat(known: Estimates, load: float) -> Fault | None:
    near_s, far_s = _horizons(known)
    ahead = ((near_s, LIKELY), (far_s, LIKELY), (LASTING_S, RATHER))
    text = _hottest([(after_s, known.heat.forecast(load, after_s), z) for after_s, z in ahead])
    return None if text is None else Fault(kind="heat", text=text, cost=1.0)


def _battery(c: Candidate, known: Estimates, spec: PolicySpec) -> tuple[Fault | None, Fault | None]:
    """Return the faults of a variant that empties the battery too soon: to go on, and to begin.

    A variant serves as long as the battery rather reaches the aim with it; one with more work comes
    back only if the battery surely does. Between the two, energy is saved that pays for the switch.
    """
    battery = known.battery
    need_s = reach.need_s(spec.aim, battery)
    if need_s is None or battery.is_held:
        return None, None
    # Over hours the usual requests and programs count, not those of this minute.
    service_s = mean_service_s(c, known)
    demand = known.demand_per_s if battery.usual.demand is None else battery.usual.demand
    load = min(battery.usual.other_load + min(demand * service_s, 1.0) * known.cpu_share, 1.0)
    found = reach.reaches(battery, load, need_s)
    if found is None:
        # Unknown is not full: if only a low charge is known, the least work is best.
        if battery.ratio is None or battery.ratio >= spec.low_battery_ratio:
            return None, None
        if demand <= 0.0:
            load = service_s / (service_s + 1.0)
        text = f"the battery has {battery.ratio:.0%}, and its draw is not known yet"
        cost = UNKNOWN_DRAW * (1.0 - reach.share_unknown(load))
        fault = Fault(kind="battery", text=text, cost=cost)
        return fault, fault
    if found.probability >= SURELY:
        return None, None
    fault = _empty(known, found, need_s)
    return (fault if found.probability < RATHER_THAN_NOT else None), fault


def _empty(known: Estimates, found: reach.Reach, need_s: float) -> Fault:
    battery = known.battery
    required = f"{_time_of_day(battery.local_s + need_s)} is required"
    if found.empty_s is None:
        text = f"the battery lasts with probability {found.probability:.2f} only, {required}"
        return Fault(kind="battery", text=text, cost=1.0 - found.probability)
    # An empty battery answers nothing for the rest of the time; no work at all would last longest.
    idle = reach.reaches(battery, battery.usual.other_load, need_s) or found
    cost = 1.0 - found.share(need_s) / max(idle.share(need_s), reach.SOME)
    text = f"the battery would be empty at {_time_of_day(battery.local_s + found.empty_s)}"
    return Fault(kind="battery", text=f"{text}, {required}", cost=min(max(cost, 0.0), 1.0))


def _time_of_day(local_s: float) -> str:
    days, minutes = int(local_s / DAY_S), int(local_s / 60.0)
    day = "" if days < 1 else " tomorrow" if days == 1 else f" in {days} days"
    return f"{minutes // 60 % 24:02d}:{minutes % 60:02d}{day}"
