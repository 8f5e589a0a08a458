"""Deployments, the part of one device in a rollout: who starts next, who works, who is not done.

This module reads; `controller.store.deployment_changes` writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, true
from sqlalchemy.orm import Session

from controller.domain.deployment_codes import EXCLUDED
from controller.domain.failure_limits import FailureCounts, failure_kind
from controller.domain.rollout_view import InFlight
from controller.domain.states import (
    UNFINISHED_DEPLOYMENTS,
    DeploymentState,
    DeviceState,
    shown_state,
)
from controller.domain.transfers import FETCHING
from controller.errors import UnfitError
from controller.store.database import in_batches
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import DeploymentRow, RolloutEventRow, RolloutRow


def target() -> ColumnElement[str]:
    """Return the release that a device is brought to, for a deployment joined with its rollout."""
    return func.coalesce(DeploymentRow.release, RolloutRow.release)


def of(rollout: str, devices: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a deployment is of a rollout and of one of some devices.

    The rollout is compared so that no index helps: SQLite takes a rollout for small, and PostgreSQL
    one that grows; both would read all of it for a few devices. So they find the devices, and of
    each the few rollouts that it had.
    """
    return DeploymentRow.rollout + "" == rollout, DeploymentRow.device.in_(devices)


def counts(session: Session, rollout: str) -> Counter[DeploymentState]:
    """Return how many deployments of a rollout are in each state."""
    rows = session.execute(
        select(DeploymentRow.state, func.count())
        .where(DeploymentRow.rollout == rollout)
        .group_by(DeploymentRow.state)
    )
    return Counter({DeploymentState(state): count for state, count in rows})


def shown_counts(session: Session, rollout: str) -> dict[DeploymentState, int]:
    """Return how many deployments of a rollout are in each state as people see it."""
    found = counts(session, rollout)
    unfinished = session.execute(
        select(DeploymentRow.state, DeviceRow.online, func.count())
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state.in_(UNFINISHED_DEPLOYMENTS),
            DeviceRow.online.is_(False) | (DeploymentRow.state == DeploymentState.WAITING),
        )
        .group_by(DeploymentRow.state, DeviceRow.online)
    )
    for state, online, count in unfinished:
        found[DeploymentState(state)] -= count
        found[shown_state(DeploymentState(state), online=online)] += count
    return {state: found[state] for state in sorted(found) if found[state]}


def count_below(session: Session, rollout: str, below: int) -> int:
    """Return how many devices with lower places were not started, without the control group."""
    statement = select(func.count()).where(
        DeploymentRow.rollout == rollout,
        DeploymentRow.state == DeploymentState.PENDING,
        DeploymentRow.position < below,
        DeploymentRow.is_control.is_(False),
    )
    return session.scalar(statement) or 0


def count_acknowledged(session: Session, rollout: str) -> int:
    """Return how many failed devices of a rollout the operator acknowledged."""
    statement = select(func.count()).where(
        DeploymentRow.rollout == rollout,
        DeploymentRow.state == DeploymentState.FAILED,
        DeploymentRow.acknowledged.is_(True),
    )
    return session.scalar(statement) or 0


def failure_counts(session: Session, rollout: str) -> FailureCounts:
    """Return how many devices of a rollout failed in which way, without acknowledged ones."""
    rows = session.execute(
        select(DeploymentRow.error_code, DeploymentRow.phase, func.count())
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state == DeploymentState.FAILED,
            DeploymentRow.acknowledged.is_(False),
        )
        .group_by(DeploymentRow.error_code, DeploymentRow.phase)
    )
    found: Counter[str] = Counter()
    for code, phase, count in rows:
        found[failure_kind(code, phase)] += count
    return FailureCounts(**found)


def count_left_out(session: Session, rollout: str) -> int:
    """Return how many devices a rollout leaves out because they cannot take its release."""
    statement = select(func.count()).where(
        DeploymentRow.rollout == rollout,
        DeploymentRow.state == DeploymentState.CANCELLED,
        DeploymentRow.error_code == UnfitError.code,
    )
    return session.scalar(statement) or 0


def in_flight(session: Session, rollout: str, *, clock_s: float) -> tuple[InFlight, ...]:
    """Return the devices of a rollout that were started, have not finished and do not wait.

    Args:
        session: The transaction.
        rollout: The rollout.
        clock_s: The rollout's own clock.

    Returns:
        The devices.
    """
    rows = session.execute(
        select(
            DeploymentRow.device,
            DeploymentRow.phase,
            DeploymentRow.clock_s,
            DeploymentRow.away_s,
            DeploymentRow.away_from_s,
        ).where(DeploymentRow.rollout == rollout, DeploymentRow.state == DeploymentState.ASSIGNED)
    )
    found = []
    # Sorted here: to have them in order SQLite would read the whole rollout.
    for device, phase, began_s, away_s, away_from_s in sorted(rows, key=itemgetter(0)):
        now_away_s = 0.0 if away_from_s is None else max(0.0, clock_s - away_from_s)
        found.append(
            InFlight(
                device=device,
                online=away_from_s is None,
                online_s=clock_s - began_s - away_s - now_away_s,
                away_s=now_away_s,
                phase=phase,
            )
        )
    return tuple(found)


def fetching(session: Session, rollout: str) -> list[tuple[str, int]]:
    """Return the devices of a rollout that fetch its release, and in which stages they began.

    Devices that wait, as for a budget, do not fetch.
    """
    rows = session.execute(
        select(DeploymentRow.device, DeploymentRow.stage).where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state == DeploymentState.ASSIGNED,
            DeploymentRow.phase == FETCHING,
            DeploymentRow.detail == "",
        )
    )
    return sorted((device, stage) for device, stage in rows)


def candidates(
    session: Session,
    rollout: str,
    *,
    limit: int,
    with_control: bool = True,
    below: int | None = None,
) -> tuple[str, ...]:
    """Return the devices of a rollout that are online and start next.

    Args:
        session: The transaction.
        rollout: The rollout.
        limit: The greatest number.
        with_control: Whether those of the control group start, too.
        below: Only those with lower places; None for all.
    """
    conditions: list[ColumnElement[bool]] = [DeviceRow.online.is_(True)]
    if not with_control:
        conditions.append(DeploymentRow.is_control.is_(False))
    if below is not None:
        conditions.append(DeploymentRow.position < below)
    return tuple(_of_devices(session, rollout, DeploymentState.PENDING, *conditions, limit=limit))


def returned(session: Session, rollout: str, *, limit: int) -> tuple[str, ...]:
    """Return the devices of a rollout that waited and are online again."""
    online = DeviceRow.online.is_(True)
    return tuple(_of_devices(session, rollout, DeploymentState.WAITING, online, limit=limit))


def not_started(session: Session, rollout: str, *, limit: int) -> list[str]:
    """Return the devices of a rollout that were not started, online or not."""
    return _of_devices(session, rollout, DeploymentState.PENDING, limit=limit)


def _of_devices(
    session: Session,
    rollout: str,
    state: DeploymentState,
    *conditions: ColumnElement[bool],
    limit: int,
) -> list[str]:
    """Return the devices of a rollout in one state, in the order in which they start."""
    return list(
        session.scalars(
            select(DeploymentRow.device)
            .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
            .where(
                DeploymentRow.rollout == rollout,
                DeploymentRow.state == state,
                *conditions,
            )
            .order_by(DeploymentRow.position, DeploymentRow.device)
            .limit(limit)
        )
    )


def of_rollout(
    session: Session, rollout: str, *, limit: int, state: DeploymentState | None = None
) -> list[tuple[DeploymentRow, bool, ReleaseRow]]:
    """Return deployments of a rollout, sorted by device.

    Args:
        session: The transaction.
        rollout: The rollout.
        limit: The greatest number.
        state: Only those that people see in this state; None for all.

    Returns:
        Each with whether its device is online, and the release that it is brought to.
    """
    rows = session.execute(
        select(DeploymentRow, DeviceRow.online, ReleaseRow)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .join(ReleaseRow, ReleaseRow.digest == target())
        .where(DeploymentRow.rollout == rollout, *([] if state is None else [_is_shown(state)]))
        .order_by(DeploymentRow.device)
        .limit(limit)
    )
    return [(part, bool(online), release) for part, online, release in rows]


def _is_shown(state: DeploymentState) -> ColumnElement[bool]:
    """Return the condition that people see a deployment in a state; see `shown_state`."""
    found = {
        online: [each for each in DeploymentState if shown_state(each, online=online) is state]
        for online in (True, False)
    }
    return or_(
        *(
            and_(DeviceRow.online.is_(online), DeploymentRow.state.in_(states))
            for online, states in found.items()
        )
    )


def targets(session: Session, rollout: str, devices: Sequence[str]) -> dict[str, str]:
    """Return the release to which a rollout brings each of some of its devices."""
    found: dict[str, str] = {}
    for batch in in_batches(devices):
        rows = session.execute(
            select(DeploymentRow.device, target())
            .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
            .where(*of(rollout, batch))
        )
        found |= dict(rows.all())
    return found


def waiting_for(session: Session, release: str) -> list[str]:
    """Return the rollouts that have devices which wait for a release."""
    return list(
        session.scalars(
            select(DeploymentRow.rollout)
            .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
            .where(DeploymentRow.state == DeploymentState.WAITING, target() == release)
            .order_by(DeploymentRow.rollout)
            .distinct()
        )
    )


def in_state(
    session: Session,
    rollout: str,
    *states: DeploymentState,
    where: ColumnElement[bool] | None = None,
) -> list[str]:
    """Return the devices of a rollout whose deployments are in one of some states, sorted.

    Args:
        session: The transaction.
        rollout: The rollout.
        *states: The states.
        where: A further condition of deployments.
    """
    return sorted(
        session.scalars(
            select(DeploymentRow.device).where(
                DeploymentRow.rollout == rollout,
                DeploymentRow.state.in_(states),
                true() if where is None else where,
            )
        )
    )


def some_in_state(
    session: Session,
    rollout: str,
    states: Sequence[DeploymentState],
    *,
    but: ColumnElement[bool],
    limit: int,
) -> list[str]:
    """Return some devices of a rollout with deployments in some states, but for a condition."""
    return list(
        session.scalars(
            select(DeploymentRow.device)
            .where(DeploymentRow.rollout == rollout, DeploymentRow.state.in_(states), ~but)
            .limit(limit)
        )
    )


def unreached(session: Session, rollout: str, *states: DeploymentState) -> dict[str, str]:
    """Return devices of a rollout in some final states that no other of its model started since.

    Those that were left out because they cannot take the release, or that the operator took out,
    are not among them.

    A later rollout is one whose log begins later: the numbers of entries grow, and wall time may go
    back.

    Args:
        session: The transaction.
        rollout: The rollout.
        *states: The states of their deployments.

    Returns:
        Enrolled device to the release that it is brought to.
    """
    began = func.min(RolloutEventRow.id)
    mine = select(began).where(RolloutEventRow.rollout == rollout).scalar_subquery()
    later = select(RolloutEventRow.rollout).group_by(RolloutEventRow.rollout).having(began > mine)
    taken = exists().where(
        DesiredModelRow.device == DeploymentRow.device,
        DesiredModelRow.model == DeploymentRow.model,
        DesiredModelRow.rollout.in_(later),
    )
    left_out = (DeploymentRow.state == DeploymentState.CANCELLED) & DeploymentRow.error_code.in_(
        (UnfitError.code, EXCLUDED)
    )
    rows = session.execute(
        select(DeploymentRow.device, target())
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state.in_(states),
            DeviceRow.state == DeviceState.ENROLLED,
            ~left_out,
            ~taken,
        )
        .order_by(DeploymentRow.device)
    )
    return dict(rows.all())


def unfinished(session: Session, device: str) -> list[DeploymentRow]:
    """Return the unfinished deployments of a device, in any rollout, ended or not."""
    return list(
        session.scalars(
            select(DeploymentRow).where(
                DeploymentRow.device == device, DeploymentRow.state.in_(UNFINISHED_DEPLOYMENTS)
            )
        )
    )
