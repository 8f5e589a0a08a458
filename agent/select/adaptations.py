"""All models of a device: the same readings for each, and what they ask for together.

Rules:
- Readings are of the device, and they are the same for every model. One decision is made for all
  models: they share one heat sink, one battery, one memory and one processor.
- While nobody asks and the readings stay as they were, a decision is made every few seconds.
- What needs less memory than before changes first, so that there is room for the others.
- What holds for the device is the strictest of what its models ask for.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.select.adaptation import Adaptation
from agent.select.deciding import Asking
from agent.select.decisions import Decision, PolicyContext
from agent.select.learnt import Learnt
from agent.select.levers import Levers
from agent.select.pace import REST_S, may_rest
from agent.select.readings import possible
from agent.select.strain import levers_of
from agent.serve.advice import Advice
from wire.clock import Clock
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

NOTHING_YET: Final = "no package is in service yet"
SEVERAL: Final = 2
TICK_S: Final = 0.5
"""Half the time between two readings: a decision that is nearly due is not put off to the next."""


class Adaptations:
    """The adaptation of each model of this device. For any thread.

    Args:
        clock: For the time of the first readings, and of the last decision.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._models: dict[str, Adaptation] = {}
        self._learnt = Learnt()
        self._health = HealthSnapshot(at_s=clock.now_s())
        self._decided: tuple[float, HealthSnapshot] = (-math.inf, self._health)
        """When the last decision was made, and by which readings."""

        self._busy: list[float] = []
        """How busy the processor was in each period since then."""

    def add(self, name: str, adaptation: Adaptation) -> None:
        """Let a model adapt from now on."""
        adaptation.note(self._health)
        adaptation.recall(self.learnt)
        with self._lock:
            self._models = dict(sorted({**self._models, name: adaptation}.items()))

    def remove(self, name: str) -> None:
        """Let a model adapt no more."""
        with self._lock:
            self._models = {key: each for key, each in self._models.items() if key != name}

    @property
    def health(self) -> HealthSnapshot:
        """The newest readings."""
        return self._health

    @property
    def policy(self) -> PolicySpec:
        """The policy that keeps most memory free; the default one without a model."""
        policies = [each.policy for each in self._models.values()]
        return max(policies, key=lambda spec: spec.low_memory_bytes, default=PolicySpec())

    @property
    def levers(self) -> Levers:
        """What is in force against heat, a low battery and load: the most of any model."""
        found = [each.decision.levers for each in self._models.values() if each.decision]
        if not found:  # nothing has served yet: the readings alone tell
            return levers_of(self._health, self.policy, PolicyContext())
        return max(found, key=lambda levers: len(levers.causes))

    @property
    def learnt(self) -> Learnt:
        """What was learnt of the device and may be kept over a restart."""
        found = (each.learnt for each in self._models.values())
        return next((learnt for learnt in found if learnt != Learnt()), self._learnt)

    def recall(self, learnt: Learnt) -> None:
        """Begin with what was learnt before a restart."""
        self._learnt = learnt
        for each in self._models.values():
            each.recall(learnt)

    def held_bytes(self, but: str) -> dict[str, int]:
        """Return the memory that the workers of each model but one hold, if any."""
        held = {name: each.held_bytes for name, each in self._models.items() if name != but}
        return {name: size for name, size in held.items() if size}

    def advice(self) -> Advice:
        """Return what applications should do now, whichever model they use."""
        each = {
            name: model.advice()
            for name, model in self._models.items()
            if model.is_loaded and not model.rests
        }
        if not each:
            return Advice(defer=True, reasons=(NOTHING_YET,))
        if len(each) == 1:
            return next(iter(each.values()))
        return Advice(
            sampling_ratio=min(advice.sampling_ratio for advice in each.values()),
            defer=any(advice.defer for advice in each.values()),
            reasons=tuple(f"{name}: {why}" for name, one in each.items() for why in one.reasons),
        )

    def note(self, health: HealthSnapshot) -> None:
        """Keep new readings for the next decisions."""
        self._health = possible(health)
        for each in self._models.values():
            each.note(health)

    def tick(self, health: HealthSnapshot) -> None:
        """Let every model supervise its workers, and choose a variant of each together.

        Args:
            health: The newest readings.
        """
        self._health, models = possible(health), self._models
        for each in models.values():
            each.note(health)
            each.supervise()
        if self._may_rest():
            return
        self._health = health = self._over_the_rest(self._health)
        if len(models) < SEVERAL:  # a decision for one model is that of its policy
            for each in models.values():
                each.decide(health)
            return
        # Devices with one model, which are most, have no need of it in memory.
        from agent.select.joint import choose_jointly

        for each in models.values():
            each.note(health)
        asking = {name: found for name, each in models.items() if (found := each.asked())}
        decisions = choose_jointly(self._health, {n: each.asked for n, each in asking.items()})
        free_bytes = self._health.memory_available_bytes
        for name, decision in in_turn(asking, decisions, free_bytes):
            models[name].follow(asking[name], decision)

    def _may_rest(self) -> bool:
        """Tell whether this period needs no decision, and note it if so."""
        decided_s, by = self._decided
        is_due = self._clock.monotonic_s() - decided_s >= REST_S - TICK_S
        if is_due or not all(each.is_calm for each in self._models.values()):
            return False
        if not may_rest(by, self._health, self.policy):
            return False
        self._busy.append(self._health.cpu_busy_ratio or 0.0)
        return True

    def _over_the_rest(self, health: HealthSnapshot) -> HealthSnapshot:
        """Return readings that hold for the whole time since the last decision."""
        self._decided = (self._clock.monotonic_s(), health)
        seen, self._busy = self._busy, []
        if not seen or health.cpu_busy_ratio is None:
            return health
        mean = (math.fsum(seen) + health.cpu_busy_ratio) / (len(seen) + 1)
        return msgspec.structs.replace(health, cpu_busy_ratio=mean)


def in_turn(
    asking: Mapping[str, Asking], decisions: Mapping[str, Decision], free_bytes: int | None
) -> list[tuple[str, Decision]]:
    """Return the decisions in the order in which they are to be done, each with what is left then.

    Args:
        asking: What each decision is about.
        decisions: What was decided, by the name of the model.
        free_bytes: Memory that is free before the first; None if that is not known.

    Returns:
        Those first that free memory. Where a new worker does not fit beside the old one any more,
        because models before it have taken the room, the old one ends first.
    """
    order = sorted(asking, key=lambda name: _gain_bytes(asking[name], decisions[name]))
    found = []
    for name in order:
        decision = decisions[name]
        if free_bytes is not None:
            decision = _into(free_bytes, asking[name], decision)
            free_bytes -= _gain_bytes(asking[name], decision)
        found.append((name, decision))
    return found


def _into(free_bytes: int, asking: Asking, decision: Decision) -> Decision:
    """Let the old worker end first, if the new one does not fit beside it."""
    switch, before = decision.switch, asking.asked.context.variant
    if switch is None or before is None or _need_bytes(asking, decision.variant) <= free_bytes:
        return decision
    return msgspec.structs.replace(decision, switch=msgspec.structs.replace(switch, gap=True))


def _gain_bytes(asking: Asking, decision: Decision) -> int:
    """Return how much more memory a decision needs than what serves now."""
    before = asking.asked.context.variant
    return _need_bytes(asking, decision.variant) - _need_bytes(asking, before)


def _need_bytes(asking: Asking, variant: str | None) -> int:
    needs = {c.name: c.peak_memory_bytes or 0 for c in asking.asked.candidates}
    return needs.get(variant or "", 0)
