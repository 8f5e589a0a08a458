"""What became of the devices of earlier rollouts of a model, for a rehearsal of the next one.

Rules:
- A device counts once for each release, with the first outcome: devices are tried again because
  they failed, and would then count as often as they were tried.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from controller.domain.failure_limits import FailureKind, failure_kind
from controller.domain.states import DeploymentState
from controller.store.deployments import target
from controller.store.install_times import newest_rollouts
from controller.store.rollout_tables import DeploymentRow, RolloutRow


class EarlierOutcomes(NamedTuple):
    """How many devices had which outcome."""

    succeeded: int
    failed: int
    refused: int
    timed_out: int


def of_model(session: Session, model: str) -> EarlierOutcomes:
    """Return what became of the devices of the newest rollouts of a model, without rollbacks.

    Args:
        session: The transaction.
        model: The model.
    """
    states = DeploymentState.SUCCEEDED, DeploymentState.FAILED
    attempt = func.row_number().over(
        partition_by=(DeploymentRow.device, target()),
        order_by=(RolloutRow.created_at_s, RolloutRow.id),
    )
    tried = (
        select(
            DeploymentRow.state,
            DeploymentRow.error_code,
            DeploymentRow.phase,
            attempt.label("attempt"),
        )
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .where(
            DeploymentRow.rollout.in_(newest_rollouts(model)),
            DeploymentRow.state.in_(states),
        )
        .subquery()
    )
    kind = tried.c.state, tried.c.error_code, tried.c.phase
    rows = session.execute(select(*kind, func.count()).where(tried.c.attempt == 1).group_by(*kind))
    succeeded, kinds = 0, dict.fromkeys(FailureKind, 0)
    for state, code, phase, count in rows:
        if state == DeploymentState.SUCCEEDED:
            succeeded += count
        else:
            kinds[failure_kind(code, phase)] += count
    return EarlierOutcomes(
        succeeded,
        kinds[FailureKind.FAILED],
        kinds[FailureKind.REFUSED],
        kinds[FailureKind.TIMED_OUT],
    )
