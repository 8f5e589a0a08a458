"""Which devices run a release or are to run it, and the release to which each can go back.

Rules:
- No device can go back to a release that is unknown or revoked.
- No device goes back to the release that a rollout brings it, whatever it reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from controller.domain.states import (
    ORDERED_DEPLOYMENTS,
    DeploymentState,
    DeviceState,
    ReleaseState,
)
from controller.store.database import in_batches
from controller.store.deployments import target
from controller.store.releases import published
from controller.store.tables import (
    DeploymentRow,
    DesiredStateRow,
    DeviceRow,
    ReleaseRow,
    RolloutRow,
)

_WAY_BACK = and_(
    ReleaseRow.digest == DeploymentRow.previous,
    ReleaseRow.digest != target(),
    ReleaseRow.state == ReleaseState.PUBLISHED,
)
"""The release is another one, to which the device of a deployment can go back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A device that runs a release."""

    device: str
    online: bool
    rollout: str | None
    """One that brought it."""

    previous: ReleaseRow | None
    """What the device had before that rollout, if it can go back to it."""


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


def still_on(session: Session, rollout: str) -> dict[str, str | None]:
    """Return the devices that a rollout started and that run its release or are to run it.

    Args:
        session: The transaction.
        rollout: The rollout.

    Returns:
        Enrolled device to the release that it had before the rollout and can go back to, or None.
    """
    rows = session.execute(
        select(DeploymentRow.device, ReleaseRow.digest)
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .outerjoin(DesiredStateRow, DesiredStateRow.device == DeploymentRow.device)
        .outerjoin(ReleaseRow, _WAY_BACK)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.started_at_s.is_not(None),
            DeviceRow.state == DeviceState.ENROLLED,
            or_(DesiredStateRow.release == target(), DeviceRow.reported_release == target()),
        )
        .order_by(DeploymentRow.device)
    )
    found: dict[str, str | None] = dict(rows.all())
    return found


def running(session: Session, release: str, *, limit: int) -> list[Running]:
    """Return the enrolled devices that run a release, and a rollout that brought it to each.

    Args:
        session: The transaction.
        release: The digest.
        limit: The greatest number.

    Returns:
        The devices, sorted. Of several rollouts a device has one that knows a way back; of those,
        the one that brought the release to most of the devices; of those, the newest.
    """
    found = session.execute(
        select(DeviceRow.id, DeviceRow.online)
        .where(DeviceRow.reported_release == release, DeviceRow.state == DeviceState.ENROLLED)
        .order_by(DeviceRow.id)
        .limit(limit)
    ).all()
    ways: dict[str, list[tuple[str | None, ReleaseRow | None]]] = {}
    for batch in in_batches([device for device, _online in found]):
        rows = session.execute(
            select(DeploymentRow.device, DeploymentRow.rollout, ReleaseRow)
            .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
            .outerjoin(ReleaseRow, _WAY_BACK)
            .where(
                DeploymentRow.device.in_(batch),
                DeploymentRow.started_at_s.is_not(None),
                target() == release,
            )
            .order_by(DeploymentRow.started_at_s.desc(), DeploymentRow.rollout)
        )
        for device, rollout, before in rows:
            ways.setdefault(device, []).append((rollout, before))
    sizes = Counter(rollout for options in ways.values() for rollout, _before in options)

    def worth(way: tuple[str | None, ReleaseRow | None]) -> tuple[bool, int]:
        return way[1] is not None, sizes[way[0]]

    shown = []
    for name, online in found:
        way = max(ways.get(name, [(None, None)]), key=worth)
        shown.append(Running(device=name, online=online, rollout=way[0], previous=way[1]))
    return shown


def releases_before(
    session: Session, rollout: RolloutRow, wanted: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the release to which each device can go back, before a rollout orders it.

    It is the first of these that is not the ordered one: what the device reports, what it is to run
    now, what was recorded at an earlier order of this rollout or of the one that it tries again.
    A device that is told to go back still reports the ordered release until it has done so.

    Args:
        session: The transaction.
        rollout: The rollout.
        wanted: Device to the digest that it is about to be ordered to run.

    Returns:
        Device to digest, or None. It is the ordered digest for a device that is to run it already
        and for which no other is known.
    """
    orders = [rollout.id, rollout.origin if rollout.is_retry else None]
    earlier = and_(DeploymentRow.device == DeviceRow.id, DeploymentRow.rollout.in_(orders))
    found: dict[str, str | None] = {}
    for batch in in_batches(sorted(wanted)):
        rows = session.execute(
            select(
                DeviceRow.id,
                DeviceRow.reported_release,
                DesiredStateRow.release,
                DeploymentRow.previous,
            )
            .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
            .outerjoin(DeploymentRow, earlier)
            .where(DeviceRow.id.in_(batch))
        ).all()
        usable = published(session, {digest for row in rows for digest in row[1:] if digest})
        for device, reported, desired, before in rows:
            digest = wanted[device]
            same = digest if desired == digest else None
            others = (i for i in (reported, desired, before) if i in usable and i != digest)
            found[device] = next(others, found.get(device, same))
    return found


def to_restore(session: Session, rollout: str) -> dict[str, str | None]:
    """Return a rollout's devices that failed or have not finished, and the release to restore.

    Args:
        session: The transaction.
        rollout: The rollout.

    Returns:
        Device to digest or None. Devices that have been given another release since are left out,
        and so are those that were to run the rollout's release before it: they keep it.
    """
    rows = session.execute(
        select(DeploymentRow.device, DeploymentRow.previous, ReleaseRow.state)
        .join(
            DesiredStateRow,
            (DesiredStateRow.device == DeploymentRow.device)
            & (DesiredStateRow.release_revision == DeploymentRow.revision),
        )
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .outerjoin(ReleaseRow, ReleaseRow.digest == DeploymentRow.previous)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.previous.is_distinct_from(target()),
            DeploymentRow.state.in_((*ORDERED_DEPLOYMENTS, DeploymentState.FAILED)),
        )
    )
    return {
        device: before if state == ReleaseState.PUBLISHED else None
        for device, before, state in rows
    }
