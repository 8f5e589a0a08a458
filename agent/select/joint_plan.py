"""Plans for several models together what none of them can decide alone.

Rules:
- Pure.
- A combination that has to go at once is left by the best one that relieves the device: under heat
  no model gets more work by it.
- A model that has to begin takes what suits beside the others; only if nothing fits, they change.
- In all else each model decides by the policy of a single one; several change together only where
  that has paid for all their switches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from agent.select import limits
from agent.select.adaptive import CLEARLY, PAID, begins_warm, rest_s
from agent.select.decisions import by_latency
from agent.select.joint_combination import Combination
from agent.select.joint_search import Found, best, cost_of
from agent.select.limits import Fault
from agent.select.outlook import PARKED
from agent.select.switch_costs import switch_answers

SEVERAL: Final = 2

SURE: Final = 0.01
"""Share of the answers that several models must lose less if they change together: what is
predicted of several variants that do not serve is less sure than of one."""


class Plan(NamedTuple):
    """What was decided for all together."""

    picks: Mapping[int, int] = {}
    """The options of the models that were told theirs; the others decide beside them."""

    fault: Fault | None = None
    """Why the combination that serves had to go at once, if it had to."""

    regret: float = 0.0
    found: Found | None = None
    """The best combination; None if nobody looked for it."""


class Planner:
    """Makes a plan for a combination.

    Args:
        combination: What the models serve.
    """

    def __init__(self, combination: Combination) -> None:
        self._all = combination

    def plan(self) -> Plan:
        """Decide what has to be decided for all together."""
        fault = self._urgent()
        if fault is not None:
            return self._rescue(fault)
        if len(self._all.now) < len(self._all.models):
            return self._begun()
        if len(self._all.models) < SEVERAL:
            return Plan()
        return self._changed()

    def _urgent(self) -> Fault | None:
        """Return why the combination that serves has to go at once; None if it need not."""
        if not self._all.now:
            return None
        sums, known = self._all.sums(), self._all.models[0].known
        heat = limits.heat(known, min(known.other_load + self._all.taken.load + sums.load, 1.0))
        if not self._all.device.fits(sums.held_bytes):
            spec, held = self._all.models[0].asked.spec, self._all.taken.held_bytes
            return limits.memory(sums.held_bytes, known, spec, held_bytes=held, lately=False)
        return heat if heat is not None and heat.urgent else None

    def _rescue(self, fault: Fault) -> Plan:
        """Return where to go from a combination that has to go."""
        allowed = [
            [number for number in range(len(options)) if self._may_leave_for(m, number, fault)]
            for m, options in enumerate(self._all.options)
        ]
        found = self._all.best(allowed, rises=True)
        before = cost_of(
            [
                [options[self._all.now[m]]]
                for m, options in enumerate(self._all.options)
                if m in self._all.now
            ],
            (0,) * len(self._all.now),
            self._all.device,
        ) + math.fsum(per_s for m, per_s in enumerate(self._all.per_s) if m not in self._all.now)
        held = math.fsum(
            self._all.options[m][pick].held_bytes for m, pick in enumerate(found.picks)
        )
        is_sound = fault.kind == "heat" or self._all.device.fits(held)
        margin = 0.0 if is_sound else CLEARLY * math.fsum(self._all.per_s)
        if found.cost >= before - margin and len(self._all.now) == len(self._all.models):
            return Plan(fault=fault, found=found)
        return Plan(picks=self._all.changes(found), fault=fault, found=found)

    def _may_leave_for(self, m: int, number: int, fault: Fault) -> bool:
        """Tell whether an option is a way from a combination that has to go."""
        model, options, now = self._all.models[m], self._all.options[m], self._all.now.get(m)
        if now is None or number == now:
            return True
        if model.is_resting:
            return False
        if fault.kind != "heat":
            return True
        is_way = options[number].load <= options[now].load
        return is_way and (options[number].name != PARKED or model.is_felt)

    def _begun(self) -> Plan:
        """Return what begins where nothing serves yet."""
        warm = [begins_warm(m.known) for m in self._all.models]
        allowed = [
            [self._all.now[m]] if m in self._all.now
            else [self._lightest(m)] if warm[m]
            else list(range(len(options)))
            for m, options in enumerate(self._all.options)
        ]  # fmt: skip
        found = self._all.best(allowed, rises=True)
        held = math.fsum(
            self._all.options[m][pick].held_bytes for m, pick in enumerate(found.picks)
        )
        if not self._all.device.fits(held):
            found = self._all.best(
                [list(range(len(options))) for options in self._all.options], rises=True
            )
        return Plan(picks=self._all.changes(found), found=found)

    def _lightest(self, m: int) -> int:
        variants = range(len(self._all.models[m].owns))
        listed = [number for number in variants if number < len(self._all.owns[m])]
        return min(listed, key=lambda number: by_latency(self._all.owns[m][number].candidate))

    def _changed(self) -> Plan:
        """Return the changes of several models that have paid for themselves, together."""
        serving = [self._all.now[m] for m in range(len(self._all.models))]
        # Several at once may only change places: more work is tried by one after the other.
        self._all.device.most_load = self._all.sums().load
        found = best(self._all.options, self._all.device, serving)
        cost, picks = (
            cost_of(self._all.options, serving, self._all.device),
            self._all.changes(found),
        )
        gain = cost - found.cost - SURE * math.fsum(self._all.per_s)
        steps = ([*serving[:m], pick, *serving[m + 1 :]] for m, pick in picks.items())
        if len(picks) < SEVERAL or gain <= 0.0 or any(
            cost_of(self._all.options, step, self._all.device) < cost for step in steps
        ):  # fmt: skip
            return Plan(found=found)  # one after the other gets there, and sees what comes of it
        contexts = [m.asked.context for m in self._all.models]
        before = min(context.state.regret for context in contexts)
        regret = before + gain * max(context.period_s for context in contexts)
        waits = any(contexts[m].since_switch_s < self._rest_s(m) for m in picks)
        if waits or regret < PAID * math.fsum(self._switch(m, pick) for m, pick in picks.items()):
            return Plan(regret=regret, found=found)
        return Plan(picks=picks, found=found)

    def _rest_s(self, m: int) -> float:
        model = self._all.models[m]
        is_parked = model.asked.context.state.parked
        return rest_s(model.asked.spec, model.known, is_parked=is_parked)

    def _switch(self, m: int, pick: int) -> float:
        """Return what a switch of a model costs, in weighted answers."""
        before, after = (
            self._all.owns[m][self._all.now[m]].candidate,
            self._all.owns[m][pick].candidate,
        )
        per_s = self._all.models[m].known.demand_per_s
        cost = switch_answers(before.load_s, after.load_s, per_s)
        return self._all.models[m].asked.spec.shared.weight * cost
