"""Deployments: the part of one device in a rollout, and the release to which it can go back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, exists, func, select, update
from sqlalchemy.orm import Session

from controller.domain.rollout_policy import InFlight
from controller.domain.selectors import Selector
from controller.domain.states import (
    DEPLOYMENT_TRANSITIONS,
    UNFINISHED_DEPLOYMENTS,
    DeploymentEvent,
    DeploymentState,
    DeviceState,
    ReleaseState,
    outcome,
    sources,
)
from controller.errors import IllegalTransitionError
from controller.store import devices as device_rows
from controller.store.database import changed_rows, in_batches
from controller.store.releases import published
from controller.store.tables import (
    Base,
    DeploymentRow,
    DesiredStateRow,
    DeviceRow,
    ReleaseRow,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a deployment ended."""

    error_code: str = ""
    detail: str = ""


NO_VERDICT = Verdict()


def counts(session: Session, rollout: str) -> dict[DeploymentState, int]:
    """Return how many deployments of a rollout are in each state."""
    rows = session.execute(
        select(DeploymentRow.state, func.count())
        .where(DeploymentRow.rollout == rollout)
        .group_by(DeploymentRow.state)
    )
    return {DeploymentState(state): count for state, count in rows}


def previous_counts(session: Session, rollout: str) -> dict[str, int]:
    """Return how many started devices of a rollout had each release before, by `name:version`."""
    rows = session.execute(
        select(ReleaseRow.name, ReleaseRow.version, func.count())
        .join(DeploymentRow, DeploymentRow.previous == ReleaseRow.digest)
        .where(DeploymentRow.rollout == rollout)
        .group_by(ReleaseRow.name, ReleaseRow.version)
        .order_by(ReleaseRow.name, ReleaseRow.version)
    )
    return {f"{name}:{version}": count for name, version, count in rows}


def in_flight(session: Session, rollout: str) -> tuple[InFlight, ...]:
    """Return the devices of a rollout that were started and have not finished."""
    rows = session.execute(
        select(DeploymentRow.device, DeploymentRow.started_at_s)
        .where(DeploymentRow.rollout == rollout, DeploymentRow.state == DeploymentState.ASSIGNED)
        .order_by(DeploymentRow.device)
    )
    return tuple(InFlight(device=device, started_at_s=at_s or 0.0) for device, at_s in rows)


def candidates(session: Session, rollout: str, *, limit: int) -> tuple[str, ...]:
    """Return the devices of a rollout that start next: those that are online first."""
    return tuple(
        session.scalars(
            select(DeploymentRow.device)
            .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
            .where(DeploymentRow.rollout == rollout, DeploymentRow.state == DeploymentState.PENDING)
            .order_by(DeviceRow.online.desc(), DeploymentRow.position, DeploymentRow.device)
            .limit(limit)
        )
    )


def of_rollout(session: Session, rollout: str, *, limit: int) -> list[DeploymentRow]:
    """Return deployments of a rollout, sorted by device."""
    return list(
        session.scalars(
            select(DeploymentRow)
            .where(DeploymentRow.rollout == rollout)
            .order_by(DeploymentRow.device)
            .limit(limit)
        )
    )


def started_devices(session: Session, rollout: str) -> list[str]:
    """Return the enrolled devices that a rollout started, whatever their outcome."""
    return list(
        session.scalars(
            select(DeploymentRow.device)
            .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
            .where(
                DeploymentRow.rollout == rollout,
                DeploymentRow.started_at_s.is_not(None),
                DeviceRow.state == DeviceState.ENROLLED,
            )
            .order_by(DeploymentRow.device)
        )
    )


def unfinished(session: Session, devices: Sequence[str]) -> list[DeploymentRow]:
    """Return the unfinished deployments of some devices, in any rollout."""
    found: list[DeploymentRow] = []
    for batch in in_batches(devices):
        found.extend(
            session.scalars(
                select(DeploymentRow).where(
                    DeploymentRow.device.in_(batch),
                    DeploymentRow.state.in_(UNFINISHED_DEPLOYMENTS),
                )
            )
        )
    return found


def newcomers(session: Session, rollout: str, selector: Selector, *, limit: int) -> list[str]:
    """Return enrolled devices that match a selector and take part in no unfinished rollout.

    Args:
        session: The transaction.
        rollout: Leave out the devices that take part in this one, finished or not.
        selector: Which devices it is for.
        limit: The greatest number.

    Returns:
        Their identifiers.
    """
    takes_part = exists().where(
        DeploymentRow.rollout == rollout, DeploymentRow.device == DeviceRow.id
    )
    busy = exists().where(
        DeploymentRow.device == DeviceRow.id, DeploymentRow.state.in_(UNFINISHED_DEPLOYMENTS)
    )
    statement = (
        select(DeviceRow.id)
        .where(
            DeviceRow.state == DeviceState.ENROLLED,
            ~takes_part,
            ~busy,
            *device_rows.selected(selector),
        )
        .order_by(DeviceRow.id)
        .limit(limit)
    )
    return list(session.scalars(statement))


def busy(session: Session, selector: Selector) -> DeploymentRow | None:
    """Return an unfinished deployment of a device that matches a selector, or None."""
    return session.scalar(
        select(DeploymentRow)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(DeploymentRow.state.in_(UNFINISHED_DEPLOYMENTS), *device_rows.selected(selector))
        .order_by(DeploymentRow.device)
        .limit(1)
    )


def add(session: Session, rollout: str, places: Iterable[tuple[str, int]]) -> None:
    """Add devices to a rollout, each with its place in the order of starting."""
    session.add_all(
        DeploymentRow(
            rollout=rollout,
            device=device,
            state=DeploymentState.PENDING,
            position=position,
            stage=0,
            phase="",
            done_bytes=0,
            total_bytes=0,
            error_code="",
            detail="",
        )
        for device, position in places
    )
    session.flush()


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
    if event is not DeploymentEvent.ASSIGN:
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
            .where(
                DeploymentRow.rollout == rollout,
                DeploymentRow.device.in_(batch),
                DeploymentRow.state.in_(sorted(allowed)),
            )
            .values(**values)
            .execution_options(synchronize_session=False),
        )
    if changed != len(devices):
        raise IllegalTransitionError(
            f"rollout {rollout}: {len(devices) - changed} devices can no longer {event}"
        )


def start(
    session: Session,
    rollout: str,
    revisions: Mapping[str, int],
    before: Mapping[str, str | None],
    *,
    stage: int,
    now_s: float,
) -> None:
    """Record that pending deployments are started.

    Args:
        session: The transaction.
        rollout: The rollout.
        revisions: Device to the revision of the desired state that starts it; at least one.
        before: Device to the release to which it can go back, or None.
        stage: In which stage.
        now_s: Wall time.

    Raises:
        IllegalTransitionError: A deployment is no longer pending.
    """
    table = Base.metadata.tables[DeploymentRow.__tablename__]
    session.flush()
    session.connection().execute(
        update(table)
        .where(table.c.rollout == rollout, table.c.device == bindparam("of_device"))
        .values(
            revision=bindparam("new_revision"),
            previous=bindparam("had"),
            stage=stage,
            started_at_s=now_s,
        ),
        [
            {"of_device": device, "new_revision": revision, "had": before.get(device)}
            for device, revision in revisions.items()
        ],
    )
    move(session, rollout, list(revisions), DeploymentEvent.ASSIGN, now_s=now_s)


def unfinished_of(session: Session, rollout: str) -> list[str]:
    """Return the devices of a rollout whose deployment has not finished."""
    return list(
        session.scalars(
            select(DeploymentRow.device)
            .where(
                DeploymentRow.rollout == rollout, DeploymentRow.state.in_(UNFINISHED_DEPLOYMENTS)
            )
            .order_by(DeploymentRow.device)
        )
    )


def releases_before(session: Session, devices: Sequence[str]) -> dict[str, str | None]:
    """Return the release that each device has now, so that it can go back to it later.

    The release that a device reports takes precedence over the one that it was ordered to run. No
    device can go back to a release that is unknown or revoked.

    Args:
        session: The transaction.
        devices: Which devices.

    Returns:
        Device to digest, or None.
    """
    found: dict[str, str | None] = {}
    for batch in in_batches(devices):
        rows = session.execute(
            select(DeviceRow.id, DeviceRow.reported_release, DesiredStateRow.release)
            .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
            .where(DeviceRow.id.in_(batch))
        ).all()
        usable = published(session, {digest for row in rows for digest in row[1:] if digest})
        for device, reported, desired in rows:
            found[device] = next((item for item in (reported, desired) if item in usable), None)
    return found


def to_restore(session: Session, rollout: str) -> dict[str, str | None]:
    """Return a rollout's devices that failed or have not finished, and the release to restore.

    Args:
        session: The transaction.
        rollout: The rollout.

    Returns:
        Device to digest or None; devices that have been given another release since are left out.
    """
    rows = session.execute(
        select(DeploymentRow.device, DeploymentRow.previous, ReleaseRow.state)
        .join(
            DesiredStateRow,
            (DesiredStateRow.device == DeploymentRow.device)
            & (DesiredStateRow.release_revision == DeploymentRow.revision),
        )
        .outerjoin(ReleaseRow, ReleaseRow.digest == DeploymentRow.previous)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state.in_((DeploymentState.ASSIGNED, DeploymentState.FAILED)),
        )
    )
    return {
        device: before if state == ReleaseState.PUBLISHED else None
        for device, before, state in rows
    }
