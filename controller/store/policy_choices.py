"""Which policy each model of a device gets, what it captures, and what runs beside it.

And where to choose that again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from controller.domain.attributes import DeviceValues
from controller.domain.capture_choice import FleetCapture, choose_capture
from controller.domain.device_groups import meaning
from controller.domain.policy_choice import FleetPolicy, choose_policy
from controller.domain.selectors import Selector, parse_selector
from controller.domain.shadow_choice import FleetShadow, choose_shadow
from controller.errors import SelectorError
from controller.store.capture_tables import CaptureRow
from controller.store.database import in_batches
from controller.store.device_values import steady_values
from controller.store.groups import texts_for
from controller.store.model_tables import DesiredModelRow, DesiredStateRow
from controller.store.policy_tables import PolicyRow, PolicySetRow
from controller.store.shadow_tables import ShadowRow
from wire.capture import CaptureRule
from wire.codec import convert, to_builtins
from wire.policy import PolicySpec
from wire.shadow import ShadowRule

STALE = 0
"""A generation of the policies that is never the current one."""

NEVER_STALE = 2**62
"""The generation of models that were removed: a tick does not look at them."""

ONE_POLICY_SET = 1
"""Key of the only row of `PolicySetRow`."""

_NOTHING = DeviceValues(labels={}, attributes={})
_log = logging.getLogger(__name__)
_DEFAULT = to_builtins(PolicySpec())
_FIRST_DEFAULT = to_builtins(PolicySpec(kind="rules"))
"""What a desired state without a policy was issued with: by controllers of before, whose default
this was. It stays until the next one is issued, as a revision never changes."""


_LOCK = (
    select(DesiredStateRow.device)
    .where(DesiredStateRow.device.in_(bindparam("devices", expanding=True)))
    .order_by(DesiredStateRow.device)
    .with_for_update()
)
_MARK_STALE = (
    update(DesiredModelRow)
    .where(DesiredModelRow.device == bindparam("of_device"), DesiredModelRow.removed.is_(False))
    .values(policy_generation=STALE)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """All policies, captures and shadows at one time."""

    generation: int
    policies: tuple[FleetPolicy, ...]
    captures: tuple[FleetCapture, ...]
    shadows: tuple[FleetShadow, ...]


def current_policies(session: Session) -> PolicySet:
    """Return the policies, captures and shadows that apply now."""
    # Read the generation first: if another controller changes a policy between the two queries,
    # the choice made here counts as older than it is, and is made once more.
    generation = session.get_one(PolicySetRow, ONE_POLICY_SET, populate_existing=True).generation
    policies = list(session.scalars(select(PolicyRow)))
    captures = list(session.scalars(select(CaptureRow)))
    shadows = list(session.scalars(select(ShadowRow)))
    texts = [*(row.selector for row in policies), *(row.selector for row in captures)]
    selectors = _selectors(session, [*texts, *(row.selector for row in shadows)])
    return PolicySet(
        generation=generation,
        policies=tuple(
            FleetPolicy(
                name=row.name,
                selector=selectors[row.selector],
                model=row.model,
                priority=row.priority,
                spec=convert(row.spec, PolicySpec),
            )
            for row in policies
            if row.selector in selectors
        ),
        captures=tuple(
            FleetCapture(
                model=row.model,
                selector=selectors[row.selector],
                rule=convert(row.rule, CaptureRule),
            )
            for row in captures
            if row.selector in selectors
        ),
        shadows=tuple(
            FleetShadow(selector=selectors[row.selector], rule=convert(row.rule, ShadowRule))
            for row in shadows
            if row.selector in selectors
        ),
    )


def _selectors(session: Session, texts: Sequence[str]) -> dict[str, Selector]:
    """Return what selectors mean now; one that cannot be read is left out, and means no device."""
    found: dict[str, Selector] = {}
    groups = texts_for(session, texts)
    for text in dict.fromkeys(texts):
        try:
            found[text] = meaning(parse_selector(text), groups)
        except SelectorError as exc:  # the others must go on
            _log.warning("a policy, a capture or a shadow is for no device: %s", exc)
    return found


def issued_capture(row: DesiredModelRow) -> CaptureRule | msgspec.UnsetType:
    """Return what a model is to capture; unset for nothing."""
    return msgspec.UNSET if row.capture is None else convert(row.capture, CaptureRule)


def issued_shadow(row: DesiredModelRow) -> ShadowRule | msgspec.UnsetType:
    """Return what runs beside a model; unset for nothing."""
    return msgspec.UNSET if row.shadow is None else convert(row.shadow, ShadowRule)


def issued(row: DesiredModelRow) -> PolicySpec:
    """Return the policy that is sent for a model."""
    return convert(row.policy or _FIRST_DEFAULT, PolicySpec)


def choose(session: Session, rows: Sequence[DesiredModelRow]) -> list[DesiredModelRow]:
    """Choose the policies, captures and shadows of models whose desired states are locked.

    Args:
        session: The transaction.
        rows: The models, of at most as many devices as one statement may name.

    Returns:
        Those of which one changed.
    """
    if not rows:
        return []
    known = current_policies(session)
    devices = sorted({row.device for row in rows})
    is_needed = known.policies or known.captures or known.shadows
    values = steady_values(session, devices) if is_needed else {}
    changed: list[DesiredModelRow] = []
    for row in rows:
        device = values.get(row.device, _NOTHING)
        chosen = choose_policy(known.policies, device, row.model)
        rule = choose_capture(known.captures, device, row.model)
        beside = choose_shadow(known.shadows, device, row.model)
        spec = _DEFAULT if chosen is None else to_builtins(chosen.spec)
        capture = None if rule is None else to_builtins(rule)
        shadow = None if beside is None else to_builtins(beside)
        before = (row.policy or _FIRST_DEFAULT, row.capture, row.shadow)
        if (spec, capture, shadow) != before:
            changed.append(row)
        row.policy, row.capture, row.shadow = spec, capture, shadow
        row.policy_name = None if chosen is None else chosen.name
        row.policy_generation = known.generation
    return changed


def mark_stale(session: Session, device: str) -> None:
    """Mark a device's policies to be chosen again: a label or a steady attribute changed."""
    mark_all_stale(session, [device])


def mark_all_stale(session: Session, devices: Sequence[str]) -> None:
    """Mark the policies of several devices to be chosen again.

    Their desired states are locked first, as whoever gives them a release does: the rows of their
    models would be locked in no certain order, and two transactions could wait for each other.

    Args:
        session: The transaction.
        devices: Which devices, sorted.
    """
    session.flush()
    connection = session.connection()
    for batch in in_batches(devices):
        connection.execute(_LOCK, {"devices": batch})
        connection.execute(_MARK_STALE, [{"of_device": device} for device in batch])


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
