"""Takes devices out of a rollout: they go back, or are cancelled.

It has ended, or devices that have not begun in it leave it.

Rules:
- One transaction takes out only so many. What is left is saved, and nothing of it starts: the
  rollout has ended, or it waits until that is done.
- A device goes back and is cancelled in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import false
from sqlalchemy.orm import Session

from controller.domain.states import (
    ORDERED_DEPLOYMENTS,
    UNFINISHED_DEPLOYMENTS,
    DeploymentState,
    WorkKind,
)
from controller.store import deployment_changes as changes
from controller.store import deployments, desired, rollout_work, way_back
from controller.store.deployment_changes import Before, Verdict
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import DeploymentRow, RolloutRow
from controller.store.work_tables import RolloutWorkRow

BACK_AT_ONCE: Final = 100
"""The greatest number of devices that go back in one transaction: each gets a desired state."""


TAKEN_BACK: Final[Mapping[str, Sequence[DeploymentState]]] = {
    WorkKind.TAKE_OUT: (*ORDERED_DEPLOYMENTS, DeploymentState.FAILED),
    WorkKind.RECALL: (DeploymentState.WAITING,),
    WorkKind.CANCEL: (),
    WorkKind.LET_FINISH: (*ORDERED_DEPLOYMENTS, DeploymentState.FAILED),
}
"""Which devices go back to what they had; none that had what `LET_FINISH` is to rid them of."""

_CANCELLED: Final[Mapping[str, Sequence[DeploymentState]]] = {
    WorkKind.TAKE_OUT: UNFINISHED_DEPLOYMENTS,
    WorkKind.RECALL: (DeploymentState.WAITING,),
    WorkKind.CANCEL: (DeploymentState.PENDING,),
    WorkKind.LET_FINISH: UNFINISHED_DEPLOYMENTS,
}


def begin(
    session: Session, row: RolloutRow, kind: WorkKind, verdict: Verdict, *, now_s: float
) -> list[str]:
    """Take devices out of a rollout that has ended, as many as now can be, and save the rest.

    Those that were still to leave it do so before, in transactions of their own: they keep why.

    Args:
        session: The transaction.
        row: The rollout, locked.
        kind: Which devices, one of `ENDING_WORK`.
        verdict: Why.
        now_s: Wall time.

    Returns:
        The devices that go back, with a new desired state.
    """
    part = rollout_work.save_ending(session, row.id, kind, verdict)
    if rollout_work.is_left(session, row.id, WorkKind.LET_GO):
        return []
    return step(session, row, part, now_s=now_s)


def step(session: Session, row: RolloutRow, part: RolloutWorkRow, *, now_s: float) -> list[str]:
    """Take some devices out of a rollout.

    Args:
        session: The transaction.
        row: The rollout, locked.
        part: What is left to do, one of `ENDING_WORK`; it goes when nothing is.
        now_s: Wall time.

    Returns:
        The devices that go back, with a new desired state.
    """
    verdict = Verdict(error_code=part.error_code, detail=part.detail)
    if part.kind == WorkKind.LET_GO:
        let_go(session, row, list(part.devices), verdict, now_s=now_s)
        session.delete(part)
        return []
    cancelled, bad = _CANCELLED[part.kind], None
    if part.kind == WorkKind.LET_FINISH:
        bad = way_back.rids_of(session, row)
    back = way_back.to_restore(session, row.id, TAKEN_BACK[part.kind], but=bad, limit=BACK_AT_ONCE)
    told = send_back(session, row, back, now_s=now_s)
    changes.cancel(session, row.id, told, cancelled, verdict, now_s=now_s)
    if len(told) < BACK_AT_ONCE:
        # One that is to start again has no order to keep.
        is_ordered = DeploymentRow.state.in_(ORDERED_DEPLOYMENTS)
        keep = false() if bad is None else way_back.had(bad) & is_ordered
        some = deployments.some_in_state(
            session, row.id, cancelled, but=keep, limit=rollout_work.AT_ONCE
        )
        changes.cancel(session, row.id, some, cancelled, verdict, now_s=now_s)
        if len(some) < rollout_work.AT_ONCE:
            session.delete(part)
    return told


def let_go(
    session: Session, row: RolloutRow, devices: Sequence[str], verdict: Verdict, *, now_s: float
) -> None:
    """Take devices that have not begun out of a rollout that goes on.

    Args:
        session: The transaction.
        row: The rollout, locked.
        devices: The devices, as many as one transaction may take out.
        verdict: Why.
        now_s: Wall time.
    """
    pending = (DeploymentState.PENDING,)
    changes.cancel(session, row.id, devices, pending, verdict, now_s=now_s)


def send_back(
    session: Session, row: RolloutRow, back: Mapping[str, Before], *, now_s: float
) -> list[str]:
    """Order what devices of a rollout had before it.

    Args:
        session: The transaction.
        row: The rollout.
        back: Each device with what it had.
        now_s: Wall time.

    Returns:
        The devices, sorted.
    """
    if not back:
        return []
    restore(session, row.id, row.model, back, now_s=now_s)
    names = sorted(back)
    reason = named(names, "back to what was there before")
    log(session, row.id, action="restore", reason=reason, now_s=now_s)
    return names


def restore(
    session: Session, rollout: str, model: str, back: Mapping[str, Before], *, now_s: float
) -> None:
    """Order what devices had of a model before; one that had nothing is to have nothing of it.

    Args:
        session: The transaction.
        rollout: For which rollout.
        model: The model.
        back: Each device with what it had.
        now_s: Wall time.
    """
    releases = {device: before.release for device, before in back.items()}
    without = {device for device, before in back.items() if before.is_nothing}
    desired.issue(session, model, releases, rollout=rollout, now_s=now_s, without=without)
