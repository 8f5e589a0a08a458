"""All models of a device: the same readings for each, and what they ask for together.

Rules:
- Readings are of the device, and they are the same for every model. One decision is made for all
  models: they share one heat sink, one battery, one memory and one processor.
- What needs less memory than before changes first, so that there is room for the others.
- What holds for the device is the strictest of what its models ask for.
"""

from __future__ import annotations

import threading
from typing import Final

from agent.select.adaptation import Adaptation
from agent.select.deciding import Asking
from agent.select.decisions import Decision, PolicyContext
from agent.select.learnt import Learnt
from agent.select.levers import Levers
from agent.select.readings import possible
from agent.select.strain import levers_of
from agent.serve.advice import Advice
from wire.clock import Clock
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

NOTHING_YET: Final = "no package is in service yet"
SEVERAL: Final = 2


class Adaptations:
    """The adaptation of each model of this device. For any thread.

    Args:
        clock: For the time of the first readings.
    """

    def __init__(self, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._models: dict[str, Adaptation] = {}
        self._learnt = Learnt()
        self._health = HealthSnapshot(at_s=clock.now_s())

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
        self._health = possible(health)
        models = self._models
        if len(models) < SEVERAL:  # a decision for one model is that of its policy
            for each in models.values():
                each.tick(health)
            return
        # Devices with one model, which are most, have no need of it in memory.
        from agent.select.joint import choose_jointly

        for each in models.values():
            each.note(health)
            each.supervise()
        asking = {name: found for name, each in models.items() if (found := each.asked())}
        decisions = choose_jointly(self._health, {n: each.asked for n, each in asking.items()})
        for name in sorted(asking, key=lambda name: _gain_bytes(asking[name], decisions[name])):
            models[name].follow(asking[name], decisions[name])


def _gain_bytes(asking: Asking, decision: Decision) -> int:
    """Return how much more memory a decision needs than what serves now."""
    needs = {c.name: c.peak_memory_bytes or 0 for c in asking.asked.candidates}
    before, after = asking.asked.context.variant, decision.variant
    return needs.get(after or "", 0) - needs.get(before or "", 0)
