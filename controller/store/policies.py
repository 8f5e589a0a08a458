"""The fleet's policies, and the generation by which it is known who has to be given which anew."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.orm import Session

from controller.domain.policy_choice import MAX_POLICIES, FleetPolicy
from controller.domain.selectors import parse_selector
from controller.domain.states import DeviceState
from controller.errors import ConflictError, UnknownPolicyError
from controller.store.tables import DesiredStateRow, DeviceRow, PolicyRow, PolicySetRow
from wire.codec import convert
from wire.messages import PolicySpec

STALE = 0
"""A generation that is never the present one."""

_ONLY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """All policies at one time."""

    generation: int
    policies: tuple[FleetPolicy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far a policy has come."""

    devices: int = 0
    """To so many enrolled devices it has been issued."""

    accepted: int = 0
    """So many of them have accepted it."""


def current(session: Session) -> PolicySet:
    """Return the policies that hold now."""
    # The generation first: if another controller changes something between the two queries, what
    # is chosen counts as older than it is, and is looked at once more.
    generation = session.get_one(PolicySetRow, _ONLY, populate_existing=True).generation
    rows = session.scalars(select(PolicyRow))
    return PolicySet(generation=generation, policies=tuple(to_policy(row) for row in rows))


def to_policy(row: PolicyRow) -> FleetPolicy:
    """Return a row as what is decided with."""
    return FleetPolicy(
        name=row.name,
        selector=parse_selector(row.selector),
        priority=row.priority,
        spec=convert(row.spec, PolicySpec),
    )


def all_rows(session: Session) -> list[PolicyRow]:
    """Return the policies in the order of precedence."""
    rows = session.scalars(select(PolicyRow))
    return sorted(rows, key=lambda row: to_policy(row).rank)


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
        raise UnknownPolicyError(f"there is no policy {name[:64]!r}")
    return row


def put(session: Session, row: PolicyRow) -> bool:
    """Make a policy, or put it in the place of the one of that name.

    Args:
        session: The transaction.
        row: The policy, which belongs to no session yet.

    Returns:
        False when it was so before.

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


def remove(session: Session, name: str) -> None:
    """Remove a policy.

    Args:
        session: The transaction.
        name: Of a policy that is there.
    """
    known_set = _locked(session)
    session.execute(delete(PolicyRow).where(PolicyRow.name == name))
    known_set.generation += 1


def reach(session: Session) -> dict[str, Reach]:
    """Return how far each policy has come, by name; those that came nowhere are left out."""
    accepted = case((DeviceRow.reported_revision >= DesiredStateRow.revision, 1), else_=0)
    rows = session.execute(
        select(DesiredStateRow.policy_name, func.count(), func.sum(accepted))
        .join(DeviceRow, DeviceRow.id == DesiredStateRow.device)
        .where(DesiredStateRow.policy_name.is_not(None), DeviceRow.state == DeviceState.ENROLLED)
        .group_by(DesiredStateRow.policy_name)
    )
    return {name: Reach(devices=count, accepted=int(has)) for name, count, has in rows}


def mark_stale(session: Session, device: str) -> None:
    """Have the policy of a device chosen anew: its labels or its profile are others."""
    session.execute(
        update(DesiredStateRow)
        .where(DesiredStateRow.device == device)
        .values(policy_generation=STALE)
        .execution_options(synchronize_session=False)
    )


def stale(session: Session, *, limit: int) -> list[str]:
    """Return devices whose policy was chosen from policies that are no longer the present ones."""
    generation = select(PolicySetRow.generation).where(PolicySetRow.id == _ONLY).scalar_subquery()
    return list(
        session.scalars(
            select(DesiredStateRow.device)
            .where(DesiredStateRow.policy_generation < generation)
            .order_by(DesiredStateRow.device)
            .limit(limit)
        )
    )


def _locked(session: Session) -> PolicySetRow:
    """Return the set, and keep other controllers from changing a policy meanwhile."""
    return session.get_one(PolicySetRow, _ONLY, with_for_update=True, populate_existing=True)


def _content(row: PolicyRow) -> tuple[object, ...]:
    return (row.selector, row.priority, row.spec)
