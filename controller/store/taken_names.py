"""What a device is to run that enrols in the name of a decommissioned one.

Rules:
- It gets what that was to run: it stands in its place.
- It begins nothing that was stopped since. Nobody who is shut out goes back when a rollout is
  halted, aborted or rolled back, and this device has none of it yet. Then it gets what was there
  before, and nothing where nothing good was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.states import RolloutState
from controller.store import deployments, rollouts, taking_out, way_back
from controller.store.deployment_changes import Before
from controller.store.model_tables import DesiredModelRow
from controller.store.releases import published
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import DeploymentRow, RolloutRow


class Brought(NamedTuple):
    """A rollout that brought the name a release."""

    rollout: str
    previous: str | None
    """What it had before."""


History = Mapping[str, Sequence[Brought]]
"""By release, the oldest first."""


def give(session: Session, device: str, *, now_s: float) -> None:
    """Order what was there before, of each model whose release was stopped.

    Args:
        session: The transaction.
        device: The name.
        now_s: Wall time.
    """
    rows = session.scalars(select(DesiredModelRow).where(DesiredModelRow.device == device)).all()
    wanted = {row.model: row.release for row in rows if row.release is not None}
    for model, release in sorted(wanted.items()):
        brought = _brought(session, device, model)
        good = _good(session, release, brought)
        if good == release:
            continue
        rollout = brought[release][-1].rollout
        before = Before(release=good, is_nothing=good is None)
        taking_out.restore(session, rollout, model, {device: before}, now_s=now_s)
        reason = named([device], "enrolled anew after the end, with what was there before")
        log(session, rollout, action="restore", reason=reason, now_s=now_s)


def _brought(session: Session, device: str, model: str) -> History:
    rows = session.execute(
        select(deployments.target(), RolloutRow.id, DeploymentRow.previous)
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .where(
            DeploymentRow.device == device,
            DeploymentRow.model == model,
            DeploymentRow.started_at_s.is_not(None),
        )
        .order_by(DeploymentRow.started_at_s, RolloutRow.created_at_s, RolloutRow.id)
    )
    found: dict[str, list[Brought]] = {}
    for release, rollout, previous in rows:
        found.setdefault(release, []).append(Brought(rollout, previous))
    return found


def _good(session: Session, release: str, brought: History) -> str | None:
    """Return a release, or the last one before it that was not stopped; None for none."""
    good: str | None = release
    seen: set[str] = set()
    while good is not None and _was_stopped(session, brought.get(good, ())):
        seen.add(good)
        good = brought[good][-1].previous
        if good in seen:
            return None
    return good if good == release or (good and published(session, {good})) else None


def _was_stopped(session: Session, brought: Sequence[Brought]) -> bool:
    """Tell whether a release was stopped after the last rollout that brought it was made."""
    stopped_s = made_s = -math.inf
    for each in brought:
        row = session.get_one(RolloutRow, each.rollout)
        is_over = row.state in {RolloutState.HALTED, RolloutState.ABORTED}
        if way_back.rids_of(session, row) is not None:  # what it brings is good, whatever its end
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
