"""Which policy each model of a device gets, and where that has to be chosen again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from controller.domain.policy_choice import FleetPolicy, choose_policy
from controller.domain.selectors import parse_selector
from controller.store import devices as device_rows
from controller.store.model_tables import DesiredModelRow
from controller.store.tables import PolicyRow, PolicySetRow
from wire.codec import convert, to_builtins
from wire.policy import PolicySpec

STALE = 0
"""A generation of the policies that is never the current one."""

NEVER_STALE = 2**62
"""The generation of models that were removed: a tick does not look at them."""

ONE_POLICY_SET = 1
"""Key of the only row of `PolicySetRow`."""

_DEFAULT = to_builtins(PolicySpec())
_FIRST_DEFAULT = to_builtins(PolicySpec(kind="rules"))
"""What a desired state without a policy was issued with: by controllers of before, whose default
this was. It stays until the next one is issued, as a revision never changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """All policies at one time."""

    generation: int
    policies: tuple[FleetPolicy, ...]


def current_policies(session: Session) -> PolicySet:
    """Return the policies that apply now."""
    # Read the generation first: if another controller changes a policy between the two queries,
    # the choice made here counts as older than it is, and is made once more.
    generation = session.get_one(PolicySetRow, ONE_POLICY_SET, populate_existing=True).generation
    rows = session.scalars(select(PolicyRow))
    return PolicySet(generation=generation, policies=tuple(to_policy(row) for row in rows))


def to_policy(row: PolicyRow) -> FleetPolicy:
    """Return a row as a policy of the domain."""
    return FleetPolicy(
        name=row.name,
        selector=parse_selector(row.selector),
        model=row.model,
        priority=row.priority,
        spec=convert(row.spec, PolicySpec),
    )


def issued(row: DesiredModelRow) -> PolicySpec:
    """Return the policy that is sent for a model."""
    return convert(row.policy or _FIRST_DEFAULT, PolicySpec)


def choose(session: Session, rows: Sequence[DesiredModelRow]) -> list[DesiredModelRow]:
    """Choose the policies of models whose desired states are locked.

    Args:
        session: The transaction.
        rows: The models, of at most as many devices as one statement may name.

    Returns:
        Those whose policy changed.
    """
    if not rows:
        return []
    known = current_policies(session)
    devices = sorted({row.device for row in rows})
    values = device_rows.values_of(session, devices) if known.policies else {}
    changed: list[DesiredModelRow] = []
    for row in rows:
        chosen = choose_policy(known.policies, values.get(row.device, {}), row.model)
        spec = _DEFAULT if chosen is None else to_builtins(chosen.spec)
        if spec != (row.policy or _FIRST_DEFAULT):
            changed.append(row)
        row.policy = spec
        row.policy_name = None if chosen is None else chosen.name
        row.policy_generation = known.generation
    return changed


def mark_stale(session: Session, device: str) -> None:
    """Mark a device's policies to be chosen again, because its labels or its profile changed."""
    session.execute(
        update(DesiredModelRow)
        .where(DesiredModelRow.device == device, DesiredModelRow.removed.is_(False))
        .values(policy_generation=STALE)
        .execution_options(synchronize_session=False)
    )


def with_stale(session: Session, *, limit: int) -> list[str]:
    """Return devices with a model whose policy was chosen from an older generation of them.

    Args:
        session: The transaction.
        limit: The greatest number of models that are looked at.

    Returns:
        The devices, sorted.
    """
    generation = (
        select(PolicySetRow.generation).where(PolicySetRow.id == ONE_POLICY_SET).scalar_subquery()
    )
    # In no order: to sort them the database would look at all that are not stale.
    rows = session.scalars(
        select(DesiredModelRow.device)
        .where(DesiredModelRow.policy_generation < generation)
        .limit(limit)
    )
    return sorted(set(rows))
