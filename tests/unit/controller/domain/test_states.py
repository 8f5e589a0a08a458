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
    sources,
)


def test_nothing_leaves_an_ended_rollout() -> None:
    ended = set(RolloutState) - set(ACTIVE_ROLLOUTS)
    assert not [pair for pair in ROLLOUT_TRANSITIONS if pair[0] in ended]


def test_every_active_rollout_can_be_ended_at_once() -> None:
    for state, order in itertools.product(ACTIVE_ROLLOUTS, (RolloutOrder.HALT, RolloutOrder.ABORT)):
        assert ROLLOUT_TRANSITIONS[state, order] not in ACTIVE_ROLLOUTS


def test_a_failure_and_a_cancellation_stand() -> None:
    final = {DeploymentState.FAILED, DeploymentState.CANCELLED}
    assert not [pair for pair in DEPLOYMENT_TRANSITIONS if pair[0] in final]


def test_nothing_is_assigned_twice() -> None:
    assert sources(DEPLOYMENT_TRANSITIONS, DeploymentEvent.ASSIGN) == (DeploymentState.PENDING,)


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
