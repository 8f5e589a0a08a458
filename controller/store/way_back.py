"""Which devices run a release or are to run it, and the release to which each can go back.

Rules:
- No device can go back to a release that is unknown or revoked.
- No device goes back to the release that a rollout brings it, whatever it reports.
- What a rollback takes away comes back by no end of it: see `rids_of`. That is of each device: some
  may be rid of it already, and have what is good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, false, func, or_, select, true
from sqlalchemy.orm import Session, aliased

from controller.domain.states import (
    ORDERED_DEPLOYMENTS,
    DeploymentState,
    DeviceState,
    ReleaseState,
)
from controller.store.database import in_batches
from controller.store.deployment_changes import Before
from controller.store.deployments import target
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.release_tables import ReleaseRow
from controller.store.releases import release_states
from controller.store.rollout_tables import DeploymentRow, RolloutRow

_IS_WANTED = and_(
    DesiredModelRow.device == DeploymentRow.device, DesiredModelRow.model == DeploymentRow.model
)
_IS_TOLD = and_(
    DeviceModelRow.device == DeploymentRow.device, DeviceModelRow.model == DeploymentRow.model
)
_IS_TO_GO = func.coalesce(DesiredModelRow.removed, false())
_WAY_BACK = and_(
    ReleaseRow.digest == DeploymentRow.previous,
    ReleaseRow.digest != target(),
    ReleaseRow.state == ReleaseState.PUBLISHED,
)
"""The release is another one, to which the device of a deployment can go back."""

_GOES_BACK = and_(
    DesiredModelRow.release_revision == DeploymentRow.revision,
    DeploymentRow.previous.is_distinct_from(target()),
)
"""What a deployment has ordered is what its device is to run, and it did not run it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A device that runs a release."""

    device: str
    online: bool
    rollout: str | None
    """One that brought it."""

    previous: ReleaseRow | None
    """What the device had before that rollout, if it can go back to it."""


def rids_of(session: Session, rollout: RolloutRow) -> str | None:
    """Return the release of which a rollout is to rid the devices that had it; None for none.

    A rollback does, and another try of one. A rollback of a rollback brings the release of the
    first rollout again, as that did.

    Args:
        session: The transaction.
        rollout: The rollout.
    """
    first, is_taken_away = rollout, False
    while first.origin is not None:
        is_taken_away ^= not first.is_retry
        first = session.get_one(RolloutRow, first.origin)
    return first.release if is_taken_away else None


def had(release: str) -> ColumnElement[bool]:
    """Return the condition that a device had a release when it began in a rollout.

    Nobody knows it of some devices; one that had nothing is marked as such.
    """
    is_unknown = DeploymentRow.previous.is_(None) & DeploymentRow.is_first.is_(False)
    was = or_(is_unknown, DeploymentRow.previous.is_not_distinct_from(release))
    return and_(DeploymentRow.started_at_s.is_not(None), was)


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


def had_only(session: Session, rollout: str, release: str) -> bool:
    """Tell whether every device that a rollout started had one release before, that one."""
    before = select(DeploymentRow.previous).where(
        DeploymentRow.rollout == rollout, DeploymentRow.started_at_s.is_not(None)
    )
    return set(session.scalars(before.distinct())) == {release}


def still_on(
    session: Session, rollout: str, *, going_back: Sequence[DeploymentState] = ()
) -> dict[str, str | None]:
    """Return the devices that a rollout started and that run its release or are to run it.

    One that is to have nothing of the model is on its way there, and no longer counts.

    Args:
        session: The transaction.
        rollout: The rollout.
        going_back: Devices with deployments in these states are about to be told to go back, so
            that they are no longer to run it.

    Returns:
        Enrolled device to the release that it had before the rollout and can go back to, or None.
    """
    is_wanted = DesiredModelRow.release == target()
    if going_back:
        is_wanted &= ~and_(DeploymentRow.state.in_(going_back), _GOES_BACK)
    rows = session.execute(
        select(DeploymentRow.device, ReleaseRow.digest)
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .outerjoin(DesiredModelRow, _IS_WANTED)
        .outerjoin(DeviceModelRow, _IS_TOLD)
        .outerjoin(ReleaseRow, _WAY_BACK)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.started_at_s.is_not(None),
            DeviceRow.state == DeviceState.ENROLLED,
            or_(is_wanted, and_(DeviceModelRow.release == target(), ~_IS_TO_GO)),
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
        .join(DeviceModelRow, DeviceModelRow.device == DeviceRow.id)
        .where(DeviceModelRow.release == release, DeviceRow.state == DeviceState.ENROLLED)
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
) -> dict[str, Before]:
    """Return the release to which each device can go back, before a rollout orders it.

    It is the first of these that is not the ordered one, nor revoked if there is another: what the
    device reports, what it is to run
    now, what was recorded at an earlier order of this rollout or of the one that it tries again.
    A device that is told to go back still reports the ordered release until it has done so. What it
    is to run comes first where a rollback ordered it, or the end of a rollout that gave it another:
    what it reports is what it was to be rid of. What it is to run counts nothing where it failed to
    install it, but in a rollback.

    Args:
        session: The transaction.
        rollout: The rollout.
        wanted: Device to the digest that it is about to be ordered to run.

    Returns:
        Device to what it had. That is the ordered digest for a device that is to run it already and
        for which no other is known.
    """
    orders = [rollout.id, rollout.origin if rollout.is_retry else None]
    earlier = and_(DeploymentRow.device == DeviceRow.id, DeploymentRow.rollout.in_(orders))
    order, found = aliased(DeploymentRow), dict[str, Before]()
    rids: dict[str, str | None] = {}
    for batch in in_batches(sorted(wanted)):
        rows = session.execute(
            select(
                DeviceRow.id,
                DeploymentRow.is_first,
                order.rollout,
                order.state,
                order.previous,
                DeviceModelRow.release,
                DesiredModelRow.release,
                DeploymentRow.previous,
            )
            .outerjoin(
                DesiredModelRow,
                and_(
                    DesiredModelRow.device == DeviceRow.id, DesiredModelRow.model == rollout.model
                ),
            )
            .outerjoin(
                DeviceModelRow,
                and_(DeviceModelRow.device == DeviceRow.id, DeviceModelRow.model == rollout.model),
            )
            .outerjoin(DeploymentRow, earlier)
            .outerjoin(
                order,
                and_(
                    order.device == DeviceRow.id,
                    order.rollout == DesiredModelRow.rollout,
                    order.revision == DesiredModelRow.release_revision,
                ),
            )
            .where(DeviceRow.id.in_(batch))
        ).all()
        states = release_states(session, {digest for row in rows for digest in row[5:] if digest})
        for ordering in {row[2] for row in rows if row[2]} - rids.keys():
            rids[ordering] = rids_of(session, session.get_one(RolloutRow, ordering))
        for device, was_first, ordering, order_state, had_then, told, ordered, recorded in rows:
            digest, seen = wanted[device], found.get(device)
            # Back to an older release again, rather than to the one to be rid of. The end of a
            # rollout orders without one.
            bad = rids.get(ordering)
            is_rid = bad is not None and (told == bad or had_then in {None, bad})
            is_meant = is_rid or ordering not in rids
            has_failed = order_state == DeploymentState.FAILED and not is_meant
            meant = None if has_failed else ordered
            known = [meant, told, recorded] if is_meant else [told, meant, recorded]
            others = [each for each in known if each in states and each != digest]
            same = digest if ordered == digest else None
            release = next(
                (each for each in others if states[each] == ReleaseState.PUBLISHED),
                seen.release if seen else same or next(iter(others), None),
            )
            has_none = not any(known) or (bool(was_first) and set(known) <= {digest, None})
            found[device] = Before(
                release=release,
                is_nothing=release is None and (has_none or (seen is not None and seen.is_nothing)),
            )
    return found


def to_restore(
    session: Session,
    rollout: str,
    states: Sequence[DeploymentState] = (*ORDERED_DEPLOYMENTS, DeploymentState.FAILED),
    *,
    but: str | None = None,
    limit: int | None = None,
) -> dict[str, Before]:
    """Return a rollout's devices that failed or have not finished, and what each goes back to.

    Args:
        session: The transaction.
        rollout: The rollout.
        states: Only those of which the deployments are in one of these.
        but: None of those that had this release, as `rids_of` tells; None for all.
        limit: The greatest number; None for all.

    Returns:
        Device to what it had. Devices that have been given another release since are left out, and
        so are those that were to run the rollout's release before it: they keep it. A device keeps
        what it has if it had a release that is unknown or was revoked.
    """
    rows = session.execute(
        select(
            DeploymentRow.device, DeploymentRow.previous, DeploymentRow.is_first, ReleaseRow.state
        )
        .join(
            DesiredModelRow,
            _IS_WANTED,
        )
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .outerjoin(ReleaseRow, ReleaseRow.digest == DeploymentRow.previous)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state.in_(states),
            _GOES_BACK,
            true() if but is None else ~had(but),
        )
        .limit(limit)
    )
    return {
        device: Before(
            release=before if state == ReleaseState.PUBLISHED else None, is_nothing=is_first
        )
        for device, before, is_first, state in rows
    }
