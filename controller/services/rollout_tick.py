"""One tick of every rollout: look, decide, save, act.

Rules:
- A decision, its effects on the database and its reason are one transaction.
- Publishing comes after, may be lost and is repeated by `controller.services.director`: a
  controller that is killed at any line goes on from the database.
- A rollout whose tick fails is tried again at the next; it does not stop the others.
"""

from __future__ import annotations

import logging

from sqlalchemy.orm import Session

from controller.domain.rollout_policy import Decision, decide
from controller.domain.states import ACTIVE_ROLLOUTS, RolloutOrder, RolloutState
from controller.services import rollout_steps
from controller.services.director import Director
from controller.store import rollouts
from controller.store.database import Database
from controller.store.tables import RolloutRow
from wire.clock import Clock
from wire.errors import FleetError

_log = logging.getLogger(__name__)


class RolloutEngine:
    """Moves every rollout on.

    Args:
        database: The control state.
        director: Tells devices.
        clock: Wall time.
    """

    def __init__(self, database: Database, director: Director, clock: Clock) -> None:
        self._database = database
        self._director = director
        self._clock = clock

    def tick(self) -> None:
        """Move every rollout on by one decision.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as session:
            active = rollouts.active_ids(session)
        for rollout in active:
            try:
                told = self.step(rollout)
            except FleetError as exc:
                _log.warning("rollout %s is tried again: %s", rollout, exc)
            else:
                self._director.publish(told)

    def step(self, rollout: str) -> list[str]:
        """Take one decision about a rollout and save it.

        Args:
            rollout: Its identifier.

        Returns:
            The devices that are to be told.

        Raises:
            FleetError: It could not be saved; nothing was changed.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as session:
            row = rollouts.get(session, rollout, lock=True)
            if row.state not in ACTIVE_ROLLOUTS:
                return []
            self._join(session, row, now_s)
            decision = decide(rollouts.view(session, row, now_s=now_s))
            told = _save(session, row, decision, now_s)
        if told or decision.action != "hold":
            _log.info("rollout %s: %s, %s", rollout, decision.action, decision.reason)
        return told

    @staticmethod
    def _join(session: Session, row: RolloutRow, now_s: float) -> None:
        last = row.stage == len(rollouts.stages(session, row.id))
        if last and row.rollback_of is None and row.state == RolloutState.RUNNING:
            rollout_steps.join_newcomers(session, row, now_s=now_s)


def _save(session: Session, row: RolloutRow, decision: Decision, now_s: float) -> list[str]:
    rollout_steps.expire_devices(session, row, decision.expired, now_s=now_s)
    row.stage_complete_at_s = decision.stage_complete_at_s
    match decision.action:
        case "halt":
            return rollout_steps.end_rollout(
                session, row, RolloutOrder.HALT, reason=decision.reason, now_s=now_s
            )
        case "finish":
            return rollout_steps.end_rollout(
                session, row, RolloutOrder.FINISH, reason=decision.reason, now_s=now_s
            )
        case "advance":
            row.stage += 1
        case "hold":
            pass
    if row.reason != decision.reason:
        row.reason = decision.reason
        rollouts.log(session, row.id, action=decision.action, reason=decision.reason, now_s=now_s)
    return rollout_steps.start_devices(session, row, decision.start, now_s=now_s)
