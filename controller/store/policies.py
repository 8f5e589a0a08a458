"""The fleet's policies as the operator set them.

Rules:
- Each change of a policy raises the generation of all policies. With it `controller.store.desired`
  finds the desired states whose policy has to be chosen again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, delete, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from controller.domain.names import which_there_are
from controller.domain.policy_choice import MAX_POLICIES, rank
from controller.domain.states import DeviceState
from controller.errors import ConflictError, UnknownPolicyError
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DesiredStateRow
from controller.store.policy_choices import ONE_POLICY_SET
from controller.store.policy_tables import PolicyRow, PolicySetRow

NO_POLICY = "make one with `fleet policy set`"
"""What to do where there is none at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How many devices have a policy, and how many accepted it."""

    devices: int = 0
    """How many enrolled devices it was issued to."""

    accepted: int = 0
    """How many of them have accepted it."""


def all_rows(session: Session) -> list[PolicyRow]:
    """Return the policies in the order of precedence."""
    rows = session.scalars(select(PolicyRow))
    return sorted(rows, key=lambda row: rank(row.priority, row.model, row.name))


def get(session: Session, name: str) -> PolicyRow:
    """Return a policy.

    Args:
        session: The transaction.
        name: Its name.

    Returns:
        The row.

    Raises:
        UnknownPolicyError: There is none of that name.
    """
    row = session.get(PolicyRow, name)
    if row is None:
        known = session.scalars(select(PolicyRow.name).order_by(PolicyRow.name)).all()
        raise UnknownPolicyError(
            f"there is no policy {name[:64]!r}",
            remedy=which_there_are(name, known, what="policies", none=NO_POLICY),
        )
    return row


def put(session: Session, row: PolicyRow) -> bool:
    """Save a policy, or replace the one of that name.

    Args:
        session: The transaction.
        row: The policy, which belongs to no session yet.

    Returns:
        False when the same policy was there before.

    Raises:
        ConflictError: There are too many policies.
    """
    known_set = _locked(session)
    known = session.get(PolicyRow, row.name)
    if known is None:
        count = session.scalar(select(func.count()).select_from(PolicyRow)) or 0
        if count >= MAX_POLICIES:
            raise ConflictError(
                f"there are {MAX_POLICIES} policies, which is the greatest number",
                remedy="remove one that is no longer needed",
            )
        session.add(row)
    elif _content(known) == _content(row):
        return False
    else:
        session.merge(row)
    known_set.generation += 1
    return True


def lock(session: Session) -> None:
    """Keep other controllers from changing policies, captures and groups in the transaction."""
    _locked(session)


def raise_generation(session: Session) -> None:
    """Let all desired states be looked at again: what is chosen with the policies has changed."""
    _locked(session).generation += 1


def remove(session: Session, name: str) -> None:
    """Remove a policy.

    Args:
        session: The transaction.
        name: Name of a policy that exists.
    """
    known_set = _locked(session)
    session.execute(delete(PolicyRow).where(PolicyRow.name == name))
    known_set.generation += 1


def reach(session: Session) -> dict[str, Reach]:
    """Return the reach of each policy by name; a policy that no device has is left out."""
    having = (
        select(DesiredModelRow.device, DesiredModelRow.policy_name)
        .where(DesiredModelRow.policy_name.is_not(None), DesiredModelRow.removed.is_(False))
        .distinct()  # a device may have it for several of its models
        .subquery()
    )
    accepted = case((DeviceRow.reported_revision >= DesiredStateRow.revision, 1), else_=0)
    rows = session.execute(
        select(having.c.policy_name, func.count(), func.sum(accepted))
        .join(DesiredStateRow, DesiredStateRow.device == having.c.device)
        .join(DeviceRow, DeviceRow.id == having.c.device)
        .where(DeviceRow.state == DeviceState.ENROLLED)
        .group_by(having.c.policy_name)
    )
    return {name: Reach(devices=count, accepted=int(has)) for name, count, has in rows}


def _locked(session: Session) -> PolicySetRow:
    """Return the set and lock it: no other controller changes a policy during the transaction."""
    return session.get_one(
        PolicySetRow, ONE_POLICY_SET, with_for_update=True, populate_existing=True
    )


def _content(row: PolicyRow) -> tuple[object, ...]:
    return (row.selector, row.model, row.priority, row.spec)


def reach_by_model(session: Session, chosen: InstrumentedAttribute[Any]) -> dict[str, Reach]:
    """Return how many devices have what was chosen for each model, and how many accepted it.

    Args:
        session: The transaction.
        chosen: The column of `DesiredModelRow` that has it; empty where there is none.
    """
    accepted = case((DeviceRow.reported_revision >= DesiredStateRow.revision, 1), else_=0)
    rows = session.execute(
        select(DesiredModelRow.model, func.count(), func.sum(accepted))
        .join(DesiredStateRow, DesiredStateRow.device == DesiredModelRow.device)
        .join(DeviceRow, DeviceRow.id == DesiredModelRow.device)
        .where(
            DeviceRow.state == DeviceState.ENROLLED,
            chosen.is_not(None),
            DesiredModelRow.removed.is_(False),
        )
        .group_by(DesiredModelRow.model)
    )
    return {model: Reach(devices=count, accepted=int(has)) for model, count, has in rows}
