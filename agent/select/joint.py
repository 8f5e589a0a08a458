"""One decision for all models of a device: which variant of each serves.

A board has one heat sink, one battery, one memory and one processor. So what a variant costs the
answers of the other models counts like what it costs its own, in weighted answers: a weight says
what one answer is worth beside one of another model, so a model counts by its weight times its
answers a second. Under pressure the model gives way that loses least by it for what it frees: of
two that are alike, the one of less weight.

A decision has three parts. Where the combination that serves has to go at once, the best one of
those that relieve the device takes its place (`agent.select.joint_search`). Otherwise each model
is asked by the policy of a single one (`agent.select.adaptive`), beside what the others serve and
with what it costs them; so switches have to pay for themselves as ever. Where no model alone would
do better, but some would together, that is done once it has paid for all their switches.

Rules:
- Pure. Equal inputs give equal decisions. For one model they are those of its policy alone.
- `rules` models decide for themselves; what they take is given. So is a pinned variant.
- Models that decide later see what those before them chose, so two never take the same room.
- A model may be parked only if its policy allows it. That counts as a variant without work whose
  answers are all late, so it is the last resort. On a warm board it stays parked for two minutes
  at least, and it comes back only into room that lasts. For heat only a model is parked that the
  heat can show.
- Not foreseen: how much slower one variant gets by others before the processor is full. What has
  become slower shows in the measured latencies.

How to call it: once in a period, for all models at the same time, with the readings of the device
and with an `Asked` of each model. A context holds what it would hold if the model were alone:
`observed.own_load` and `held_bytes` of the model's own workers, and the state of its last decision.
Of a parked model `context.variant` is None. Then each model is to serve the variant of its
decision; those that need less memory than before change first, so that there is room for the
others. A decision with `parked` means that the model's worker should end and no other one begin,
until a later decision has a variant. Everything that is kept lies in the states, so a model may
come or go at any time.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.select import adaptive, rules
from agent.select.decisions import Asked, Decision
from agent.select.joint_decisions import decide_jointly
from agent.select.joint_known import known_of_all
from agent.select.others import Others
from wire.health import HealthSnapshot

__all__ = ["Asked", "choose_jointly"]


def choose_jointly(health: HealthSnapshot, models: Mapping[str, Asked]) -> dict[str, Decision]:
    """Choose which variant of each model should serve.

    Args:
        health: The newest readings.
        models: What each model has and wants, by its name.

    Returns:
        The decision of each model.
    """
    decisions = {
        name: rules.choose(health, *asked)
        for name, asked in models.items()
        if asked.spec.kind == "rules"
    }
    adaptives = {name: asked for name, asked in models.items() if name not in decisions}
    # One that is parked still has others beside it, even if nobody asks about them now.
    is_parked = any(asked.context.state.parked for asked in adaptives.values())
    if len(models) == len(adaptives) == 1 and not is_parked:
        return {name: adaptive.choose(health, *asked) for name, asked in adaptives.items()}
    if adaptives:
        given = _given(models, decisions)
        decisions |= decide_jointly(health, known_of_all(health, models), given)
    return {name: decisions[name] for name in models}


def _given(models: Mapping[str, Asked], decisions: Mapping[str, Decision]) -> dict[str, Others]:
    """Return what the models take that have decided for themselves."""
    found = {}
    for name, decision in decisions.items():
        seen, candidates = models[name].context.observed, models[name].candidates
        load = seen.own_load if seen else 0.0
        chosen = next((c for c in candidates if c.name == decision.variant), None)
        need = (chosen.peak_memory_bytes or 0) if chosen else 0
        held = max(need, seen.held_bytes if seen else 0)
        found[name] = Others(load=load, usual_load=load, held_bytes=held)
    return found
