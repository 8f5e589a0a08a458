"""Which devices a rollout may take in, and which take part in another one of its model.

Rules:
- A device takes part in an unfinished rollout until that has ended, also if it has succeeded there:
  its rollout counts it to its end. One that waits after the end does not.
- While devices of an ended rollout are still taken out, it keeps those that are not yet out, and
  those that failed: they are still to go back. A new rollout takes them in after that.
- Few rollouts are unfinished, and devices are many: the unfinished rollouts are asked for first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.orm import Session

from controller.domain.selectors import Selector
from controller.domain.states import (
    ACTIVE_ROLLOUTS,
    UNFINISHED_DEPLOYMENTS,
    DeploymentState,
    DeviceState,
)
from controller.store import deployments, rollout_work
from controller.store.database import in_batches
from controller.store.device_tables import DeviceRow
from controller.store.penalty_tables import is_held_out
from controller.store.rollout_tables import DeploymentRow, RolloutRow
from controller.store.selector_conditions import conditions

_KEPT = (*UNFINISHED_DEPLOYMENTS, DeploymentState.SUCCEEDED)
"""The states of a deployment that keep its device from other rollouts of its model."""


_FREE = (DeploymentState.FAILED, DeploymentState.CANCELLED)
"""The others. No index helps to find what is not one of them: where a statement names devices, too,
it finds those, and does not read the whole rollout."""

_OUT: Final = (DeploymentState.SUCCEEDED, DeploymentState.CANCELLED)
"""The states that do not, in a rollout whose devices are taken out."""


def newcomers(
    session: Session,
    rollout: str,
    model: str,
    selector: Selector,
    *,
    limit: int | None,
    greeted: bool = False,
    among: Sequence[str] | None = None,
) -> list[str]:
    """Return enrolled devices that match a selector and take part in no unfinished rollout.

    Those that are held out of rollouts are not among them.

    Args:
        session: The transaction.
        rollout: Leave out the devices that take part in this one, finished or not, and those that
            ended ones have not let go; empty for one that is made, and takes them in after that.
        model: The model of the rollouts.
        selector: Which devices it is for.
        limit: The greatest number; None for all.
        greeted: Leave out those that have not yet said what they are and have.
        among: Only of these, at most as many as one statement may name; None for all.

    Returns:
        Their identifiers.
    """
    wanted: list[ColumnElement[bool]] = [
        DeviceRow.state == DeviceState.ENROLLED,
        ~is_held_out(),
        *conditions(session, selector),
    ]
    if among is not None:
        wanted.append(DeviceRow.id.in_(among))
    if greeted:
        wanted.append(DeviceRow.greeted.is_(True))
    mine = DeploymentRow.device == DeviceRow.id
    if rollout:
        wanted.append(~exists().where(DeploymentRow.rollout == rollout, mine))
    if rollout:
        others = _holders(session, model, but=rollout)
    else:
        others = dict.fromkeys(unfinished(session, model), _FREE)
    if others:
        wanted.append(~exists().where(mine, _is_kept(others)))
    statement = select(DeviceRow.id).where(*wanted).order_by(DeviceRow.id).limit(limit)
    session.flush()
    return list(session.connection().scalars(statement).all())  # no objects: half the time


def busy(session: Session, model: str, selector: Selector) -> dict[str, str]:
    """Return a device that matches a selector and takes part in an unfinished rollout, and which.

    Args:
        session: The transaction.
        model: The model of the rollout.
        selector: Which devices it is for.

    Returns:
        The first such device with its rollout; empty if there is none.
    """
    others = unfinished(session, model)
    if not others:
        return {}
    rows = session.execute(
        select(DeploymentRow.device, DeploymentRow.rollout)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(*_keeps_in(others), *conditions(session, selector))
        .order_by(DeploymentRow.device)
        .limit(1)
    )
    return dict(rows.all())


def kept(
    session: Session, rollouts: Sequence[str], selector: Selector
) -> list[tuple[str, str, str]]:
    """Return the devices that match a selector and that unfinished rollouts keep.

    Args:
        session: The transaction.
        rollouts: The unfinished rollouts of a model.
        selector: Which devices.

    Returns:
        Each with its rollout and the state of its deployment, by its identifier.
    """
    if not rollouts:
        return []
    rows = session.execute(
        select(DeploymentRow.device, DeploymentRow.rollout, DeploymentRow.state)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(*_keeps_in(rollouts), *conditions(session, selector))
        .order_by(DeploymentRow.device)
    )
    return [(device, rollout, state) for device, rollout, state in rows]


def kept_among(session: Session, rollout: str, devices: Sequence[str]) -> list[str]:
    """Return those of some devices that a rollout keeps from others, as it has not ended."""
    return [
        device
        for batch in in_batches(devices)
        for device in session.scalars(
            select(DeploymentRow.device).where(
                DeploymentRow.rollout == rollout,
                DeploymentRow.device.in_(batch),
                DeploymentRow.state.in_(_KEPT),
            )
        )
    ]


def busy_among(
    session: Session, model: str, devices: Collection[str], *, but: str = ""
) -> dict[str, str]:
    """Return those of some devices that another rollout of a model keeps, and which one.

    Args:
        session: The transaction.
        model: The model.
        devices: Which devices.
        but: A rollout that does not count.
    """
    found: dict[str, str] = {}
    wanted = frozenset(devices)
    for rollout, free in _holders(session, model, but=but).items():
        keeping = [state for state in DeploymentState if state not in free]
        kept = session.scalars(
            select(DeploymentRow.device).where(
                DeploymentRow.rollout == rollout, DeploymentRow.state.in_(keeping)
            )
        )
        found |= dict.fromkeys(wanted.intersection(kept), rollout)
    return dict(sorted(found.items()))


def still_free(
    session: Session, rollout: str, model: str, devices: Sequence[str], *, joins: bool
) -> set[str]:
    """Return those of some devices that are enrolled and that no other unfinished rollout has.

    Those that are held out of rollouts are not among them, but for one that names its devices.

    Args:
        session: The transaction.
        rollout: The rollout that is to have them.
        model: Its model.
        devices: The devices.
        joins: Whether they are to join it, so that those that are in it are not free either.
    """
    others = unfinished(session, model, but=rollout)
    mine = DeploymentRow.device == DeviceRow.id
    taken = exists().where(mine, *_keeps_in(others))
    names_devices = session.get_one(RolloutRow, rollout).origin is not None
    found: set[str] = set()
    for batch in in_batches(devices):
        wanted = [DeviceRow.id.in_(batch), DeviceRow.state == DeviceState.ENROLLED]
        if not names_devices:
            wanted.append(~is_held_out())
        if others:
            wanted.append(~taken)
        if joins:
            wanted.append(~exists().where(mine, *deployments.of(rollout, batch)))
        found.update(session.scalars(select(DeviceRow.id).where(*wanted)))
    return found


def unfinished(session: Session, model: str, *, but: str = "") -> list[str]:
    """Return the unfinished rollouts of a model, without one of them."""
    return list(
        session.scalars(
            select(RolloutRow.id)
            .where(
                RolloutRow.state.in_(ACTIVE_ROLLOUTS),
                RolloutRow.model == model,
                RolloutRow.id != but,
            )
            .order_by(RolloutRow.id)
        )
    )


def awaited(session: Session, rollout: str) -> str:
    """Return a rollout whose devices a rollout takes in when it has ended; else empty."""
    older = select(RolloutRow.id).where(
        or_(RolloutRow.state.in_(ACTIVE_ROLLOUTS), RolloutRow.id.in_(rollout_work.LEAVING)),
        RolloutRow.awaited_by == rollout,
    )
    return session.scalar(older.order_by(RolloutRow.id).limit(1)) or ""


def _keeps_in(rollouts: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a deployment is of one of some rollouts and keeps its device."""
    return DeploymentRow.rollout.in_(rollouts), DeploymentRow.state.not_in(_FREE)


def _holders(
    session: Session, model: str, *, but: str
) -> dict[str, tuple[DeploymentState, DeploymentState]]:
    """Return the rollouts of a model that keep devices, with the states of those that are free."""
    found = dict.fromkeys(rollout_work.rollouts(session, model, is_ending=True), _OUT)
    found |= dict.fromkeys(unfinished(session, model), _FREE)
    found.pop(but, None)
    return found


def _is_kept(holders: Mapping[str, tuple[DeploymentState, DeploymentState]]) -> ColumnElement[bool]:
    """Return the condition that a deployment keeps its device from other rollouts."""
    return or_(
        *(
            and_(DeploymentRow.rollout == rollout, DeploymentRow.state.not_in(free))
            for rollout, free in holders.items()
        )
    )
