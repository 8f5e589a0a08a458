"""The table of the install workflow is whole, spelled as the wire has it, and always ends."""

from __future__ import annotations

from typing import get_args

import pytest

from agent.errors import IllegalTransitionError
from agent.install.states import TRANSITIONS, InstallEvent, State, may_abandon, next_state
from wire.installs import InstallPhase


def test_states_are_spelled_as_reports_spell_them() -> None:
    assert {state.value for state in State} == set(get_args(InstallPhase))


def test_every_busy_state_has_a_way_on_done_and_on_failed() -> None:
    for state in set(State) - {State.IDLE}:
        assert (state, InstallEvent.DONE) in TRANSITIONS
        assert (state, InstallEvent.FAILED) in TRANSITIONS


def test_every_state_can_be_reached_and_leads_back_to_idle() -> None:
    reached, todo = set(), [State.IDLE]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += [after for (before, _), after in TRANSITIONS.items() if before is state]
    assert reached == set(State)
    for state in State:
        at, steps = state, 0
        while at is not State.IDLE and steps < len(State):
            at, steps = next_state(at, InstallEvent.FAILED), steps + 1
        assert at is State.IDLE


def test_a_failure_never_leads_towards_the_switch() -> None:
    after = {
        TRANSITIONS[s, e]
        for s, e in TRANSITIONS
        if e in {InstallEvent.FAILED, InstallEvent.ABANDONED}
    }
    assert after == {State.REVERTING, State.IDLE}


def test_what_has_switched_is_confirmed_or_reverted_before_anything_else() -> None:
    assert not any(may_abandon(s) for s in (State.CONFIRMING, State.REVERTING, State.IDLE))
    assert TRANSITIONS[State.SWITCHING, InstallEvent.ABANDONED] is State.REVERTING


def test_an_unknown_pair_is_a_bug() -> None:
    with pytest.raises(IllegalTransitionError, match="no transition from idle by done"):
        next_state(State.IDLE, InstallEvent.DONE)
