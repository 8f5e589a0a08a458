"""Changes of deployments, each a guarded update along the table of their states.

Rules:
- A change that finds a deployment in another state than it expects changes nothing, or is an error.
- Times for people are wall time. Limits are measured with the rollout's own clock (`clock_s`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, exists, func, update
from sqlalchemy.orm import Session

from controller.domain.states import (
    DEPLOYMENT_TRANSITIONS,
    ENDING_EVENTS,
    UNFINISHED_DEPLOYMENTS,
    DeploymentEvent,
    DeploymentState,
    outcome,
    sources,
)
from controller.errors import IllegalTransitionError
from controller.store import deployments
from controller.store.database import changed_rows, in_batches
from controller.store.device_tables import DeviceRow
from controller.store.rollout_tables import DeploymentRow
from controller.store.tables import Base


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a deployment ended."""

    error_code: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a device had of a model before a rollout ordered another release of it."""

    release: str | None
    """The release to which it can go back, if there is one."""

    is_nothing: bool
    """Whether it had no release at all, also none that is unknown or revoked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in time: for people, and by the clock of a rollout."""

    now_s: float
    clock_s: float


NO_VERDICT = Verdict()
_TABLE = Base.metadata.tables[DeploymentRow.__tablename__]


def move(
    session: Session,
    rollout: str,
    devices: Sequence[str],
    event: DeploymentEvent,
    *,
    now_s: float,
    verdict: Verdict = NO_VERDICT,
) -> None:
    """Change the state of deployments that the caller found unfinished.

    Args:
        session: The transaction.
        rollout: The rollout.
        devices: Their devices; every deployment must be in a state that allows the event.
        event: What happens to them.
        now_s: Wall time.
        verdict: Why.

    Raises:
        IllegalTransitionError: One of them has finished in the meantime.
    """
    values: dict[str, object] = {"state": outcome(DEPLOYMENT_TRANSITIONS, event)}
    if event in ENDING_EVENTS:
        values |= {
            "finished_at_s": now_s,
            "error_code": verdict.error_code,
            "detail": verdict.detail,
        }
    allowed = set(sources(DEPLOYMENT_TRANSITIONS, event)) & set(UNFINISHED_DEPLOYMENTS)
    changed = 0
    for batch in in_batches(devices):
        changed += changed_rows(
            session,
            update(DeploymentRow)
            .where(*deployments.of(rollout, batch), DeploymentRow.state.in_(sorted(allowed)))
            .values(**values)
            .execution_options(synchronize_session=False),
        )
    if changed != len(devices):
        raise IllegalTransitionError(
            f"rollout {rollout}: {len(devices) - changed} devices can no longer {event}"
        )


def cancel(
    session: Session,
    rollout: str,
    devices: Sequence[str],
    states: Collection[DeploymentState],
    verdict: Verdict,
    *,
    now_s: float,
) -> None:
    """Cancel those deployments of a rollout's devices that are in some states.

    Args:
        session: The transaction.
        rollout: The rollout.
        devices: Its devices.
        states: Which deployments; each must allow it.
        verdict: Why.
        now_s: Wall time.
    """
    for batch in in_batches(devices):
        session.execute(
            update(DeploymentRow)
            .where(*deployments.of(rollout, batch), DeploymentRow.state.in_(sorted(states)))
            .values(
                state=outcome(DEPLOYMENT_TRANSITIONS, DeploymentEvent.CANCEL),
                finished_at_s=now_s,
                error_code=verdict.error_code,
                detail=verdict.detail,
            )
            .execution_options(synchronize_session=False)
        )


def order(
    session: Session,
    rollout: str,
    revisions: Mapping[str, int],
    before: Mapping[str, Before],
    *,
    event: DeploymentEvent,
    stage: int,
    at: Moment,
) -> None:
    """Record that devices with a pending deployment have got their order.

    Args:
        session: The transaction.
        rollout: The rollout.
        revisions: Device to the revision of the desired state that is the order; at least one.
        before: Device to what it had before.
        event: `ASSIGN` if they are online, `WAIT` if they are not.
        stage: In which stage.
        at: Now.

    Raises:
        IllegalTransitionError: A deployment is no longer pending.
    """
    session.flush()
    session.connection().execute(
        update(_TABLE)
        .where(_TABLE.c.rollout == rollout, _TABLE.c.device == bindparam("of_device"))
        .values(
            revision=bindparam("new_revision"),
            previous=bindparam("had"),
            is_first=bindparam("had_nothing"),
            stage=stage,
            started_at_s=at.now_s,
            clock_s=at.clock_s,
            away_s=0.0,
            away_from_s=None,
        ),
        [
            {
                "of_device": device,
                "new_revision": revision,
                "had": before[device].release,
                "had_nothing": before[device].is_nothing,
            }
            for device, revision in revisions.items()
        ],
    )
    move(session, rollout, list(revisions), event, now_s=at.now_s)


def note_presence(session: Session, rollout: str, *, clock_s: float) -> None:
    """Record which devices that are in flight went offline or came back.

    Args:
        session: The transaction.
        rollout: The rollout.
        clock_s: Its own clock.
    """
    part = update(DeploymentRow).where(
        DeploymentRow.rollout == rollout, DeploymentRow.state == DeploymentState.ASSIGNED
    )
    mine = exists().where(DeviceRow.id == DeploymentRow.device)
    gone, here = mine.where(DeviceRow.online.is_(False)), mine.where(DeviceRow.online.is_(True))
    changes = (
        part.where(DeploymentRow.away_from_s.is_(None), gone).values(away_from_s=clock_s),
        part.where(DeploymentRow.away_from_s.is_not(None), here).values(
            away_s=DeploymentRow.away_s + (clock_s - DeploymentRow.away_from_s), away_from_s=None
        ),
    )
    for change in changes:
        session.execute(change.execution_options(synchronize_session=False))


def note_holds(session: Session, rollout: str, *, elapsed_s: float, offline_limit_s: float) -> None:
    """Leave out of the time of devices what they spend waiting for a window, a budget or a hook.

    A device says in its reports what its install waits for. Such time counts like time offline, and
    no longer than a device may be offline: a device must not hold a rollout for ever.

    Args:
        session: The transaction.
        rollout: The rollout.
        elapsed_s: How long the controller has watched it since the last time.
        offline_limit_s: How long a device may be away.
    """
    session.execute(
        update(DeploymentRow)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state == DeploymentState.ASSIGNED,
            DeploymentRow.detail != "",
            DeploymentRow.phase != "reverting",  # its detail says why it goes back
            DeploymentRow.away_from_s.is_(None),
            DeploymentRow.away_s < offline_limit_s,
        )
        .values(away_s=DeploymentRow.away_s + elapsed_s)
        .execution_options(synchronize_session=False)
    )


def take_up_again(session: Session, rollout: str, devices: Sequence[str], *, at: Moment) -> None:
    """Record that devices that waited are in flight again; the time that they waited is forgotten.

    Args:
        session: The transaction.
        rollout: The rollout.
        devices: Devices whose deployments wait.
        at: Now.

    Raises:
        IllegalTransitionError: One of them no longer waits.
    """
    away_s = DeploymentRow.away_s + (
        at.clock_s - func.coalesce(DeploymentRow.away_from_s, at.clock_s)
    )
    for batch in in_batches(devices):
        session.execute(
            update(DeploymentRow)
            .where(*deployments.of(rollout, batch))
            .values(clock_s=DeploymentRow.clock_s + away_s, away_s=0.0, away_from_s=None)
            .execution_options(synchronize_session=False)
        )
    move(session, rollout, devices, DeploymentEvent.ASSIGN, now_s=at.now_s)


def end_waiting(
    session: Session,
    model: str,
    devices: Sequence[str],
    verdict: Verdict,
    *,
    now_s: float,
    but: str = "",
) -> None:
    """End the waiting of devices for releases of a model; rollouts of others go on.

    Args:
        session: The transaction.
        model: The model.
        devices: Which devices.
        verdict: Why.
        now_s: Wall time.
        but: A rollout whose devices go on waiting.
    """
    for batch in in_batches(devices):
        session.execute(
            update(DeploymentRow)
            .where(
                DeploymentRow.device.in_(batch),
                DeploymentRow.model == model,
                DeploymentRow.state == DeploymentState.WAITING,
                DeploymentRow.rollout != but,
            )
            .values(
                state=outcome(DEPLOYMENT_TRANSITIONS, DeploymentEvent.CANCEL),
                finished_at_s=now_s,
                error_code=verdict.error_code,
                detail=verdict.detail,
            )
            .execution_options(synchronize_session=False)
        )


def acknowledge_failures(session: Session, rollout: str) -> int:
    """Record that the operator goes on despite the failures so far; return how many are new."""
    return changed_rows(
        session,
        update(DeploymentRow)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state == DeploymentState.FAILED,
            DeploymentRow.acknowledged.is_(False),
        )
        .values(acknowledged=True)
        .execution_options(synchronize_session=False),
    )


def reopen(session: Session, rollout: str, devices: Sequence[str]) -> None:
    """Make cancelled deployments pending again; one that is not cancelled stays as it is.

    Args:
        session: The transaction.
        rollout: The rollout.
        devices: Devices that no other unfinished rollout has.
    """
    _begin_anew(session, rollout, devices, DeploymentEvent.REOPEN)


def replace(session: Session, rollout: str, device: str) -> None:
    """Make the deployment of a device that had succeeded pending: another one has its name.

    Args:
        session: The transaction.
        rollout: The rollout, locked.
        device: The name.
    """
    _begin_anew(session, rollout, [device], DeploymentEvent.REPLACE)


def _begin_anew(
    session: Session, rollout: str, devices: Sequence[str], event: DeploymentEvent
) -> None:
    for batch in in_batches(devices):
        session.execute(
            update(DeploymentRow)
            .where(
                *deployments.of(rollout, batch),
                DeploymentRow.state.in_(sources(DEPLOYMENT_TRANSITIONS, event)),
            )
            .values(
                state=outcome(DEPLOYMENT_TRANSITIONS, event),
                stage=0,
                phase="",
                done_bytes=0,
                total_bytes=0,
                error_code="",
                detail="",
                finished_at_s=None,
            )
            .execution_options(synchronize_session=False)
        )
