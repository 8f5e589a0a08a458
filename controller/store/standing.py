"""All that is known of a device that speaks, in one query: most messages need just this."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, bindparam, select, update
from sqlalchemy.orm import Session

from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    DEPLOYMENT_TRANSITIONS,
    DeploymentEvent,
    DeviceState,
    outcome,
    sources,
)
from controller.store.statements import changed_rows
from controller.store.tables import DeploymentRow, DesiredStateRow, DeviceRow, RolloutRow

SEEN_EVERY_S = 30.0
"""How exact `last_seen_at_s` is: a device that talks all the time must not cause a write each."""

# Built once: composing a statement costs more than SQLite takes to answer it.
_STANDING = (
    select(DeviceRow, DesiredStateRow, DeploymentRow)
    .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
    .outerjoin(
        DeploymentRow,
        and_(
            DeploymentRow.device == DeviceRow.id,
            DeploymentRow.revision == DesiredStateRow.release_revision,
            DeploymentRow.rollout.in_(
                select(RolloutRow.id).where(RolloutRow.state.in_(ACTIVE_ROLLOUTS))
            ),
        ),
    )
    .where(DeviceRow.id == bindparam("device"), DeviceRow.state == DeviceState.ENROLLED)
)
_SEEN = select(DeviceRow.online, DeviceRow.last_seen_at_s).where(
    DeviceRow.id == bindparam("device"), DeviceRow.state == DeviceState.ENROLLED
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An enrolled device, what it should run, and for which rollout that is still open."""

    device: DeviceRow
    desired: DesiredStateRow | None
    deployment: DeploymentRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a deployment ended."""

    error_code: str = ""
    detail: str = ""


NO_VERDICT = Verdict()


def find(session: Session, device: str) -> Standing | None:
    """Return what is known of a device, or None when it is not enrolled."""
    found = session.execute(_STANDING, {"device": device}).first()
    if found is None:
        return None
    row, wanted, part = found
    return Standing(device=row, desired=wanted, deployment=part)


def note_seen(row: DeviceRow, *, now_s: float) -> None:
    """Record that a device said something."""
    if _is_stale(row.online, row.last_seen_at_s, now_s):
        row.online = True
        row.last_seen_at_s = now_s


def is_noted(session: Session, device: str, *, now_s: float) -> bool | None:
    """Tell whether it is recorded that a device was heard of lately; None for a stranger."""
    found = session.execute(_SEEN, {"device": device}).first()
    if found is None:
        return None
    return not _is_stale(found[0], found[1], now_s)


def settle(
    session: Session, part: DeploymentRow, event: DeploymentEvent, verdict: Verdict, *, now_s: float
) -> bool:
    """Record the outcome that a device reported.

    Args:
        session: The transaction.
        part: The deployment.
        event: `SUCCEED` or `FAIL`.
        verdict: Why.
        now_s: Wall time.

    Returns:
        False when the deployment is in a state that this outcome does not change.
    """
    changed = changed_rows(
        session,
        update(DeploymentRow)
        .where(
            DeploymentRow.rollout == part.rollout,
            DeploymentRow.device == part.device,
            DeploymentRow.revision == part.revision,
            DeploymentRow.state.in_(sources(DEPLOYMENT_TRANSITIONS, event)),
        )
        .values(
            state=outcome(DEPLOYMENT_TRANSITIONS, event),
            finished_at_s=now_s,
            error_code=verdict.error_code,
            detail=verdict.detail,
        )
        .execution_options(synchronize_session=False),
    )
    return changed == 1


def _is_stale(online: bool, last_seen_at_s: float | None, now_s: float) -> bool:
    return not online or last_seen_at_s is None or last_seen_at_s < now_s - SEEN_EVERY_S
