"""What a device is to run that enrols in the name of a decommissioned one.

Rules:
- It gets what that was to run: it stands in its place.
- What the other had from a rollout that goes on, it gets when the rollout starts it: until then it
  has what was there before. So it starts in no pause, and within all limits.
- It begins nothing that was stopped since. Nobody who is shut out goes back when a rollout is
  halted, aborted or rolled back, and this device has none of it yet. Then it gets what was there
  before, and nothing where nothing good was. If the rollout is resumed, it starts in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.deployment_codes import REPLACED
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    DeploymentState,
    DeviceState,
    RolloutState,
)
from controller.store import deployment_changes as changes
from controller.store import deployments, rollouts, taking_out, way_back
from controller.store.deployment_changes import Before, Verdict
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow
from controller.store.releases import published
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import DeploymentRow, RolloutRow

_GOES_ON: Final = (*ACTIVE_ROLLOUTS, RolloutState.HALTED)
"""The states of a rollout in which it starts devices, or will if it is resumed."""


class Brought(NamedTuple):
    """A rollout that brought the name a release."""

    release: str
    rollout: str
    previous: str | None
    """What it had before."""

    has_succeeded: bool
    is_way_back: bool
    """Whether it brought the name back to what that had had, and rid it of what it had."""


History = Sequence[Brought]
"""The oldest first."""


def lock(session: Session, device: str) -> None:
    """Lock the rollouts that `give` may change, for a name that is decommissioned.

    To be called before the device is locked: orders and ticks lock rollouts first, too.

    Args:
        session: The transaction.
        device: The name.
    """
    rows = (
        select(RolloutRow)
        .join(DeploymentRow, DeploymentRow.rollout == RolloutRow.id)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(
            DeviceRow.id == device,
            DeviceRow.state == DeviceState.DECOMMISSIONED,
            DeploymentRow.state == DeploymentState.SUCCEEDED,
            RolloutRow.state.in_(_GOES_ON),
        )
        .order_by(RolloutRow.id)
        .with_for_update(of=RolloutRow)
    )
    session.scalars(rows).all()


def give(session: Session, device: str, *, now_s: float) -> None:
    """Order what was there before, of each model whose release was stopped or is being rolled out.

    Args:
        session: The transaction, which has called `lock`.
        device: The name.
        now_s: Wall time.
    """
    rows = session.scalars(select(DesiredModelRow).where(DesiredModelRow.device == device)).all()
    wanted = {row.model: row.release for row in rows if row.release is not None}
    for model, release in sorted(wanted.items()):
        brought = _brought(session, device, model)
        last = _last(brought, release)
        if last is None:
            continue
        begins_anew = _goes_on(session, last)
        good = _good(session, last, brought, is_left_out=begins_anew)
        if good == release:
            continue
        before = Before(release=good, is_nothing=good is None)
        taking_out.restore(session, last.rollout, model, {device: before}, now_s=now_s)
        if begins_anew:
            _begin_anew(session, last.rollout, device, now_s=now_s)
        reason = named([device], "enrolled anew, with what was there before")
        log(session, last.rollout, action="restore", reason=reason, now_s=now_s)


def _goes_on(session: Session, last: Brought) -> bool:
    """Tell whether a name had succeeded in a rollout that goes on, or may be resumed."""
    row = session.get_one(RolloutRow, last.rollout)
    return last.has_succeeded and row.state in _GOES_ON and not last.is_way_back


def _begin_anew(session: Session, rollout: str, device: str, *, now_s: float) -> None:
    changes.replace(session, rollout, device)
    row = session.get_one(RolloutRow, rollout)
    if row.state == RolloutState.HALTED or row.superseded_by is not None:
        verdict = Verdict(error_code=REPLACED, detail="another device enrolled in this name")
        pending = (DeploymentState.PENDING,)
        changes.cancel(session, rollout, [device], pending, verdict, now_s=now_s)


def _brought(session: Session, device: str, model: str) -> History:
    rows = session.execute(
        select(
            deployments.target(),
            RolloutRow,
            DeploymentRow.previous,
            DeploymentRow.is_first,
            DeploymentRow.state,
        )
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .where(
            DeploymentRow.device == device,
            DeploymentRow.model == model,
            DeploymentRow.started_at_s.is_not(None),
        )
        .order_by(DeploymentRow.started_at_s, RolloutRow.created_at_s, RolloutRow.id)
    )
    found: list[Brought] = []
    known: set[str | None] = set()
    for release, row, previous, is_first, state in rows:
        bad = way_back.rids_of(session, row)
        known.add(previous)
        is_unknown = previous is None and not is_first
        each = Brought(
            release=release,
            rollout=row.id,
            previous=previous,
            has_succeeded=state == DeploymentState.SUCCEEDED,
            is_way_back=bad is not None and (is_unknown or previous == bad) and release in known,
        )
        found.append(each)
    return found


def _last(brought: History, release: str) -> Brought | None:
    """Return what brought a release last; None for nothing."""
    return next((each for each in reversed(brought) if each.release == release), None)


def _good(session: Session, last: Brought, brought: History, *, is_left_out: bool) -> str | None:
    """Return the last release of a name that was not stopped; None for none.

    Args:
        session: The transaction.
        last: What brought the one that it was to run.
        brought: What brought all that it had.
        is_left_out: Whether that one is not to be had again yet.
    """
    at: Brought | None = last
    before = list(brought[: brought.index(last)])
    while at is not None:
        same = [each for each in brought if each.release == at.release]
        if not (is_left_out and at is last) and not _was_stopped(session, same):
            return at.release if at is last or published(session, {at.release}) else None
        good = at.previous
        # What a rollback took away was stopped by that, so the way goes on to what was before.
        at = _last(before, good) if good is not None else None
        if at is None:
            return good if good is not None and published(session, {good}) else None
        before = before[: before.index(at)]
    return None


def _was_stopped(session: Session, brought: Sequence[Brought]) -> bool:
    """Tell whether a release was stopped after the last rollout that brought it was made."""
    stopped_s = made_s = -math.inf
    for each in brought:
        row = session.get_one(RolloutRow, each.rollout)
        is_over = row.state in {RolloutState.HALTED, RolloutState.ABORTED}
        if each.previous == each.release:  # its end takes nothing away
            if row.state == RolloutState.SUCCEEDED:
                made_s = max(made_s, row.finished_at_s or row.created_at_s)
            continue
        if each.is_way_back:
            made_s = max(made_s, row.created_at_s)
            continue
        if is_over:
            stopped_s = max(stopped_s, row.finished_at_s or row.created_at_s)
        else:
            made_s = max(made_s, row.created_at_s)
        stopped_s = max(stopped_s, _rolled_back_s(session, row))
    return stopped_s > -math.inf and stopped_s >= made_s


def _rolled_back_s(session: Session, row: RolloutRow) -> float:
    """Return when a rollout, or the one that it tries again, was rolled back last."""
    backs = [rollouts.rollback_of(session, row.id)]
    while row.is_retry and row.origin is not None:
        row = session.get_one(RolloutRow, row.origin)
        backs.append(rollouts.rollback_of(session, row.id))
    made = [session.get_one(RolloutRow, name).created_at_s for name in backs if name is not None]
    return max(made, default=-math.inf)
