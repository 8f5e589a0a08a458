"""What is known of the models of a device that are decided together. Pure.

Rules:
- The device is learnt once, with the readings and with what all models took. What it is follows
  from the model that has watched it longest, so a model that comes later knows it at once.
- Requests, latencies and the record of what was in time are each model's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from agent.select.adaptive import recorded, rest_s
from agent.select.decisions import Asked, Candidate, by_accuracy
from agent.select.estimates import Estimates, Observed
from agent.select.others import Others
from agent.select.outlook import PARKED, Own, by_itself, conditions, no_variant
from wire.health import HealthSnapshot

FELT_S: Final = 10.0
"""Over this time the heat of a load shows, if it is more than what no forecast knows."""


class Model(NamedTuple):
    """One model and what is known of it."""

    name: str
    asked: Asked
    everyone: list[Candidate]
    """Its variants, the most accurate first."""

    known: Estimates
    owns: dict[str, Own]
    """What each variant that may serve does by itself."""

    parked: Own | None
    """What it means that none serves; None if one has to."""

    @property
    def options(self) -> list[Own]:
        """What the model may do: serve one of its variants, or none."""
        pinned = self.owns.get(self.asked.context.pinned or "")
        if pinned is not None:
            return [pinned]
        return [*self.owns.values(), *([self.parked] if self.parked else [])]

    @property
    def is_resting(self) -> bool:
        """Whether it has been parked for so short a time that it stays so."""
        context = self.asked.context
        return (
            context.state.parked
            and not context.is_new_policy
            and context.since_switch_s < rest_s(self.asked.spec, self.known, is_parked=True)
        )

    @property
    def is_felt(self) -> bool:
        """Whether the heat would show that it is parked."""
        heat = self.known.heat
        now = heat.forecast(self.known.other_load, FELT_S)
        least = min((own.load for own in self.owns.values()), default=0.0)
        return now is not None and heat.slope * least > now.sigma

    @property
    def serving(self) -> int | None:
        """The number of the option that holds now; None if nothing serves, or what may not."""
        context = self.asked.context
        name = PARKED if context.state.parked else context.variant
        names = [own.candidate.name for own in self.options]
        return names.index(name) if name is not None and name in names else None


def known_of_all(health: HealthSnapshot, models: Mapping[str, Asked]) -> list[Model]:
    """Return what is known of the adaptive models, in the order of their names.

    Args:
        health: The newest readings.
        models: All models of the device.
    """
    asked = {name: models[name] for name in sorted(models) if models[name].spec.kind == "adaptive"}
    if not asked:
        return []
    seen = {name: each.context.observed for name, each in models.items()}
    longest = max(asked, key=lambda name: asked[name].context.state.estimates.watched_s)
    device = _updated(health, asked[longest], _others(seen, longest))
    return [
        _model(
            name,
            each,
            device
            if name == longest
            else _updated(health, each, _others(seen, name), device=device),
            held_bytes=sum(
                o.held_bytes for key, o in seen.items() if o is not None and key != name
            ),
            is_alone=len(models) == 1,
        )
        for name, each in asked.items()
    ]


def _updated(
    health: HealthSnapshot, asked: Asked, others: Others | None, device: Estimates | None = None
) -> Estimates:
    context = asked.context
    known = context.state.estimates
    return known.update(health, context.observed, context.period_s, others, device)


def _model(name: str, asked: Asked, known: Estimates, *, held_bytes: int, is_alone: bool) -> Model:
    everyone = sorted(asked.candidates, key=by_accuracy)
    known = recorded(known, everyone, asked.spec, asked.context)
    conditions_now = conditions(known, asked.spec)
    owns = {
        c.name: by_itself(c, known, asked.spec, conditions_now, held_bytes)
        for c in everyone
        if not c.benched
    }
    now, parked = known.heat.now, None
    may_park = asked.spec.shared.may_park and not is_alone
    if owns and (may_park or asked.context.state.parked):
        is_void = now is not None and now.mean >= 1.0
        parked = no_variant(list(owns.values()), asked.spec, void=is_void)
    return Model(name, asked, everyone, known, owns, parked)


def _others(seen: Mapping[str, Observed | None], name: str) -> Others | None:
    """Return what all but one model took; None if none of them served."""
    there: Sequence[Observed] = [o for key, o in seen.items() if o is not None and key != name]
    if not there:
        return None
    return Others(
        load=math.fsum(o.own_load for o in there),
        held_bytes=sum(o.held_bytes for o in there),
        mixed=any(o.mixed for o in there),
    )
