"""The transition tables."""

from __future__ import annotations

import itertools

import pytest

from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    DEPLOYMENT_TRANSITIONS,
    ROLLOUT_TRANSITIONS,
    UNFINISHED_DEPLOYMENTS,
    DeploymentEvent,
    DeploymentState,
    RolloutOrder,
    RolloutState,
    outcome,
    shown_state,
    sources,
)


def test_nothing_leaves_an_ended_rollout_but_the_operators_order_after_a_halt() -> None:
    ended = set(RolloutState) - set(ACTIVE_ROLLOUTS)
    leaving = [pair for pair in ROLLOUT_TRANSITIONS if pair[0] in ended]
    assert leaving == [(RolloutState.HALTED, RolloutOrder.RESUME)]


def test_every_active_rollout_can_be_ended_at_once() -> None:
    for state, order in itertools.product(ACTIVE_ROLLOUTS, (RolloutOrder.HALT, RolloutOrder.ABORT)):
        assert ROLLOUT_TRANSITIONS[state, order] not in ACTIVE_ROLLOUTS


def test_a_failure_stands_and_a_cancellation_can_only_be_reopened() -> None:
    final = {DeploymentState.FAILED, DeploymentState.CANCELLED}
    leaving = [pair for pair in DEPLOYMENT_TRANSITIONS if pair[0] in final]
    assert leaving == [(DeploymentState.CANCELLED, DeploymentEvent.REOPEN)]


def test_who_has_succeeded_may_fail_later_and_begins_anew_if_another_takes_its_name() -> None:
    leaving = {pair: to for pair, to in DEPLOYMENT_TRANSITIONS.items() if pair[0] == "succeeded"}
    assert leaving == {
        (DeploymentState.SUCCEEDED, DeploymentEvent.FAIL): DeploymentState.FAILED,
        (DeploymentState.SUCCEEDED, DeploymentEvent.REPLACE): DeploymentState.PENDING,
    }


def test_only_what_is_not_at_work_is_assigned() -> None:
    assert set(sources(DEPLOYMENT_TRANSITIONS, DeploymentEvent.ASSIGN)) == {
        DeploymentState.PENDING,
        DeploymentState.WAITING,
    }


def test_a_device_that_waits_may_have_any_outcome() -> None:
    for event in (DeploymentEvent.SUCCEED, DeploymentEvent.FAIL, DeploymentEvent.CANCEL):
        assert DeploymentState.WAITING in sources(DEPLOYMENT_TRANSITIONS, event)


@pytest.mark.parametrize("state", DeploymentState)
def test_an_unfinished_deployment_of_a_device_that_is_offline_is_shown_as_waiting(
    state: DeploymentState,
) -> None:
    works = DeploymentState.ASSIGNED if state is DeploymentState.WAITING else state
    assert shown_state(state, online=True) is works
    waits = DeploymentState.WAITING if state in UNFINISHED_DEPLOYMENTS else state
    assert shown_state(state, online=False) is waits


def test_every_event_has_one_outcome() -> None:
    for order in RolloutOrder:
        assert outcome(ROLLOUT_TRANSITIONS, order) in RolloutState
    for event in DeploymentEvent:
        assert outcome(DEPLOYMENT_TRANSITIONS, event) in DeploymentState


def test_every_unfinished_deployment_can_be_cancelled() -> None:
    assert set(sources(DEPLOYMENT_TRANSITIONS, DeploymentEvent.CANCEL)) == set(
        UNFINISHED_DEPLOYMENTS
    )


def test_an_event_that_leads_nowhere_is_a_bug() -> None:
    with pytest.raises(KeyError):
        outcome({}, RolloutOrder.HALT)
