"""What a desired state asks of the models of a device that it does not do already. Pure.

Rules:
- A model is told what is new for it; when the same desired state comes again, what it was told,
  because that asks for its report.
- Where nothing is ordered, what there is stays; only an install that is under way ends.
- A model that is being removed and is named again is told so, whatever it did before.
- A model that is not named goes, unless the desired state says that others stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from agent.install.records import ModelRecord
from agent.install.states import State
from wire.desired import DesiredModels, ModelState


class Present(NamedTuple):
    """A model that the device has."""

    record: ModelRecord
    is_leaving: bool = False
    """Whether it is being removed, or waits to be."""


class Orders(NamedTuple):
    """What is to be done."""

    installs: tuple[ModelState, ...]
    removals: tuple[str, ...]


def orders(desired: DesiredModels, present: Mapping[str, Present], *, is_again: bool) -> Orders:
    """Return what a desired state asks for.

    Args:
        desired: The desired state, which has been accepted.
        present: The models of the device, by name.
        is_again: Whether the same one was accepted before, and comes again.

    Returns:
        What to tell the installs of which model, and which models to remove.
    """
    if desired.is_unnamed:  # of the one model that its controller knows; it waits for a report
        told = [ModelState(name=name, revision=desired.revision, release=None) for name in present]
        return Orders(tuple(s for s in told if is_again or _is_new(s, present)), ())
    installs = tuple(
        state
        for state in desired.models
        if _is_taken_back(state, present)
        or ((is_again or _is_new(state, present)) and _does_something(state, present))
    )
    named = {state.name for state in desired.models}
    removals = () if desired.keeps_others else tuple(sorted(present.keys() - named))
    return Orders(installs, removals)


def _is_new(state: ModelState, present: Mapping[str, Present]) -> bool:
    model = present.get(state.name)
    return model is None or model.record.revision != state.revision


def _is_taken_back(state: ModelState, present: Mapping[str, Present]) -> bool:
    model = present.get(state.name)
    return model is not None and model.is_leaving


def _does_something(state: ModelState, present: Mapping[str, Present]) -> bool:
    model = present.get(state.name)
    is_at_work = model is not None and model.record.state is not State.IDLE
    return state.release is not None or is_at_work
