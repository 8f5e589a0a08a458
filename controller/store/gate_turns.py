"""Who was away at its turn in a stage of a rollout with gates (`controller.domain.gates.turns`)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, delete, func, insert, or_, select
from sqlalchemy.orm import Session

from controller.domain.gates import turns
from controller.domain.rollout_view import RolloutView
from controller.domain.stage_progress import target_of
from controller.domain.states import DeploymentState
from controller.store import control_group
from controller.store.device_tables import DeviceRow
from controller.store.gate_tables import GateAwayRow, GateStageRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow


def note(
    session: Session, row: RolloutRow, view: RolloutView, starting: Sequence[str], *, now_s: float
) -> list[str]:
    """Note who is away, of those whose turn it is while some devices start.

    Now and then others take the places of those of the control group that were away.

    Args:
        session: The transaction; it holds the lock of the rollout.
        row: The rollout.
        view: How it was when it was decided who starts.
        starting: Who is to start.
        now_s: Wall time.

    Returns:
        Those of them that start, without those that are held out from now on.
    """
    if not view.gates:
        return list(starting)
    stage = session.get(GateStageRow, (row.id, view.stage))
    if stage is None:
        stage = GateStageRow(
            rollout=row.id, stage=view.stage, before=view.started, passed=0, began_at_s=now_s
        )
        session.add(stage)
    begun = view.started + len(starting) - stage.before
    passed = turns.passed(begun, target_of(view) - stage.before)
    if passed <= stage.passed:
        return list(starting)
    part = DeploymentRow.position % turns.MOMENTS
    is_drawn = and_(part >= stage.passed, part < passed)
    is_skipped = and_(
        DeploymentRow.is_control.is_(False),
        DeploymentRow.position < _furthest(session, row.id, starting),
    )
    is_pending = DeploymentRow.state == DeploymentState.PENDING
    has_release = and_(
        DeploymentRow.state == DeploymentState.SUCCEEDED,
        DeploymentRow.started_at_s < stage.began_at_s,
    )
    known = select(GateAwayRow.device).where(GateAwayRow.rollout == row.id)
    away = (
        select(DeploymentRow.rollout, DeploymentRow.device, has_release)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(
            DeploymentRow.rollout == row.id,
            DeviceRow.online.is_(False),
            or_(and_(is_pending, or_(is_drawn, is_skipped)), and_(has_release, is_drawn)),
            DeploymentRow.device.not_in(known),
        )
    )
    session.execute(insert(GateAwayRow).from_select(["rollout", "device", "has_release"], away))
    before, stage.passed = stage.passed, passed
    if turns.is_refilled(before, passed):
        return control_group.refill(session, row, starting, passed=passed, now_s=now_s)
    return list(starting)


def begin_anew(session: Session, row: RolloutRow) -> None:
    """Let devices that join the stage have their turn in it, also if it was all over.

    Args:
        session: The transaction; it holds the lock of the rollout.
        row: The rollout.
    """
    session.execute(
        delete(GateStageRow).where(GateStageRow.rollout == row.id, GateStageRow.stage == row.stage)
    )


def _furthest(session: Session, rollout: str, starting: Sequence[str]) -> int:
    """Return the greatest place of devices that start; 0 of none."""
    found = session.scalar(
        select(func.max(DeploymentRow.position)).where(
            DeploymentRow.rollout == rollout, DeploymentRow.device.in_(starting)
        )
    )
    return found or 0
