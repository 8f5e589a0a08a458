"""Decides for several models: what all of them do, and what each one does beside the others.

Rules:
- Pure.
- A combination that has to go at once is left by the best one that relieves the device: under heat
  no model gets more work by it.
- A model that has to begin takes what suits beside the others; only if nothing fits, they change.
- In all else each model decides by the policy of a single one, one after the other: first those
  for which the best combination has something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from agent.select import limits
from agent.select.adaptive import (
    CLEARLY,
    IDLE_PER_S,
    PAID,
    View,
    begins_warm,
    decide,
    rest_s,
    switch_answers,
)
from agent.select.decisions import Decision, by_latency
from agent.select.explained import DEVICE, first, leaves, shared, yields
from agent.select.joint_costs import DeviceCost, Party
from agent.select.joint_known import Model
from agent.select.joint_search import Found, Option, best, cost_of
from agent.select.limits import Fault
from agent.select.others import Others
from agent.select.outlook import PARKED, Own, Prediction, beside, parked
from wire.health import HealthSnapshot

SEVERAL: Final = 2

SURE: Final = 0.01
"""Share of the answers that several models must lose less if they change together: what is
predicted of several variants that do not serve is less sure than of one."""


class Cause(NamedTuple):
    """What several models together do to the device."""

    text: str
    kind: str
    """Of the fault."""


TOGETHER: Final = Cause("together they take more than the device gives without loss", "heat")


class Plan(NamedTuple):
    """What was decided for all together."""

    picks: Mapping[int, int] = {}
    """The options of the models that were told theirs; the others decide beside them."""

    fault: Fault | None = None
    """Why the combination that serves had to go at once, if it had to."""

    regret: float = 0.0
    found: Found | None = None
    """The best combination; None if nobody looked for it."""


class Together:
    """One decision for several adaptive models.

    Args:
        health: The newest readings.
        models: What is known of each.
        given: What each of the other models takes.
    """

    def __init__(
        self, health: HealthSnapshot, models: Sequence[Model], given: Mapping[str, Others]
    ) -> None:
        self._health, self._given = health, given
        self._idle = [m for m in models if not m.owns]
        self._models = [m for m in models if m.owns]
        self._taken = Others(
            load=math.fsum(o.load for o in given.values()),
            usual_load=math.fsum(o.usual_load for o in given.values()),
            held_bytes=sum(o.held_bytes for o in given.values()),
        )
        self._per_s = [
            m.asked.spec.shared.weight * max(m.known.demand_per_s, IDLE_PER_S) for m in self._models
        ]
        self._owns = [m.options for m in self._models]
        self._serving = [m.serving for m in self._models]
        self._now = {m: pick for m, pick in enumerate(self._serving) if pick is not None}

    def decide(self) -> dict[str, Decision]:
        """Return the decision of each model."""
        decisions = {m.name: self._alone(m) for m in self._idle}
        if not self._models:
            return decisions
        self._options = [self._options_of(m) for m in range(len(self._models))]
        self._device = self._device_cost()
        plan = self._plan()
        whys = {m: self._why(m, pick, plan) for m, pick in plan.picks.items()}
        self._now |= plan.picks
        best_picks = plan.found.picks if plan.found else ()
        order = sorted(
            range(len(self._models)),
            key=lambda m: (
                m not in plan.picks,
                bool(best_picks) and best_picks[m] == self._serving[m],
                self._models[m].asked.spec.shared.weight,
            ),
        )
        for m in order:
            decision = self._decided(m, plan, whys.get(m))
            decisions[self._models[m].name] = decision
            name = PARKED if decision.parked else decision.variant
            names = [own.candidate.name for own in self._owns[m]]
            if name in names:
                self._now[m] = names.index(name)
        return decisions

    def _alone(self, model: Model) -> Decision:
        """Return the decision for a model that has nothing to serve."""
        context, spec = model.asked.context, model.asked.spec
        return decide(
            self._health, model.everyone, spec, context, known=model.known, owns=model.owns
        )

    def _options_of(self, m: int) -> list[Option]:
        serving, per_s = self._serving[m], self._per_s[m]
        now = self._models[m].known.heat.now
        is_void = now is not None and now.mean >= 1.0
        current = None if serving is None else self._owns[m][serving].candidate.latency_p50_ms
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
            for number, own in enumerate(self._owns[m])
        ]

    def _device_cost(self) -> DeviceCost:
        parties = [
            Party(per_s, m.asked.spec, m.known)
            for per_s, m in zip(self._per_s, self._models, strict=True)
        ]
        most = Others(
            load=math.fsum(max(o.load for o in options) for options in self._options),
            usual_load=math.fsum(max(o.usual_load for o in options) for options in self._options),
        )
        return DeviceCost(parties, self._taken, most)

    def _plan(self) -> Plan:
        """Decide what has to be decided for all together."""
        fault = self._urgent()
        if fault is not None:
            return self._rescue(fault)
        if len(self._now) < len(self._models):
            return self._begun()
        if len(self._models) < SEVERAL:
            return Plan()
        return self._changed()

    def _sums(self, but: int | None = None) -> Others:
        """Return what the models take now, one of them left out."""
        listed = [self._options[m][pick] for m, pick in self._now.items() if m != but]
        return Others(
            load=math.fsum(o.load for o in listed),
            usual_load=math.fsum(o.usual_load for o in listed),
            held_bytes=sum(int(o.held_bytes) for o in listed),
        )

    def _urgent(self) -> Fault | None:
        """Return why the combination that serves has to go at once; None if it need not."""
        if not self._now:
            return None
        sums, known = self._sums(), self._models[0].known
        heat = limits.heat(known, min(known.other_load + self._taken.load + sums.load, 1.0))
        if not self._device.fits(sums.held_bytes):
            spec, held = self._models[0].asked.spec, self._taken.held_bytes
            return limits.memory(sums.held_bytes, known, spec, held_bytes=held, lately=False)
        return heat if heat is not None and heat.urgent else None

    def _rescue(self, fault: Fault) -> Plan:
        """Return where to go from a combination that has to go."""
        allowed = [
            [number for number in range(len(options)) if self._may_leave_for(m, number, fault)]
            for m, options in enumerate(self._options)
        ]
        found = self._best(allowed, rises=True)
        before = cost_of(
            [[options[self._now[m]]] for m, options in enumerate(self._options) if m in self._now],
            (0,) * len(self._now),
            self._device,
        ) + math.fsum(per_s for m, per_s in enumerate(self._per_s) if m not in self._now)
        held = math.fsum(self._options[m][pick].held_bytes for m, pick in enumerate(found.picks))
        is_sound = fault.kind == "heat" or self._device.fits(held)
        margin = 0.0 if is_sound else CLEARLY * math.fsum(self._per_s)
        if found.cost >= before - margin and len(self._now) == len(self._models):
            return Plan(fault=fault, found=found)
        return Plan(picks=self._changes(found), fault=fault, found=found)

    def _may_leave_for(self, m: int, number: int, fault: Fault) -> bool:
        """Tell whether an option is a way from a combination that has to go."""
        model, options, now = self._models[m], self._options[m], self._now.get(m)
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
        warm = [begins_warm(m.known) for m in self._models]
        allowed = [
            [self._now[m]] if m in self._now
            else [self._lightest(m)] if warm[m]
            else list(range(len(options)))
            for m, options in enumerate(self._options)
        ]  # fmt: skip
        found = self._best(allowed, rises=True)
        held = math.fsum(self._options[m][pick].held_bytes for m, pick in enumerate(found.picks))
        if not self._device.fits(held):
            found = self._best([list(range(len(options))) for options in self._options], rises=True)
        return Plan(picks=self._changes(found), found=found)

    def _lightest(self, m: int) -> int:
        variants = range(len(self._models[m].owns))
        listed = [number for number in variants if number < len(self._owns[m])]
        return min(listed, key=lambda number: by_latency(self._owns[m][number].candidate))

    def _changed(self) -> Plan:
        """Return the changes of several models that have paid for themselves, together."""
        serving = [self._now[m] for m in range(len(self._models))]
        # Several at once may only change places: more work is tried by one after the other.
        self._device.most_load = self._sums().load
        found = best(self._options, self._device, serving)
        cost, picks = cost_of(self._options, serving, self._device), self._changes(found)
        gain = cost - found.cost - SURE * math.fsum(self._per_s)
        steps = ([*serving[:m], pick, *serving[m + 1 :]] for m, pick in picks.items())
        if len(picks) < SEVERAL or gain <= 0.0 or any(
            cost_of(self._options, step, self._device) < cost for step in steps
        ):  # fmt: skip
            return Plan(found=found)  # one after the other gets there, and sees what comes of it
        contexts = [m.asked.context for m in self._models]
        before = min(context.state.regret for context in contexts)
        regret = before + gain * max(context.period_s for context in contexts)
        waits = any(contexts[m].since_switch_s < self._rest_s(m) for m in picks)
        if waits or regret < PAID * math.fsum(self._switch(m, pick) for m, pick in picks.items()):
            return Plan(regret=regret, found=found)
        return Plan(picks=picks, found=found)

    def _rest_s(self, m: int) -> float:
        model = self._models[m]
        is_parked = model.asked.context.state.parked
        return rest_s(model.asked.spec, model.known, is_parked=is_parked)

    def _switch(self, m: int, pick: int) -> float:
        """Return what a switch of a model costs, in weighted answers."""
        before, after = self._owns[m][self._now[m]].candidate, self._owns[m][pick].candidate
        per_s = self._models[m].known.demand_per_s
        cost = switch_answers(before.load_s, after.load_s, per_s)
        return self._models[m].asked.spec.shared.weight * cost

    def _best(self, allowed: Sequence[Sequence[int]], *, rises: bool) -> Found:
        """Return the best combination of some options."""
        options = [
            [self._options[m][n]._replace(rises=self._options[m][n].rises and not rises)
             for n in numbers]
            for m, numbers in enumerate(allowed)
        ]  # fmt: skip
        found = best(options, self._device)
        picks = tuple(allowed[m][pick] for m, pick in enumerate(found.picks))
        return found._replace(picks=picks)

    def _changes(self, found: Found) -> dict[int, int]:
        """Return the options of the models that have another one than now; no pinned ones."""
        return {
            m: pick
            for m, pick in enumerate(found.picks)
            if self._now.get(m) != pick and not self._is_pinned(m)
        }

    def _is_pinned(self, m: int) -> bool:
        return (self._models[m].asked.context.pinned or "") in self._models[m].owns

    def _view(self, m: int) -> Others:
        """Return what a model sees of the others as they will be."""
        sums = self._sums(but=m)
        return Others(
            load=sums.load + self._taken.load,
            usual_load=sums.usual_load + self._taken.usual_load,
            held_bytes=sums.held_bytes + self._taken.held_bytes,
        )

    def _harm(self, m: int) -> Callable[[Own], float]:
        sums, device = self._sums(but=m), self._device

        def harm(own: Own) -> float:
            held = sums.held_bytes + (own.candidate.peak_memory_bytes or 0)
            return device.harm(m, sums.load + own.load, sums.usual_load + own.usual_load, held)

        return harm

    def _decided(self, m: int, plan: Plan, why: str | None) -> Decision:
        model, pick = self._models[m], plan.picks.get(m)
        view = View(
            others=self._view(m),
            harm=self._harm(m),
            parked=model.parked,
            told=None if pick is None else self._owns[m][pick].candidate.name,
            why=why or "",
            is_settled=plan.fault is not None,
        )
        decision = decide(
            self._health, model.everyone, model.asked.spec, model.asked.context,
            known=model.known, owns=model.owns, view=view,
        )  # fmt: skip
        state = msgspec.structs.replace(decision.state, regret=plan.regret)
        reason = decision.reason if pick is not None else self._reason(m, decision, view)
        found = plan.found
        told = {} if found is None else {"together": {"cost": found.cost, "gap": found.gap}}
        return msgspec.structs.replace(
            decision, state=state, reason=reason, inputs=decision.inputs | told
        )

    def _reason(self, m: int, decision: Decision, view: View) -> str:
        """Return why a model changes; if it does so for others, it names them."""
        before = self._serving[m]
        name = PARKED if decision.parked else decision.variant
        after = next((o for o in self._owns[m] if o.candidate.name == name), None)
        if before is None or after is None or after.load >= self._owns[m][before].load:
            return decision.reason
        own, model = self._owns[m][before], self._models[m]
        cause = self._caused(m, own, view.others)
        costs = view.harm(own) > view.harm(after) if view.harm else False
        if not cause and costs and self._loss_alone(own, model) <= self._loss_alone(after, model):
            cause = self._caused(m, own, view.others, whole=True) or TOGETHER
        if not cause:
            return decision.reason
        return self._yields(m, cause, is_parked=decision.parked)

    def _loss_alone(self, own: Own, model: Model) -> float:
        if own.candidate.name == PARKED:
            return parked(own, model.known, Others()).loss
        return beside(own, model.known, model.asked.spec).loss

    def _caused(self, m: int, own: Own, others: Others, *, whole: bool = False) -> Cause | None:
        """Return what a variant does to the device beside the others, if not by itself."""
        if own.candidate.name == PARKED:
            return None
        model = self._models[m]
        alone = beside(own, model.known, model.asked.spec)
        by_itself = {f.kind for f in alone.faults if f.kind in DEVICE}
        there = beside(own, model.known, model.asked.spec, others)
        faults = [f for f in there.faults if whole or f.kind not in by_itself]
        fault = next((f for f in faults if f.kind in DEVICE), None)
        others_there = len(self._others(m, "heat"))
        if fault is None or not others_there:
            return None
        return Cause(shared(fault, others_there), fault.kind)

    def _others(self, m: int, kind: str) -> list[str]:
        """Return the names of the other models that serve, that first which takes most."""
        taken = {
            self._models[k].name: (option.held_bytes if kind == "memory" else option.load)
            for k, pick in self._now.items()
            if k != m and (option := self._options[k][pick]).name != PARKED
        }
        taken |= {
            name: float(o.held_bytes) if kind == "memory" else o.load
            for name, o in self._given.items()
        }
        return sorted(taken, key=lambda name: (-taken[name], name))

    def _yields(self, m: int, cause: Cause, *, is_parked: bool) -> str:
        others = self._others(m, cause.kind)
        if not others:
            return cause.text
        reason = yields(cause.text, others)
        return f"parked, as the last resort; it {reason}" if is_parked else reason

    def _why(self, m: int, pick: int, plan: Plan) -> str:
        """Return why a model was told what to do."""
        own, before = self._owns[m][pick], self._now.get(m)
        is_parked = own.candidate.name == PARKED
        if before is None and not is_parked:
            return first(self._predicted(m, own), is_hot=begins_warm(self._models[m].known))
        if before is None:
            return self._yields(m, TOGETHER, is_parked=True)
        serving = self._owns[m][before]
        if plan.fault is not None and (own.load < serving.load or is_parked):
            cause = self._caused(m, serving, self._view(m))
            if cause is not None:
                return self._yields(m, cause, is_parked=is_parked)
            return leaves(self._predicted(m, serving), plan.fault, self._predicted(m, own))
        names = [self._models[k].name for k in sorted(plan.picks) if k != m]
        return f"changes together with {', '.join(names)}: together all models lose less"

    def _predicted(self, m: int, own: Own) -> Prediction:
        model, others = self._models[m], self._view(m)
        if own.candidate.name == PARKED:
            return parked(own, model.known, others)
        return beside(own, model.known, model.asked.spec, others)


def _is_slower(ours: float | None, theirs: float | None) -> bool:
    """Tell whether a latency is more than another one; one that is unknown counts as more."""
    return ours is None or theirs is None or ours > theirs
