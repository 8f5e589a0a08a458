"""How long earlier installs of a model took, for the estimate of a rollout that has not begun."""

from __future__ import annotations

from sqlalchemy import ScalarSelect, or_, select
from sqlalchemy.orm import Session

from controller.domain.states import DeploymentState
from controller.store.deployments import target
from controller.store.rollout_tables import DeploymentRow, RolloutRow

MAX_ROLLOUTS = 20
"""Only the newest rollouts of a model are looked at: devices and networks change."""


def newest_rollouts(model: str) -> ScalarSelect[str]:
    """Return the newest rollouts of a model, without rollbacks."""
    return (
        select(RolloutRow.id)
        .where(RolloutRow.model == model, or_(RolloutRow.origin.is_(None), RolloutRow.is_retry))
        .order_by(RolloutRow.created_at_s.desc())
        .limit(MAX_ROLLOUTS)
        .scalar_subquery()
    )


def took_s(session: Session, model: str, *, limit: int) -> list[float]:
    """Return how long installs of a model took that succeeded, those that ended last.

    The time that a device was offline does not count. Left out are rollbacks, whose release is
    often still on the device, and devices that had the release already.

    Args:
        session: The transaction.
        model: The model.
        limit: The greatest number of installs.

    Returns:
        Seconds from the start to the outcome.
    """
    rows = session.execute(
        select(DeploymentRow.started_at_s, DeploymentRow.finished_at_s, DeploymentRow.away_s)
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .where(
            DeploymentRow.rollout.in_(newest_rollouts(model)),
            DeploymentRow.state == DeploymentState.SUCCEEDED,
            DeploymentRow.finished_at_s.is_not(None),
            or_(DeploymentRow.previous.is_(None), DeploymentRow.previous != target()),
        )
        .order_by(DeploymentRow.finished_at_s.desc())
        .limit(limit)
    )
    return [
        max(0.0, finished - started - away)
        for started, finished, away in rows
        if started is not None and finished is not None
    ]
