"""Groups, and selectors with what their groups mean now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from controller.domain.device_groups import NONE, meaning
from controller.domain.names import which_there_are
from controller.domain.selectors import Selector, parse_selector
from controller.domain.states import ACTIVE_ROLLOUTS, RolloutState
from controller.errors import SelectorError, UnknownGroupError
from controller.store.alert_tables import AlertRuleRow
from controller.store.capture_tables import CaptureRow
from controller.store.group_tables import DeviceGroupRow
from controller.store.policy_tables import PolicyRow
from controller.store.rollout_tables import RolloutRow
from controller.store.saved_query_tables import SavedQueryRow
from controller.store.shadow_tables import ShadowRow

_IN_PROGRESS = (*ACTIVE_ROLLOUTS, RolloutState.HALTED)  # which may be resumed


def read_selector(session: Session, text: str, *, now_s: float) -> Selector:
    """Read an expression, with what its groups mean now.

    Args:
        session: The transaction.
        text: As the operator wrote it.
        now_s: Wall time.

    Returns:
        The selector.

    Raises:
        SelectorError: It cannot be read, or names a group that there is not.
    """
    parsed = parse_selector(text)
    groups = texts(session) if parsed.groups else {}
    return replace(meaning(parsed, groups), at_s=now_s)


def texts(session: Session) -> dict[str, str]:
    """Return the expressions of all groups."""
    rows = session.execute(select(DeviceGroupRow.name, DeviceGroupRow.selector))
    return {row.name: row.selector for row in rows}


def texts_for(session: Session, selectors: Iterable[str]) -> dict[str, str]:
    """Return the expressions of all groups, if any of some expressions names one."""
    return texts(session) if any(map(_groups, selectors)) else {}


def all_rows(session: Session) -> list[DeviceGroupRow]:
    """Return the groups by name."""
    return list(session.scalars(select(DeviceGroupRow).order_by(DeviceGroupRow.name)))


def get(session: Session, name: str, *, lock: bool = False) -> DeviceGroupRow:
    """Return a group.

    Args:
        session: The transaction.
        name: Its name.
        lock: Keep other transactions from changing it.

    Returns:
        The row.

    Raises:
        UnknownGroupError: There is none of that name.
    """
    row = session.get(DeviceGroupRow, name, with_for_update=lock or None)
    if row is None:
        known = session.scalars(select(DeviceGroupRow.name).order_by(DeviceGroupRow.name)).all()
        raise UnknownGroupError(
            f"there is no group {name!r}",
            remedy=which_there_are(name, known, what="groups", none=NONE),
        )
    return row


def put(session: Session, row: DeviceGroupRow) -> bool:
    """Save a group, or replace the one of that name.

    Args:
        session: The transaction.
        row: The group, which belongs to no session yet.

    Returns:
        False when the same group was there before.
    """
    known = session.get(DeviceGroupRow, row.name)
    if known is not None and known.selector == row.selector:
        return False
    session.merge(row)
    return True


def users(session: Session, name: str) -> dict[str, list[str]]:
    """Return what names a group.

    Args:
        session: The transaction.
        name: The name of the group.

    Returns:
        What they are to their names, such as `policies`; without those that there are none of.
        Rollouts are those in progress.
    """
    # No device joins a rollback or another try.
    in_progress = and_(RolloutRow.state.in_(_IN_PROGRESS), RolloutRow.origin.is_(None))
    found = {
        "groups": session.execute(select(DeviceGroupRow.name, DeviceGroupRow.selector)).all(),
        "rollouts": session.execute(
            select(RolloutRow.id, RolloutRow.selector).where(in_progress)
        ).all(),
        "policies": session.execute(select(PolicyRow.name, PolicyRow.selector)).all(),
        "shadows": session.execute(select(ShadowRow.model, ShadowRow.selector)).all(),
        "captures": session.execute(select(CaptureRow.model, CaptureRow.selector)).all(),
        "alerts": [
            (rule.name, rule.spec.get("selector", ""))
            for rule in session.scalars(select(AlertRuleRow))
        ],
        "saved queries": [
            (query.name, query.query.get("selector", ""))
            for query in session.scalars(select(SavedQueryRow))
        ],
    }
    named = {
        what: sorted(each for each, selector in rows if name in _groups(selector))
        for what, rows in found.items()
    }
    return {what: names for what, names in named.items() if names}


def _groups(text: object) -> frozenset[str]:
    try:
        return parse_selector(text).groups if isinstance(text, str) else frozenset()
    except SelectorError:  # of another version
        return frozenset()
