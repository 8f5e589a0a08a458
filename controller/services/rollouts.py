"""What the operator orders: make a rollout, pause it, resume it, approve, abort, roll back.

Rules:
- An order that the state does not allow is refused and changes nothing.
- A device takes part in one unfinished rollout at a time.
- A rollback is a rollout of its own over the devices that the first one touched, with the same
  stages and limits; it ends the first one if that still goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import pairwise

from sqlalchemy.orm import Session

from controller.domain.rollout_policy import Limits, StageSpec, counted
from controller.domain.selectors import parse_selector
from controller.domain.states import ACTIVE_ROLLOUTS, RolloutOrder, RolloutState
from controller.errors import ConflictError, InvalidRequestError
from controller.schemas import RollbackRequest, RolloutRequest, Stage
from controller.services import rollout_steps
from controller.services.director import Director
from controller.store import deployments, releases, rollouts
from controller.store.database import Database
from controller.store.tables import DeploymentRow, RolloutRow
from wire.clock import Clock

MAX_DEVICES = 1_000_000
MAX_STAGES = 100


class RolloutOrders:
    """Carries out the operator's orders.

    Args:
        database: The control state.
        director: Tells devices that go back.
        clock: Wall time.
    """

    def __init__(self, database: Database, director: Director, clock: Clock) -> None:
        self._database = database
        self._director = director
        self._clock = clock

    def create(self, request: RolloutRequest) -> str:
        """Make a rollout.

        Args:
            request: What, to whom, and how carefully.

        Returns:
            Its identifier.

        Raises:
            InvalidRequestError: Stages that make no sense, or a selector that means no device.
            SelectorError: The selector cannot be read.
            UnknownReleaseError: No such release.
            ConflictError: The release was revoked, or a device takes part in another rollout.
        """
        selector = parse_selector(request.selector)
        specs = _specs(request.stages)
        now_s = self._clock.now_s()
        with self._database.transaction() as session:
            release = releases.get_published(session, request.release)
            devices = deployments.newcomers(session, "", selector, limit=MAX_DEVICES)
            _refuse_busy(deployments.busy(session, selector))
            if not devices:
                raise InvalidRequestError(
                    f"no enrolled device matches {request.selector!r}",
                    remedy="list devices with the same selector",
                )
            row = _new_row(release.digest, request.selector, _limits(request), now_s)
            _begin(session, row, specs, devices)
        return row.id

    def roll_back(self, rollout: str, request: RollbackRequest) -> str:
        """Bring the devices that a rollout touched to a named release.

        Args:
            rollout: The rollout to undo; it is aborted if it still goes on.
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
        with self._database.transaction() as session:
            first = rollouts.get(session, rollout, lock=True)
            release = releases.get_published(session, request.release)
            row = _new_row(release.digest, first.selector, rollouts.limits(first), now_s)
            row.rollback_of = first.id
            if first.state in ACTIVE_ROLLOUTS:
                reason = f"rolled back to {release.name}:{release.version} by rollout {row.id}"
                back = rollout_steps.end_rollout(
                    session, first, RolloutOrder.ABORT, reason=reason, now_s=now_s
                )
            devices = deployments.started_devices(session, first.id)
            if not devices:
                raise ConflictError(f"rollout {first.id} touched no device: nothing to roll back")
            _refuse_busy(next(iter(deployments.unfinished(session, devices)), None))
            _begin(session, row, rollouts.stages(session, first.id), devices)
        self._director.publish(back)
        return row.id

    def pause(self, rollout: str) -> None:
        """Start nothing until resumed.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It does not run.
        """
        self._order(rollout, RolloutOrder.PAUSE)

    def resume(self, rollout: str) -> None:
        """Go on.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It is not paused.
        """
        self._order(rollout, RolloutOrder.RESUME)

    def abort(self, rollout: str) -> None:
        """End a rollout; what failed or has not finished goes back.

        Args:
            rollout: Its identifier.

        Raises:
            UnknownRolloutError: No such rollout.
            IllegalTransitionError: It has ended already.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as session:
            row = rollouts.get(session, rollout, lock=True)
            back = rollout_steps.end_rollout(
                session, row, RolloutOrder.ABORT, reason="aborted by the operator", now_s=now_s
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
        with self._database.transaction() as session:
            row = rollouts.get(session, rollout, lock=True)
            last = row.stage == len(rollouts.stages(session, rollout))
            complete = row.stage_complete_at_s is not None
            if not row.approval or last or not complete or row.state not in ACTIVE_ROLLOUTS:
                raise ConflictError(f"rollout {row.id} has no stage that waits for approval")
            row.approved_stage = row.stage + 1
            reason = f"stage {row.approved_stage} was approved by the operator"
            rollouts.log(session, row.id, action="approve", reason=reason, now_s=now_s)

    def _order(self, rollout: str, order: RolloutOrder) -> None:
        now_s = self._clock.now_s()
        with self._database.transaction() as session:
            row = rollouts.get(session, rollout, lock=True)
            rollouts.move(session, row, order)
            reason = f"{order}d by the operator"
            rollouts.log(session, row.id, action=order, reason=reason, now_s=now_s)


def _new_row(release: str, selector: str, limits: Limits, now_s: float) -> RolloutRow:
    return RolloutRow(
        id=f"r{secrets.token_hex(5)}",
        release=release,
        rollback_of=None,
        selector=selector,
        state=RolloutState.RUNNING,
        reason="",
        max_in_flight=limits.max_in_flight,
        soak_s=limits.soak_s,
        device_deadline_s=limits.device_deadline_s,
        max_failures=limits.max_failures,
        max_failure_percent=limits.max_failure_percent,
        min_finished=limits.min_finished,
        approval=limits.approval,
        initial_devices=0,
        stage=1,
        approved_stage=1,
        created_at_s=now_s,
    )


def _begin(
    session: Session, row: RolloutRow, specs: Sequence[StageSpec], devices: Sequence[str]
) -> None:
    row.initial_devices = len(devices)
    rollouts.add(session, row, specs)
    rollout_steps.take_in(session, row, devices)
    what = "made" if row.rollback_of is None else f"made to roll back {row.rollback_of}"
    reason = f"{what} for {counted(len(devices))} in {len(specs)} stages"
    rollouts.log(session, row.id, action="create", reason=reason, now_s=row.created_at_s)


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
