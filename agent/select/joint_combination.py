"""The combination of what several models serve: what it takes, and what could take its place. Pure.

Models have numbers, in their order; a pick is the number of one of a model's options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from agent.select.adaptive import IDLE_PER_S
from agent.select.joint_costs import DeviceCost, Party
from agent.select.joint_known import Model
from agent.select.joint_search import Found, Option, best
from agent.select.others import Others
from agent.select.outlook import Own


class Combination:
    """What some models serve now, and what else they could.

    Args:
        models: What is known of each; each has something to serve. One or more.
        given: What each of the other models takes.
    """

    def __init__(self, models: Sequence[Model], given: Mapping[str, Others]) -> None:
        self.given = given
        self.models = models
        self.taken = Others(
            load=math.fsum(o.load for o in given.values()),
            usual_load=math.fsum(o.usual_load for o in given.values()),
            held_bytes=sum(o.held_bytes for o in given.values()),
        )
        self.per_s = [
            m.asked.spec.shared.weight * max(m.known.demand_per_s, IDLE_PER_S) for m in models
        ]
        self.owns = [m.options for m in models]
        self.serving = [m.serving for m in models]
        self.now = {m: pick for m, pick in enumerate(self.serving) if pick is not None}
        """The picks that hold, as far as they are decided."""

        self.options = [self._options_of(m) for m in range(len(models))]
        self.device = self._device_cost()

    def sums(self, but: int | None = None) -> Others:
        """Return what the models take now, one of them left out."""
        listed = [self.options[m][pick] for m, pick in self.now.items() if m != but]
        return Others(
            load=math.fsum(o.load for o in listed),
            usual_load=math.fsum(o.usual_load for o in listed),
            held_bytes=sum(int(o.held_bytes) for o in listed),
        )

    def view(self, m: int) -> Others:
        """Return what a model sees of the others as they will be."""
        sums = self.sums(but=m)
        return Others(
            load=sums.load + self.taken.load,
            usual_load=sums.usual_load + self.taken.usual_load,
            held_bytes=sums.held_bytes + self.taken.held_bytes,
        )

    def harm(self, m: int) -> Callable[[Own], float]:
        """Return what tells how much a variant of a model costs the others."""
        sums, device = self.sums(but=m), self.device

        def harm(own: Own) -> float:
            held = sums.held_bytes + (own.candidate.peak_memory_bytes or 0)
            return device.harm(m, sums.load + own.load, sums.usual_load + own.usual_load, held)

        return harm

    def best(self, allowed: Sequence[Sequence[int]], *, rises: bool) -> Found:
        """Return the best combination of some options."""
        options = [
            [self.options[m][n]._replace(rises=self.options[m][n].rises and not rises)
             for n in numbers]
            for m, numbers in enumerate(allowed)
        ]  # fmt: skip
        found = best(options, self.device)
        picks = tuple(allowed[m][pick] for m, pick in enumerate(found.picks))
        return found._replace(picks=picks)

    def changes(self, found: Found) -> dict[int, int]:
        """Return the options of the models that have another one than now; no pinned ones."""
        return {
            m: pick
            for m, pick in enumerate(found.picks)
            if self.now.get(m) != pick and not self.is_pinned(m)
        }

    def is_pinned(self, m: int) -> bool:
        """Tell whether a model has a variant that an operator pinned."""
        return (self.models[m].asked.context.pinned or "") in self.models[m].owns

    def _options_of(self, m: int) -> list[Option]:
        serving, per_s = self.serving[m], self.per_s[m]
        now = self.models[m].known.heat.now
        is_void = now is not None and now.mean >= 1.0
        current = None if serving is None else self.owns[m][serving].candidate.latency_p50_ms
        return [
            Option(
                name=own.candidate.name,
                loss=per_s * own.loss(void=is_void),
                load=own.load,
                usual_load=own.usual_load,
                held_bytes=own.candidate.peak_memory_bytes or 0,
                rises=serving is not None
                and number != serving
                and _is_slower(own.candidate.latency_p50_ms, current),
            )
            for number, own in enumerate(self.owns[m])
        ]

    def _device_cost(self) -> DeviceCost:
        parties = [
            Party(per_s, m.asked.spec, m.known)
            for per_s, m in zip(self.per_s, self.models, strict=True)
        ]
        most = Others(
            load=math.fsum(max(o.load for o in options) for options in self.options),
            usual_load=math.fsum(max(o.usual_load for o in options) for options in self.options),
        )
        return DeviceCost(parties, self.taken, most)


def _is_slower(ours: float | None, theirs: float | None) -> bool:
    """Tell whether a latency is more than another one; one that is unknown counts as more."""
    return ours is None or theirs is None or ours > theirs
