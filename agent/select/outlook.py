"""Predicts for each variant: answers in time, heat, memory, and how long the battery lasts.

Each prediction ends in one number: the share of an answer's worth that is expected to be lost.
What makes it greater has a name and a text, so that a person can read why a variant does not serve.

Rules:
- Pure. A latency that was not measured is never fast enough.
- What a variant does by itself is predicted once; what the device adds (`agent.select.limits`)
  depends on what runs beside it.
- A variant that needs less time for an answer is never said to be later, but for conditions that
  turned too bad for it alone: for a slower one they were never good.

Source:
    In time: `agent.select.queueing`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from agent.select import limits
from agent.select.decisions import MS_PER_S, Candidate, apart
from agent.select.estimates import GIB, Estimates
from agent.select.limits import Fault
from agent.select.others import NO_OTHERS, Others
from agent.select.queueing import drained_share, excess, most_per_s, share_in_time
from wire.policy import PolicySpec

SHORTFALL: Final = 6.0
"""How many answers a late one counts as, beyond the share that may be late."""

LEAST_S: Final = 1e-9
AHEAD_S: Final = 10.0
"""Over this time requests that wait already count."""

PARKED: Final = ""
"""In place of the name of a variant where none serves, for the sake of other models."""

LEAST_PRICE: Final = 1.0
"""How many answers one counts as that a parked model cannot give, at least: what is late anyway is
better late than not at all."""

UNKNOWN_RETENTION: Final = 0.5
"""Assumed for an accuracy that was not measured."""

EFFORT: Final = 0.001
"""What the whole processor's work is worth beside accuracy: evaluation sets are too small to tell
retentions that differ by less."""


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


class Conditions(NamedTuple):
    """What all variants of a model meet alike."""

    demand_per_s: float
    rates_per_s: tuple[float, ...]
    """Rates of equal probability."""

    wait_factor: float
    left_s: float
    """How long running and waiting may take."""


def conditions(known: Estimates, spec: PolicySpec) -> Conditions:
    """Return what all variants of a model meet alike.

    Args:
        known: What was learnt of the device.
        spec: The objective.
    """
    return Conditions(
        demand_per_s=known.demand_per_s,
        rates_per_s=known.demand.points(),
        wait_factor=known.wait_factor,
        left_s=allowed_s(known, spec),
    )


class Own(msgspec.Struct, frozen=True, kw_only=True):
    """What a variant does by itself, whatever else runs beside it."""

    candidate: Candidate
    service_s: float
    use: float
    """Time that its requests take, over the time in which they come."""

    load: float
    """Share of the processor that it takes."""

    usual_load: float
    """The same, at the usual rate of the requests."""

    asked: bool
    """Whether requests usually come."""

    in_time: float
    turns_per_s: float
    faults: tuple[Fault, ...]
    """Those of its accuracy and its latency."""

    @property
    def retention(self) -> float:
        """Share of the quality that it keeps; a half if it is not known."""
        known = self.candidate.accuracy
        return UNKNOWN_RETENTION if known is None else known

    def loss(self, *, void: bool = False) -> float:
        """Return the share of an answer's worth that is lost, but for what the device adds.

        Args:
            void: Whether no answer counts, because of the device.
        """
        worth = self.in_time * max(1.0 - self.turns_per_s * self.candidate.load_s, 0.0)
        costs = [f.cost for f in self.faults]
        if void:
            # Where no answer counts, all are as late: the smallest or the coolest is best.
            worth, costs = 0.0, [SHORTFALL, *(f.cost for f in self.faults if f.kind != "deadline")]
        return 1.0 - self.retention * worth + math.fsum(costs) + excess(self.use)


def predict(c: Candidate, known: Estimates, spec: PolicySpec) -> Prediction:
    """Predict how a variant would do, with no other model beside it.

    Args:
        c: The variant.
        known: What was learnt of the device.
        spec: The objective.

    Returns:
        The prediction.
    """
    return beside(by_itself(c, known, spec, conditions(known, spec)), known, spec)


def by_itself(
    c: Candidate, known: Estimates, spec: PolicySpec, now: Conditions, held_bytes: int = 0
) -> Own:
    """Predict what a variant does by itself.

    Args:
        c: The variant.
        known: What was learnt of the device.
        spec: The objective.
        now: What it meets.
        held_bytes: Memory that other models hold.

    Returns:
        The prediction, without what the device adds.
    """
    service_s, usual = mean_service_s(c, known), known.battery.usual.demand
    in_time = known.record.corrected(predicted_share(c, known, now))
    in_time *= drained_share(known.waiting, now.demand_per_s, service_s, now.left_s, AHEAD_S)
    turns_per_s = _turns_per_s(c, known, now, held_bytes)
    # Until the next decision conditions may turn too bad for it, as they did before.
    in_time *= max(1.0 - turns_per_s * known.period_s, 0.0)
    found = (_accuracy(c, spec), _deadline(c, in_time, spec))
    # Over hours the usual requests count, not those of this minute.
    usually_per_s = now.demand_per_s if usual is None else usual
    return Own(
        candidate=c,
        service_s=service_s,
        use=now.demand_per_s * service_s,
        load=min(now.demand_per_s * service_s, 1.0) * known.cpu_share,
        usual_load=min(usually_per_s * service_s, 1.0) * known.cpu_share,
        asked=usually_per_s > 0.0,
        in_time=in_time,
        turns_per_s=turns_per_s,
        faults=tuple(f for f in found if f is not None),
    )


def beside(
    own: Own,
    known: Estimates,
    spec: PolicySpec,
    others: Others = NO_OTHERS,
    *,
    begins: bool = True,
) -> Prediction:
    """Predict how a variant would do beside what the other models take.

    Args:
        own: What it does by itself.
        known: What was learnt of the device.
        spec: The objective.
        others: What the other models take.
        begins: Whether to say what speaks against beginning with it.

    Returns:
        The prediction.
    """
    c, battery = own.candidate, known.battery
    load = min(known.other_load + others.load + own.load, 1.0)
    usual_load = min(battery.usual.other_load + others.usual_load + own.usual_load, 1.0)
    emptied, not_surely = limits.battery(
        known, spec, usual_load, service_s=own.service_s, asked=own.asked
    )
    peak, held = c.peak_memory_bytes, others.held_bytes
    hard = (
        limits.memory(peak, known, spec, held_bytes=held, lately=False),
        limits.heat(known, load),
    )
    added = [f for f in (limits.hidden_heat(known, load), emptied, *hard) if f is not None]
    lasting: tuple[Fault | None, ...] = ()
    if begins:
        scarce = limits.memory(peak, known, spec, held_bytes=held, lately=True)
        lasting = (scarce, limits.lasting_heat(known, load), not_surely)
    cost = math.fsum(f.cost for f in added)
    return Prediction(
        candidate=c,
        load=load,
        in_time=own.in_time,
        turns_per_s=own.turns_per_s,
        faults=(*own.faults, *added),
        lasting=tuple(f for f in lasting if f is not None),
        loss=own.loss(void=any(f.void for f in added)) + cost + EFFORT * load,
    )


def no_variant(owns: Sequence[Own], spec: PolicySpec, *, void: bool) -> Own:
    """Return what it means for a model that no variant of it serves.

    That costs no less than being late with all answers, and more than its best variant costs.

    Args:
        owns: What its variants do by themselves, at least one.
        spec: The objective.
        void: Whether no answer counts now, because of the device.
    """
    least = min(own.loss() for own in owns)
    price = max(1.0 + SHORTFALL * spec.aim.deadline_probability - least, LEAST_PRICE)
    cost = min(own.loss(void=void) for own in owns) + price - 1.0
    fault = Fault(kind="deadline", text="parked, so that other models keep theirs", cost=cost)
    return Own(
        candidate=Candidate(name=PARKED, latency_p50_ms=0.0, peak_memory_bytes=0, load_ms=0.0),
        service_s=0.0,
        use=0.0,
        load=0.0,
        usual_load=0.0,
        asked=True,
        in_time=0.0,
        turns_per_s=0.0,
        faults=(fault,),
    )


def parked(own: Own, known: Estimates, others: Others) -> Prediction:
    """Return how a model would do that is parked.

    Args:
        own: What that means for it.
        known: What was learnt of the device.
        others: What the other models take.
    """
    return Prediction(
        candidate=own.candidate,
        load=min(known.other_load + others.load, 1.0),
        in_time=0.0,
        turns_per_s=0.0,
        faults=own.faults,
        lasting=(),
        loss=own.loss(),
    )


def predicted_share(c: Candidate, known: Estimates, now: Conditions) -> float:
    """Return the share of a variant's answers that would be in time, by theory alone.

    Args:
        c: The variant.
        known: What was learnt of the device.
        now: What it meets.

    Returns:
        0 to 1, not corrected by the record; 0 if its latency was not measured.
    """
    if c.latency_p50_ms is None or c.latency_p50_ms <= 0.0:
        return 0.0
    doubt = known.slowdown.expected(c.name).sigma ** 2
    return share_in_time(
        now.left_s,
        now.rates_per_s,
        service_s=mean_service_s(c, known),
        log_sigma=math.sqrt(doubt + known.scatter.variance),
        wait_factor=now.wait_factor,
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


def _turns_per_s(c: Candidate, known: Estimates, now: Conditions, held_bytes: int) -> float:
    """Return how often conditions became too bad for a variant in the last hour."""
    if c.latency_p50_ms is None or c.latency_p50_ms <= 0.0:
        return 0.0
    most = most_per_s(
        now.left_s,
        service_s=mean_service_s(c, known),
        wait_factor=now.wait_factor,
        batch=known.demand.batches.mean,
    )
    own_s = c.latency_p50_ms * known.request_samples / MS_PER_S
    bears = now.left_s / max(own_s * math.exp(known.slowdown.own(c.name)), LEAST_S)
    turns = known.demand_lately.rises_per_s(most) + known.slowdown_lately.rises_per_s(bears)
    if c.peak_memory_bytes:
        turns += known.memory_lately.rises_per_s(GIB / (c.peak_memory_bytes + held_bytes))
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
