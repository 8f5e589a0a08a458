"""The control group of a rollout, and how it is kept whole (`controller.domain.gates.turns`).

A device of it that was away at its turn gives its place to one that was there at its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from controller.domain.gates import turns
from controller.domain.gates.look import Member
from controller.domain.starting_order import PLACES, group_of
from controller.domain.states import DeploymentState
from controller.store.database import in_batches
from controller.store.deployments import of
from controller.store.device_tables import DeviceRow
from controller.store.gate_tables import GateAwayRow
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import DeploymentRow, RolloutRow

_STOPPED: Final = (DeploymentState.PENDING, DeploymentState.CANCELLED)
"""The states of its devices when a rollout was stopped."""


def count(session: Session, rollout: str) -> int:
    """Return how many devices of a rollout's control group keep the old release."""
    return _count(session, _of(rollout), DeploymentRow.state == DeploymentState.PENDING)


def count_among(session: Session, rollout: str, devices: Sequence[str]) -> int:
    """Return how many of some devices keep the old release as a rollout's control group."""
    is_pending = DeploymentRow.state == DeploymentState.PENDING
    batches = in_batches(devices)
    return sum(_count(session, *of(rollout, batch), is_pending) for batch in batches)


def count_stopped(session: Session, rollout: str) -> int:
    """Return how many devices were the control group of a rollout that was stopped."""
    return _count(session, _of(rollout), DeploymentRow.state.in_(_STOPPED))


def is_planned(session: Session, rollout: str) -> bool:
    """Tell whether a rollout was made with a control group, whatever has become of it."""
    return _count(session, _of(rollout)) > 0


def _of(rollout: str) -> ColumnElement[bool]:
    return DeploymentRow.rollout == rollout


def _count(session: Session, *conditions: ColumnElement[bool]) -> int:
    statement = select(func.count()).where(DeploymentRow.is_control.is_(True), *conditions)
    return session.scalar(statement) or 0


def refill(
    session: Session, row: RolloutRow, starting: Sequence[str], *, passed: int, now_s: float
) -> list[str]:
    """Give the places of devices that were away at their turn to others.

    Args:
        session: The transaction; it holds the lock of the rollout.
        row: The rollout.
        starting: Who is about to begin: their turn is now.
        passed: How many parts of the stage are over.
        now_s: Wall time.

    Returns:
        Those of `starting` that begin; the others are held out from now on.
    """
    away = DeploymentRow.device.in_(select(GateAwayRow.device).where(GateAwayRow.rollout == row.id))
    is_control = DeploymentRow.is_control.is_(True)
    mine = _of(row.id)
    lost = _pending(session, mine, is_control, away)
    if not lost:
        return list(starting)
    beginning: list[Member] = []
    for batch in in_batches(starting):
        beginning += _pending(session, *of(row.id, batch), ~away)
    free = list(beginning)
    had_turn = DeploymentRow.position % turns.MOMENTS < passed
    for (profile, group), count in Counter((m.profile, group_of(m.place)) for m in lost).items():
        free += _pending(
            session, mine, ~is_control, ~away, had_turn,
            DeviceRow.profile_name == profile,
            DeploymentRow.position.between(group * PLACES, (group + 1) * PLACES - 1),
            limit=count,
        )  # fmt: skip
    free.sort(key=lambda member: (member.place, member.device), reverse=True)
    found = turns.substitutes(
        {member.device: member.stratum for member in lost},
        {member.device: member.stratum for member in free},
    )
    for devices, is_held in ((list(found), False), (list(found.values()), True)):
        for batch in in_batches(devices):
            session.execute(
                update(DeploymentRow).where(*of(row.id, batch)).values(is_control=is_held)
            )
    if found:
        pairs = [f"{new} for {old}" for old, new in sorted(found.items())]
        reason = named(pairs, "now in the control group, in place of those away at their turn")
        log(session, row.id, action="control", reason=reason, now_s=now_s)
    held = frozenset(found.values())
    return [device for device in starting if device not in held]


def _pending(
    session: Session, *conditions: ColumnElement[bool], limit: int | None = None
) -> list[Member]:
    """Return devices that have not begun, the last in the order of starting first."""
    rows = session.execute(
        select(DeploymentRow.device, DeviceRow.profile_name, DeploymentRow.position)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .where(DeploymentRow.state == DeploymentState.PENDING, *conditions)
        .order_by(DeploymentRow.position.desc(), DeploymentRow.device.desc())
        .limit(limit)
    )
    return [Member(*row) for row in rows]
