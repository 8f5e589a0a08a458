"""Decides for several models: what all of them do, and what each one does beside the others.

Rules:
- Pure.
- After the plan for all (`agent.select.joint_plan`) each model decides by the policy of a single
  one, one after the other: first those for which the best combination has something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from agent.select.adaptive import View, decide
from agent.select.decisions import Decision
from agent.select.joint_combination import Combination
from agent.select.joint_known import Model
from agent.select.joint_plan import Plan, Planner
from agent.select.joint_reasons import Reasons
from agent.select.others import Others
from agent.select.outlook import PARKED
from wire.health import HealthSnapshot


def decide_jointly(
    health: HealthSnapshot, models: Sequence[Model], given: Mapping[str, Others]
) -> dict[str, Decision]:
    """Decide for several adaptive models at once.

    Args:
        health: The newest readings.
        models: What is known of each.
        given: What each of the other models takes.

    Returns:
        The decision of each model.
    """
    decisions = {m.name: _alone(health, m) for m in models if not m.owns}
    there = [m for m in models if m.owns]
    return decisions | Together(health, Combination(there, given)).decide() if there else decisions


class Together:
    """One decision for several models that have something to serve.

    Args:
        health: The newest readings.
        combination: What they serve.
    """

    def __init__(self, health: HealthSnapshot, combination: Combination) -> None:
        self._health = health
        self._all = combination
        self._reasons = Reasons(combination)

    def decide(self) -> dict[str, Decision]:
        """Return the decision of each model."""
        decisions: dict[str, Decision] = {}
        plan = Planner(self._all).plan()
        whys = {m: self._reasons.why(m, pick, plan) for m, pick in plan.picks.items()}
        self._all.now |= plan.picks
        best_picks = plan.found.picks if plan.found else ()
        order = sorted(
            range(len(self._all.models)),
            key=lambda m: (
                m not in plan.picks,
                bool(best_picks) and best_picks[m] == self._all.serving[m],
                self._all.models[m].asked.spec.shared.weight,
            ),
        )
        for m in order:
            decision = self._decided(m, plan, whys.get(m))
            decisions[self._all.models[m].name] = decision
            name = PARKED if decision.parked else decision.variant
            names = [own.candidate.name for own in self._all.owns[m]]
            if name in names:
                self._all.now[m] = names.index(name)
        return decisions

    def _decided(self, m: int, plan: Plan, why: str | None) -> Decision:
        model, pick = self._all.models[m], plan.picks.get(m)
        view = View(
            others=self._all.view(m),
            harm=self._all.harm(m),
            parked=model.parked,
            told=None if pick is None else self._all.owns[m][pick].candidate.name,
            why=why or "",
            is_settled=plan.fault is not None,
        )
        decision = decide(
            self._health, model.everyone, model.asked.spec, model.asked.context,
            known=model.known, owns=model.owns, view=view,
        )  # fmt: skip
        state = msgspec.structs.replace(decision.state, regret=plan.regret)
        reason = decision.reason if pick is not None else self._reasons.reason(m, decision, view)
        found = plan.found
        told = {} if found is None else {"together": {"cost": found.cost, "gap": found.gap}}
        return msgspec.structs.replace(
            decision, state=state, reason=reason, inputs=decision.inputs | told
        )


def _alone(health: HealthSnapshot, model: Model) -> Decision:
    """Return the decision for a model that has nothing to serve."""
    context, spec = model.asked.context, model.asked.spec
    return decide(health, model.everyone, spec, context, known=model.known, owns=model.owns)
