"""Rollouts as the API shows them."""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy.orm import Session

from controller.domain.rollout_policy import stage_states, stage_targets
from controller.schemas import Deployment, Rollout, RolloutEvent
from controller.store import deployments, rollouts
from controller.store.database import Database
from controller.store.tables import DeploymentRow, ReleaseRow, RolloutRow
from wire.clock import Clock
from wire.codec import convert

MAX_EVENTS = 1000
_PARTS = tuple(field.name for field in fields(Deployment))


class RolloutViews:
    """Reads rollouts.

    Args:
        database: The control state.
        clock: Wall time.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def get(self, rollout: str, *, limit: int) -> Rollout:
        """Return a rollout with its deployments and its log.

        Args:
            rollout: Its identifier.
            limit: The greatest number of deployments.

        Returns:
            The rollout.

        Raises:
            UnknownRolloutError: There is none of that name.
        """
        with self._database.reading() as session:
            row = rollouts.get(session, rollout)
            shown = self._outline(session, row)
            shown.previous = deployments.previous_counts(session, row.id)
            parts = deployments.of_rollout(session, row.id, limit=limit)
            shown.deployments = [_deployment(part) for part in parts]
            shown.events = [
                RolloutEvent(at_s=item.at_s, action=item.action, reason=item.reason)
                for item in rollouts.events(session, row.id, limit=MAX_EVENTS)
            ]
        return shown

    def newest(self, *, limit: int) -> list[Rollout]:
        """Return rollouts without their deployments and logs, the newest first.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as session:
            return [self._outline(session, row) for row in rollouts.newest(session, limit=limit)]

    def _outline(self, session: Session, row: RolloutRow) -> Rollout:
        view = rollouts.view(session, row, now_s=self._clock.now_s())
        release = session.get_one(ReleaseRow, row.release)
        numbered = enumerate(zip(stage_targets(view), stage_states(view), strict=True), start=1)
        stages = [
            {"number": number, "target": target, "state": state}
            for number, (target, state) in numbered
        ]
        return convert(
            {
                "id": row.id,
                "release": f"{release.name}:{release.version}",
                "selector": row.selector,
                "rollback_of": row.rollback_of,
                "state": row.state,
                "reason": row.reason,
                "created_at_s": row.created_at_s,
                "finished_at_s": row.finished_at_s,
                "stages": stages,
                "counts": dict(sorted(deployments.counts(session, row.id).items())),
            },
            Rollout,
        )


def _deployment(part: DeploymentRow) -> Deployment:
    return convert({name: getattr(part, name) for name in _PARTS}, Deployment)
