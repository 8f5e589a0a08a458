"""What a model decides with: its variants, what was seen since the last time, what it remembers.

Rules:
- The decision itself is taken elsewhere (`agent.select.policies`, `agent.select.joint`); here are
  its inputs and what comes of it.
- What was counted since the last decision counts once: who asks must take a decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from agent.packages import Package
from agent.ports import ModelServerPort, Running
from agent.select.decisions import Asked, Candidate, Decision, PolicyContext, PolicyState, candidate
from agent.select.learnt import Learnt
from agent.select.levers import Levers
from agent.select.meter import Meter, observed
from agent.select.policies import POLICIES
from agent.serve.advice import Advice
from agent.serve.benches import Benches
from wire.clock import Clock
from wire.health import HealthSnapshot
from wire.package.variant import Variant
from wire.policy import PolicySpec

CALM_AFTER_S: Final = 60.0
"""After a switch it takes some time until all that was put off by it is decided."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The package in service and its variants that may run here."""

    package: Package
    variants: tuple[Variant, ...]
    latencies_ms: Mapping[str, float]
    """Latencies that were measured on this device, by variant."""

    whole: bool
    """Whether all that it needs of the package is here."""


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision for all models needs of one."""

    loaded: Loaded
    """What it is about."""

    asked: Asked


class Deciding:
    """The inputs and the memory of the decisions about one model.

    Args:
        model_server: Knows what serves, and runs requests as decided.
        meter: Counts the requests that it answers.
        benches: Which variants rest.
        clock: For how long ago something was.
        cpu_share: Share of the processor that one computing request takes.
    """

    def __init__(
        self,
        model_server: ModelServerPort,
        meter: Meter,
        benches: Benches,
        clock: Clock,
        *,
        cpu_share: float,
    ) -> None:
        self._model_server = model_server
        self._meter = meter
        self._benches = benches
        self._clock = clock
        self._cpu_share = cpu_share
        self._state = PolicyState()
        self._switched_s = self._decided_s = float("-inf")
        self.health = HealthSnapshot(at_s=clock.now_s())
        """The newest readings."""

        self.last: Decision | None = None
        """The newest decision."""

        self.policy = PolicySpec()
        self._decided_by = self.policy
        self.pinned: str | None = None
        self._decided_pin: str | None = None

    @property
    def learnt(self) -> Learnt:
        """What was learnt and may be kept over a restart."""
        return Learnt.of(self._state.estimates.battery)

    def recall(self, learnt: Learnt) -> None:
        """Begin with what was learnt before a restart."""
        estimates = msgspec.structs.replace(self._state.estimates, battery=learnt.fit())
        self._state = msgspec.structs.replace(self._state, estimates=estimates)

    def begin(self) -> None:
        """Forget what is known of the variants alone: others come into service."""
        estimates = self._state.estimates.of_other_variants()
        self._state = msgspec.structs.replace(self._state, estimates=estimates)

    def switched(self) -> None:
        """Note that another variant serves from now on, or none."""
        self._switched_s = self._clock.monotonic_s()

    def is_calm(self, serving: str | None) -> bool:
        """Tell whether nothing was asked since the last decision, which is done and still holds.

        Args:
            serving: The variant that serves now.
        """
        last = self.last
        return (
            last is not None
            and serving is not None
            and last.variant == serving
            and last.levers == Levers()
            and self.policy == self._decided_by
            and self.pinned == self._decided_pin
            and self._model_server.waiting == 0
            and self._meter.is_quiet
            and self._clock.monotonic_s() - self._switched_s >= CALM_AFTER_S
        )

    def advice(self, serving: str | None) -> Advice:
        """Return what applications should do now.

        Args:
            serving: The variant that serves now.
        """
        decision = self.last
        if decision is None:
            return Advice(defer=True, reasons=("no package is in service yet",))
        levers, wanted = decision.levers, decision.variant
        # What could wait for a better variant should not just miss it.
        changing = () if serving == wanted else (f"switch: {wanted} is being started",)
        return Advice(
            sampling_ratio=levers.sampling_ratio,
            defer=levers.defer or bool(changing),
            reasons=(*levers.reasons, *changing),
        )

    def decide(self, loaded: Loaded, *, entering: bool = False) -> Decision:
        """Decide for this model alone, and remember it.

        Args:
            loaded: What is in service, or comes into it.
            entering: Whether it comes into service: nothing of it serves yet.

        Returns:
            The decision.
        """
        asked = self.asked(loaded, entering=entering)
        decision = POLICIES[self.policy.kind](self.health, *asked)
        self.take(decision)
        return decision

    def asked(self, loaded: Loaded, *, entering: bool = False) -> Asked:
        """Return the inputs of a decision; see `decide`."""
        workers = self._model_server.most_workers(self.policy.shared.workers)
        candidates = tuple(_in_workers(each, workers) for each in self.candidates(loaded))
        return Asked(candidates, self.policy, self._context(candidates, entering=entering))

    def take(self, decision: Decision) -> None:
        """Remember a decision, and run requests as it says."""
        self._state = decision.state
        self.last = decision
        self._decided_by, self._decided_pin = self.policy, self.pinned
        levers = decision.levers
        shared, free_bytes = self.policy.shared, self.health.memory_available_bytes
        # A policy counts what the version before holds as free, because that can end.
        is_short = decision.stream or (
            free_bytes is not None and free_bytes < self.policy.low_memory_bytes
        )
        self._model_server.run_requests(
            Running(
                stream=decision.stream,
                joins=levers.joins,
                longest_wait_s=levers.longest_wait_s,
                workers=shared.workers,
                keeps_previous=shared.keep_previous and not is_short,
            )
        )

    def candidates(self, loaded: Loaded) -> tuple[Candidate, ...]:
        """Return the variants, benched ones with the reason."""
        self._benches.spare(loaded.package.digest, [v.name for v in loaded.variants])
        benched = self._benches.of(loaded.package.digest)
        return tuple(
            candidate(
                v, benched=benched.get(v.name, ""), latency_ms=loaded.latencies_ms.get(v.name)
            )
            for v in loaded.variants
        )

    def _context(self, candidates: Sequence[Candidate], *, entering: bool) -> PolicyContext:
        now_s = self._clock.monotonic_s()
        period_s = max(now_s - self._decided_s, 0.0) if math.isfinite(self._decided_s) else 0.0
        self._decided_s = now_s
        limit_ms = self.policy.aim.deadline_ms
        self._meter.deadline_ms = math.inf if limit_ms is None else limit_ms
        since, active = self._meter.take(), self._model_server.active
        name = active.variant.name if active is not None and not entering else None
        return PolicyContext(
            variant=name,
            since_switch_s=now_s - self._switched_s,
            state=self._state,
            period_s=period_s,
            observed=observed(
                since,
                name,
                alone_ms=next((c.latency_p50_ms for c in candidates if c.name == name), None),
                held_bytes=self._model_server.held_bytes,
                period_s=period_s,
                cpu_share=self._cpu_share,
                waiting=self._model_server.waiting,
                workers=self._model_server.most_workers(self.policy.shared.workers),
            ),
            pinned=self.pinned,
            is_new_policy=self.policy != self._decided_by,
            levers=self.last.levers if self.last is not None else Levers(),
        )


def _in_workers(c: Candidate, workers: int) -> Candidate:
    """Return a variant as it is in several workers: each needs its memory."""
    if workers == 1 or c.peak_memory_bytes is None:
        return c
    return msgspec.structs.replace(c, peak_memory_bytes=c.peak_memory_bytes * workers)
