"""Why a model changes beside others, in words for people: what they cause together, who they are.

Rules:
- Pure. A reason names the other models only where the device would bear the model alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from agent.select.adaptive import View, begins_warm
from agent.select.decisions import Decision
from agent.select.explained import DEVICE, first, leaves, shared, yields
from agent.select.joint_combination import Combination
from agent.select.joint_known import Model
from agent.select.joint_plan import Plan
from agent.select.others import Others
from agent.select.outlook import PARKED, Own, Prediction, beside, parked


class Cause(NamedTuple):
    """What several models together do to the device."""

    text: str
    kind: str
    """Of the fault."""


TOGETHER: Final = Cause("together they take more than the device gives without loss", "heat")


class Reasons:
    """Finds reasons for what the models of a combination do.

    Args:
        combination: What the models serve.
    """

    def __init__(self, combination: Combination) -> None:
        self._all = combination

    def reason(self, m: int, decision: Decision, view: View) -> str:
        """Return why a model changes; if it does so for others, it names them."""
        before = self._all.serving[m]
        name = PARKED if decision.parked else decision.variant
        after = next((o for o in self._all.owns[m] if o.candidate.name == name), None)
        if before is None or after is None or after.load >= self._all.owns[m][before].load:
            return decision.reason
        own, model = self._all.owns[m][before], self._all.models[m]
        cause = self._caused(m, own, view.others)
        costs = view.harm(own) > view.harm(after) if view.harm else False
        if not cause and costs and self._loss_alone(own, model) <= self._loss_alone(after, model):
            cause = self._caused(m, own, view.others, whole=True) or TOGETHER
        if not cause:
            return decision.reason
        return self._yields(m, cause, is_parked=decision.parked)

    def why(self, m: int, pick: int, plan: Plan) -> str:
        """Return why a model was told what to do."""
        own, before = self._all.owns[m][pick], self._all.now.get(m)
        is_parked = own.candidate.name == PARKED
        if before is None and not is_parked:
            return first(self._predicted(m, own), is_hot=begins_warm(self._all.models[m].known))
        if before is None:
            return self._yields(m, TOGETHER, is_parked=True)
        serving = self._all.owns[m][before]
        if plan.fault is not None and (own.load < serving.load or is_parked):
            cause = self._caused(m, serving, self._all.view(m))
            if cause is not None:
                return self._yields(m, cause, is_parked=is_parked)
            return leaves(self._predicted(m, serving), plan.fault, self._predicted(m, own))
        names = [self._all.models[k].name for k in sorted(plan.picks) if k != m]
        return f"changes together with {', '.join(names)}: together all models lose less"

    def _loss_alone(self, own: Own, model: Model) -> float:
        if own.candidate.name == PARKED:
            return parked(own, model.known, Others()).loss
        return beside(own, model.known, model.asked.spec).loss

    def _caused(self, m: int, own: Own, others: Others, *, whole: bool = False) -> Cause | None:
        """Return what a variant does to the device beside the others, if not by itself."""
        if own.candidate.name == PARKED:
            return None
        model = self._all.models[m]
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
            self._all.models[k].name: (option.held_bytes if kind == "memory" else option.load)
            for k, pick in self._all.now.items()
            if k != m and (option := self._all.options[k][pick]).name != PARKED
        }
        taken |= {
            name: float(o.held_bytes) if kind == "memory" else o.load
            for name, o in self._all.given.items()
        }
        return sorted(taken, key=lambda name: (-taken[name], name))

    def _yields(self, m: int, cause: Cause, *, is_parked: bool) -> str:
        others = self._others(m, cause.kind)
        if not others:
            return cause.text
        reason = yields(cause.text, others)
        return f"parked, as the last resort; it {reason}" if is_parked else reason

    def _predicted(self, m: int, own: Own) -> Prediction:
        model, others = self._all.models[m], self._all.view(m)
        if own.candidate.name == PARKED:
            return parked(own, model.known, others)
        return beside(own, model.known, model.asked.spec, others)
