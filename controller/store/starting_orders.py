"""In which order the devices of a new rollout start: the groups that stages choose, and labels."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.starting_order import StartingOrder, group_of
from controller.store.device_tables import DeviceLabelRow, DeviceRow
from controller.store.groups import read_selector
from controller.store.rollout_tables import DeploymentRow
from controller.store.selector_conditions import conditions


def chosen(
    session: Session,
    selectors: Sequence[str],
    spread: str,
    devices: Collection[str],
    *,
    now_s: float,
) -> StartingOrder:
    """Return the order of starting of a new rollout.

    Args:
        session: The transaction.
        selectors: Those by which its stages choose devices, in order.
        spread: The label over which devices are spread; empty for none.
        devices: Its devices.
        now_s: Wall time.

    Returns:
        The order; each device is in the first group that it matches.

    Raises:
        SelectorError: A selector cannot be read.
    """
    groups: dict[str, int] = {}
    members = frozenset(devices) if selectors else frozenset()
    for number, text in enumerate(selectors):
        wanted = conditions(session, read_selector(session, text, now_s=now_s))
        found = session.scalars(select(DeviceRow.id).where(*wanted))
        groups = dict.fromkeys(members.intersection(found), number) | groups
    return StartingOrder(groups=groups, last=len(selectors), values=_values(session, spread))


def as_before(session: Session, rollout: str, spread: str, last: int) -> StartingOrder:
    """Return the order of starting of a rollout that follows another one.

    Args:
        session: The transaction.
        rollout: The rollout that it follows.
        spread: The label over which the devices of that are spread; empty for none.
        last: How many of its stages choose devices.
    """
    groups: dict[str, int] = {}
    if last:
        mine = DeploymentRow.rollout == rollout
        rows = session.execute(select(DeploymentRow.device, DeploymentRow.position).where(mine))
        groups = {device: group_of(place) for device, place in rows}
    return StartingOrder(groups=groups, last=last, values=_values(session, spread))


def _values(session: Session, key: str) -> dict[str, str] | None:
    if not key:
        return None
    labels = select(DeviceLabelRow.device, DeviceLabelRow.value).where(DeviceLabelRow.key == key)
    return dict(session.execute(labels).all())
