"""Rollouts: the operator's orders, what the operator sees, and the tick that moves rollouts on.

Rules:
- An order that the state does not allow is refused, and changes nothing.
- A device takes part in one unfinished rollout at a time.
- A rollback is a rollout of its own over the devices that the first one touched, with the same
  stages and limits; it ends the first one if that has not ended.
- A tick reads, decides, saves and then publishes. A message may be lost;
  `controller.services.director` repeats it. A controller that is killed at any point continues
  from the database.
- If the tick of a rollout fails, the next tick tries it again; the others go on.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise

from controller.domain.rollout_policy import (
    Limits,
    StageSpec,
    decide,
    stage_states,
    stage_targets,
)
from controller.domain.selectors import parse_selector
from controller.domain.states import ACTIVE_ROLLOUTS, RolloutOrder, RolloutState
from controller.errors import ConflictError, InvalidRequestError
from controller.schemas import (
    Deployment,
    RollbackRequest,
    Rollout,
    RolloutEvent,
    RolloutRequest,
    Stage,
)
from controller.services.director import Director
from controller.store import deployments, releases, rollouts
from controller.store.database import Database, Transaction
from controller.store.rollouts import NewRollout
from controller.store.tables import DeploymentRow, RolloutRow
from wire.clock import Clock
from wire.codec import convert
from wire.errors import FleetError

MAX_DEVICES = 1_000_000
MAX_STAGES = 100
MAX_EVENTS = 1000
_PARTS = tuple(part.name for part in fields(Deployment))

_log = logging.getLogger(__name__)


class Rollouts:
    """Carries out the operator's orders and shows rollouts.

    Args:
        database: The control state.
        director: Sends desired states to devices that go back.
        clock: Wall time.
    """

    def __init__(self, database: Database, director: Director, clock: Clock) -> None:
        self._database = database
        self._director = director
        self._clock = clock

    def create(self, request: RolloutRequest) -> str:
        """Make a rollout.

        Args:
            request: The release, the selector, the stages and the limits.

        Returns:
            Its identifier.

        Raises:
            InvalidRequestError: Stages that make no sense, or a selector that no device matches.
            SelectorError: The selector cannot be read.
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked, or a device takes part in another rollout.
        """
        selector = parse_selector(request.selector)
        specs = _specs(request.stages)
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            release = releases.get_published(transaction, request.release)
            devices = deployments.newcomers(transaction, "", selector, limit=MAX_DEVICES)
            _refuse_busy(deployments.busy(transaction, selector))
            if not devices:
                raise InvalidRequestError(
                    _no_device(request.selector), remedy="list the devices, or enrol one"
                )
            new = NewRollout(
                id=_new_id(),
                release=release.digest,
                selector=request.selector,
                limits=_limits(request),
                stages=specs,
                created_at_s=now_s,
            )
            rollouts.begin(transaction, new, devices)
        return new.id

    def roll_back(self, rollout: str, request: RollbackRequest) -> str:
        """Bring the devices that a rollout touched to a named release.

        Args:
            rollout: The rollout to undo; it is aborted if it has not ended.
            request: To which release.

        Returns:
            The identifier of the new rollout.

        Raises:
            UnknownRolloutError: No such rollout.
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked, no device was touched, or one of them takes part
                in another rollout.
        """
        now_s = self._clock.now_s()
        back: list[str] = []
        with self._database.transaction() as transaction:
            first = rollouts.get(transaction, rollout, lock=True)
            release = releases.get_published(transaction, request.release)
            new = NewRollout(
                id=_new_id(),
                release=release.digest,
                selector=first.selector,
                limits=rollouts.limits(first),
                stages=rollouts.stages(transaction, first.id),
                rollback_of=first.id,
                created_at_s=now_s,
            )
            if first.state in ACTIVE_ROLLOUTS:
                reason = f"rolled back to {release.name}:{release.version} by rollout {new.id}"
                back = rollouts.end(
                    transaction, first, RolloutOrder.ABORT, reason=reason, now_s=now_s
                )
            devices = deployments.started_devices(transaction, first.id)
            if not devices:
                raise ConflictError(f"rollout {first.id} touched no device: nothing to roll back")
            _refuse_busy(next(iter(deployments.unfinished(transaction, devices)), None))
            rollouts.begin(transaction, new, devices)
        self._director.publish(back)
        return new.id

    def get(self, rollout: str, *, limit: int) -> Rollout:
        """Return a rollout with its deployments and its log.

        Args:
            rollout: Its identifier.
            limit: The greatest number of deployments.

        Returns:
            The rollout.

        Raises:
            UnknownRolloutError: No such rollout.
        """
        with self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            shown = self._outline(transaction, row)
            shown.previous = deployments.previous_counts(transaction, row.id)
            parts = deployments.of_rollout(transaction, row.id, limit=limit)
            shown.deployments = [_deployment(part) for part in parts]
            shown.events = [
                RolloutEvent(at_s=item.at_s, action=item.action, reason=item.reason)
                for item in rollouts.events(transaction, row.id, limit=MAX_EVENTS)
            ]
        return shown

    def newest(self, *, limit: int) -> list[Rollout]:
        """Return rollouts without their deployments and logs, the newest first.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            return [
                self._outline(transaction, row) for row in rollouts.newest(transaction, limit=limit)
            ]

    def pause(self, rollout: str) -> None:
        """Pause a rollout: no further device starts until it is resumed.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It does not run.
        """
        self._order(rollout, RolloutOrder.PAUSE)

    def resume(self, rollout: str) -> None:
        """Go on with a paused rollout.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It is not paused.
        """
        self._order(rollout, RolloutOrder.RESUME)

    def abort(self, rollout: str) -> None:
        """End a rollout; devices that failed or have not finished go back.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It has ended already.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            back = rollouts.end(
                transaction, row, RolloutOrder.ABORT, reason="aborted by the operator", now_s=now_s
            )
        self._director.publish(back)

    def approve(self, rollout: str) -> None:
        """Let the next stage begin.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            ConflictError: Nothing waits for approval.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            last = row.stage == len(rollouts.stages(transaction, rollout))
            complete = row.stage_complete_at_s is not None
            if not row.approval or last or not complete or row.state not in ACTIVE_ROLLOUTS:
                raise ConflictError(f"rollout {row.id} has no stage that waits for approval")
            rollouts.approve(transaction, row, now_s=now_s)

    def _order(self, rollout: str, order: RolloutOrder) -> None:
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            rollouts.move(transaction, row, order)
            reason = f"{order}d by the operator"
            rollouts.log(transaction, row.id, action=order, reason=reason, now_s=now_s)

    def _outline(self, transaction: Transaction, row: RolloutRow) -> Rollout:
        view = rollouts.view(transaction, row, now_s=self._clock.now_s())
        release = releases.get(transaction, row.release)
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
                "counts": dict(sorted(deployments.counts(transaction, row.id).items())),
            },
            Rollout,
        )


class RolloutEngine:
    """Moves every rollout on.

    Args:
        database: The control state.
        director: Sends desired states to devices.
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
        with self._database.reading() as transaction:
            active = rollouts.active_ids(transaction)
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
            The devices that have a new desired state.

        Raises:
            FleetError: It could not be saved; nothing was changed.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            if row.state not in ACTIVE_ROLLOUTS:
                return []
            if _takes_newcomers(transaction, row):
                rollouts.join_newcomers(transaction, row, now_s=now_s)
            decision = decide(rollouts.view(transaction, row, now_s=now_s))
            told = rollouts.save_decision(transaction, row, decision, now_s=now_s)
        if told or decision.action != "hold":
            _log.info("rollout %s: %s, %s", rollout, decision.action, decision.reason)
        return told


def _takes_newcomers(transaction: Transaction, row: RolloutRow) -> bool:
    """Tell whether a rollout is in its last stage, which takes in devices that enrolled late."""
    last = row.stage == len(rollouts.stages(transaction, row.id))
    return last and row.rollback_of is None and row.state == RolloutState.RUNNING


def _new_id() -> str:
    return f"r{secrets.token_hex(5)}"


def _no_device(selector: str) -> str:
    if selector:
        return f"no enrolled device matches the selector {selector!r}"
    return "no device is enrolled"


def _refuse_busy(part: DeploymentRow | None) -> None:
    if part is not None:
        raise ConflictError(
            f"device {part.device} takes part in rollout {part.rollout}, which has not ended",
            remedy="wait for it, abort it, or choose other devices",
        )


def _specs(stages: Sequence[Stage]) -> tuple[StageSpec, ...]:
    if not 1 <= len(stages) <= MAX_STAGES:
        raise InvalidRequestError(f"a rollout has 1 to {MAX_STAGES} stages, not {len(stages)}")
    for number, stage in enumerate(stages, start=1):
        if (stage.count is None) == (stage.percent is None):
            raise InvalidRequestError(f"stage {number} needs either a count or a percent")
    for before, after in pairwise(stages):
        if (before.count or 0) > (after.count or before.count or 0) or (before.percent or 0) > (
            after.percent or before.percent or 0
        ):
            raise InvalidRequestError(
                "a stage reaches fewer devices than the one before it",
                remedy="stages are cumulative: give each as a total",
            )
    return tuple(StageSpec(count=stage.count, percent=stage.percent) for stage in stages)


def _limits(request: RolloutRequest) -> Limits:
    return Limits(
        max_in_flight=request.max_in_flight,
        soak_s=request.soak_s,
        device_deadline_s=request.device_deadline_s,
        max_failures=request.max_failures,
        max_failure_percent=request.max_failure_percent,
        min_finished=request.min_finished,
        approval=request.approval,
    )


def _deployment(part: DeploymentRow) -> Deployment:
    return convert({name: getattr(part, name) for name in _PARTS}, Deployment)
