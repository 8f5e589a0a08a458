"""Estimates for a device: its slowdown, its demand, its heat, and how long its battery lasts.

Rules:
- Pure: readings and the results of a period in, the next estimates out.

Source:
    Waits: Pollaczek and Khinchine; Kleinrock, Queueing Systems, volume 1, section 5.6. How long a
    mean wait takes to show itself: volume 2, section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from agent.select.batches import Together
from agent.select.battery import BatteryFit
from agent.select.heat import HeatFit
from agent.select.kalman import Line
from agent.select.others import Others
from agent.select.queueing import wait_factor
from agent.select.rates import Rate
from agent.select.recent import Peak, Scatter, Spread
from agent.select.records import Record
from agent.select.slowdowns import Slowdowns
from agent.select.throttling import Throttling, is_slowed
from agent.select.usual import Usual
from wire.health import HealthSnapshot

WAIT_PRIOR, WAIT_SIGMA = 0.5, 0.5
"""Wait factor with random arrivals and constant service (M/D/1); regular arrivals hardly wait."""

BESIDE_SIGMA_MS: Final = 2.0
"""Initial deviation of what an answer takes besides running and waiting: zero to a few ms."""

MOST_USE: Final = 0.95
"""Above this use, waits only show how long it has lasted, so nothing is learnt from them."""

READING_MS: Final = 0.5
"""Standard deviation of a mean latency without waits."""

LEAST_WAIT: Final = 0.05
"""Wait factor of regular arrivals whose service times differ."""

BESIDE_DRIFT, WAIT_DRIFT = 0.01, 5e-4
"""Variances per second: without measurements, the first uncertainty is back in some minutes."""

MOST_SURPRISE: Final = 3.0
"""Standard deviations; a larger surprise counts as this: one request that hung is no wait."""

MOST_SAMPLES: Final = 1e6
"""More samples in a request are an error of the count."""

THEORY_SIGMA: Final = 0.1
"""How far the wait factor of theory may be off."""

TINY_VARIANCE: Final = 1e-9
LEAST_RATE: Final = 1e-9
MS_PER_S: Final = 1000.0
GIB: Final = 1024.0**3
LONG_S: Final = 3600.0
"""How long it is remembered how often conditions got worse."""

FASTEST, SLOWEST = 0.05, 100.0
"""A slowdown outside this range is an error of the measurement."""


OF_DEVICE: Final = (
    "watched_s", "other_load", "free_bytes", "taken_peak", "memory_lately", "clock_limit",
    "throttling", "heat",
)  # fmt: skip
"""What all models of a device know alike, beside its battery."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of the serving variant since the last decision.

    Where it runs in several workers, the requests and those that wait are those of one of them,
    and the shares of the processor those of all.
    """

    variant: str
    alone_ms: float | None
    """Its latency for one sample alone on the device; None if it was not measured."""

    held_bytes: int
    """Memory that it holds."""

    requests: float
    """Requests that arrived."""

    together: Together | None = None
    """How many requests came together; None if that was not seen."""

    answered: float
    in_time: float | None = None
    """Answers within the deadline of the objective; None if they were not counted."""

    samples: float
    """Samples in the answered requests."""

    compute_s: float
    """Time in the runtime, over all answers."""

    latency_ms: float | None
    """Mean latency of the answers, waits included; None without an answer."""

    log_variance: float | None = None
    """Variance of the logarithms of single times in the runtime per sample; None for fewer than
    two, or if only means are known."""

    waiting: float = 0.0
    """Requests that wait for an answer at the end."""

    own_load: float
    """Share of the processor that the workers took; in a replay, loading is included."""

    cpu_share: float = 1.0
    """Share of the processor that one computing request takes: its threads over the cores."""

    mixed: bool = False
    """Whether another variant served too, or one was loaded: then only the demand is learnt."""


def joined(seen: Sequence[Observed | None]) -> Observed | None:
    """Return the observations of several equal periods in a row as those of one period.

    Args:
        seen: The periods; None for one in which nothing served.

    Returns:
        The observations of all; None if nothing served in any.
    """
    there = [o for o in seen if o is not None]
    if not there:
        return None
    last, answered = there[-1], math.fsum(o.answered for o in there)
    waited_ms = math.fsum(o.answered * (o.latency_ms or 0.0) for o in there)
    return msgspec.structs.replace(
        last,
        requests=math.fsum(o.requests for o in there),
        together=_all_together([o.together for o in there]),
        answered=answered,
        in_time=math.fsum(o.in_time or 0.0 for o in there) if last.in_time is not None else None,
        samples=math.fsum(o.samples for o in there),
        compute_s=math.fsum(o.compute_s for o in there),
        latency_ms=waited_ms / answered if answered else None,
        own_load=math.fsum(o.own_load for o in there) / len(seen),
        mixed=len(seen) > 1 or last.mixed,
    )


def _all_together(seen: Sequence[Together | None]) -> Together | None:
    known = [each for each in seen if each is not None]
    if not known:
        return None
    return Together(
        requests=math.fsum(each.requests for each in known),
        pairs=math.fsum(each.pairs for each in known),
    )


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy has learnt about the device; nothing at the start."""

    period_s: float = 0.0
    """Time between the last two decisions; the next one comes no sooner."""

    watched_s: float = 0.0
    """For how long the device has been watched."""

    slowdown: Slowdowns = Slowdowns()
    slowdown_lately: Spread = Spread()
    """Recent distribution of the part of the slowdown that all variants share."""

    scatter: Scatter = Scatter()
    """Scatter of single answers about the mean of their period."""

    demand: Rate = Rate()
    demand_lately: Spread = Spread()
    """Recent distribution of the expected rate."""

    request_samples: float = 1.0
    """Samples in a request, on average."""

    waiting: float = 0.0
    """Requests that wait for an answer."""

    memory_lately: Spread = Spread()
    """Recent distribution of one over the free memory, in GiB."""

    other_load: float = 0.0
    """Share of the processor that other programs keep busy."""

    waits: Line = Line(
        base=0.0, slope=WAIT_PRIOR, base_variance=BESIDE_SIGMA_MS**2, slope_variance=WAIT_SIGMA**2
    )
    """Latency minus the time in the runtime, in ms, over `use / (1 - use)` service times. The base
    of this line is no wait, but the way to the worker and back."""

    record: Record = Record()
    cpu_share: float = 1.0
    clock_limit: float | None = None
    """The last limit of the processor's frequency, over its greatest."""

    free_bytes: int | None = None
    """Memory that would be free with no variant loaded."""

    taken_peak: Peak = Peak()
    """Peak of negative `free_bytes`: it keeps the recent moment with the least free memory."""

    heat: HeatFit = HeatFit()
    throttling: Throttling = Throttling()
    battery: BatteryFit = BatteryFit()

    def update(
        self,
        health: HealthSnapshot,
        observed: Observed | None,
        period_s: float,
        others: Others | None = None,
        device: Estimates | None = None,
    ) -> Estimates:
        """Return the estimates after a period.

        Args:
            health: Readings at the end of the period.
            observed: Observations of the period; None if nothing served.
            period_s: Length of the period in seconds; 0 before the first decision.
            others: What the other models took in it; None if none of them served.
            device: What another model knows of the device after it; None to learn that here.
        """
        learnt = self._served(observed, period_s) if observed and period_s else self
        limit = health.cpu_frequency_limit_ratio
        # Other latencies follow at once; those of this period were measured under both clocks.
        step = math.log(self.clock_limit / limit) if limit and self.clock_limit else 0.0
        learnt = msgspec.structs.replace(
            learnt,
            # One that was long, because a variant was loaded, says little of the next.
            period_s=min(period_s, 2.0 * self.period_s) if self.period_s else period_s,
            slowdown=learnt.slowdown.shifted(step),
        )
        there = [each for each in (observed, others) if each is not None]
        load, other = self._loads(health, there, period_s)
        demand_per_s = learnt.demand.mean_per_s if observed and period_s else None
        if device is not None:
            usual = self.battery.usual.update(health.local_s, load, other, demand_per_s, period_s)
            return learnt.on(device, usual)
        free = _free_bytes(health, there)
        # Where nothing is left, nobody knows how much is lacking.
        told_free = free if health.memory_available_bytes else None
        return msgspec.structs.replace(
            learnt,
            watched_s=self.watched_s + period_s,
            other_load=other,
            free_bytes=free,
            taken_peak=self.taken_peak.update(
                None if told_free is None else -float(told_free), period_s
            ),
            memory_lately=self.memory_lately
            if told_free is None
            else self.memory_lately.update(GIB / max(told_free, 1), period_s, fades_s=LONG_S),
            clock_limit=limit or self.clock_limit,
            throttling=self.throttling.update(is_slowed(health), health.headroom, load, period_s),
            heat=self.heat.update(
                health.headroom,
                load,
                period_s,
                fan=self.heat.fan if health.fan_ratio is None else health.fan_ratio > 0.0,
            ),
            battery=self.battery.update(
                health,
                load,
                period_s,
                demand_per_s=demand_per_s,
                other_load=other,
            ),
        )

    def on(self, device: Estimates, usual: Usual) -> Estimates:
        """Return what is known of a model, with what another one knows of their device.

        Args:
            device: What the other one knows.
            usual: What is usual here: of the requests each model has its own.
        """
        return msgspec.structs.replace(
            self,
            battery=msgspec.structs.replace(device.battery, usual=usual),
            **{name: getattr(device, name) for name in OF_DEVICE},
        )

    def _loads(
        self, health: HealthSnapshot, there: Sequence[Observed | Others], period_s: float
    ) -> tuple[float, float]:
        """Return how busy the processor was, and how busy programs that are no models kept it."""
        own = math.fsum(
            each.own_load if isinstance(each, Observed) else each.load for each in there
        )
        busy = health.load_ratio if health.cpu_busy_ratio is None else health.cpu_busy_ratio
        # Without a reading, the load of other programs stays as it was.
        load = min(own + self.other_load if busy is None else busy, 1.0)
        # A worker that loads is busy too, and is no other program.
        told = period_s == 0.0 or (bool(there) and not any(each.mixed for each in there))
        return load, max(load - own, 0.0) if told and busy is not None else self.other_load

    @property
    def wait_factor(self) -> float:
        """Mean wait over `use / (1 - use)` service times: as theory has it, and as was seen."""
        theory = wait_factor(min(self.demand.dispersion, 1.0), self.scatter.variance)
        seen = 1.0 / max(self.waits.slope_variance, TINY_VARIANCE)
        guess = 1.0 / THEORY_SIGMA**2
        return max((seen * self.waits.slope + guess * theory) / (seen + guess), 0.0)

    @property
    def demand_per_s(self) -> float:
        """The expected requests per second."""
        return self.demand.mean_per_s

    def of_other_variants(self) -> Estimates:
        """Return what still holds for other variants, without what was learnt of latencies."""
        return msgspec.structs.replace(
            self,
            slowdown=Slowdowns(),
            slowdown_lately=Spread(),
            scatter=Scatter(),
            record=Record(),
        )

    def _served(self, observed: Observed, period_s: float) -> Estimates:
        demand = self.demand.update(observed.requests, period_s, observed.together)
        nothing = observed.samples <= 0.0 or observed.answered <= 0.0 or observed.compute_s <= 0.0
        size = self.request_samples if nothing else _samples(observed)
        learnt = msgspec.structs.replace(
            self,
            demand=demand,
            demand_lately=self.demand_lately.update(
                max(demand.mean_per_s, LEAST_RATE), period_s, fades_s=LONG_S
            ),
            waiting=observed.waiting,
            request_samples=_falling_slowly(self.request_samples, size),
            cpu_share=observed.cpu_share,
        )
        alone_ms = observed.alone_ms or 0.0
        if observed.mixed or nothing or alone_ms <= 0.0:
            return learnt
        # A request of many samples takes long: that is no slow device.
        measured_ms = observed.compute_s / observed.samples * MS_PER_S
        factor = min(max(measured_ms / alone_ms, FASTEST), SLOWEST)
        service_ms = factor * alone_ms * size
        slowdown = self.slowdown.update(observed.variant, math.log(factor), period_s)
        common = factor / math.exp(slowdown.own(observed.variant))
        return msgspec.structs.replace(
            learnt,
            slowdown=slowdown,
            slowdown_lately=self.slowdown_lately.update(common, period_s, fades_s=LONG_S),
            scatter=self.scatter.update(observed.log_variance, observed.answered, period_s),
            waits=_waits(self.waits, observed, service_ms, period_s, demand.batches.mean),
        )


def _samples(observed: Observed) -> float:
    return min(max(observed.samples / observed.answered, 1.0), MOST_SAMPLES)


def _falling_slowly(known: float, measured: float) -> float:
    """Return an estimate that follows a rise at once, and a fall only by half in each period."""
    return measured if measured >= known else 0.5 * (known + measured)


def _waits(
    known: Line, observed: Observed, service_ms: float, period_s: float, batch: float
) -> Line:
    known = known.drifted(BESIDE_DRIFT * period_s, WAIT_DRIFT * period_s)
    use = observed.requests / period_s * service_ms / MS_PER_S
    if observed.latency_ms is None or use > MOST_USE:
        return known
    busy_ms = service_ms * use / (1.0 - use)
    # Waits deviate by as much as their mean, and are correlated over `service / (1 - use)^2`.
    others_ms = (batch - 1.0) * service_ms / (1.0 - use)
    wait_ms = max(known.slope, LEAST_WAIT) * busy_ms + others_ms
    rest_ms = wait_ms * math.sqrt(batch * service_ms / MS_PER_S / period_s) / (1.0 - use)
    noise = READING_MS**2 + rest_ms**2
    most_ms = known.at(busy_ms) + MOST_SURPRISE * math.sqrt(known.variance_at(busy_ms) + noise)
    waited_ms = min(max(observed.latency_ms - service_ms, 0.0) - others_ms, most_ms)
    return known.update(busy_ms, waited_ms, gain=1.0, noise=noise)


def _free_bytes(health: HealthSnapshot, there: Sequence[Observed | Others]) -> int | None:
    available = health.memory_available_bytes
    return available + sum(each.held_bytes for each in there) if available else available
