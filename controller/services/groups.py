"""Groups of devices: selectors that the operator gives a name.

Rules:
- What a group means is looked up whenever a selector that names it is used. A change reaches the
  rollouts in progress, policies, captures, shadows, alerts, saved queries and groups that name it.
- A group that one of these names is not removed.
- A group that a policy, a capture or a shadow names asks for nothing that changes while a device
  works.
"""

from __future__ import annotations

import logging

from controller.domain.device_groups import check_group, check_steady, users
from controller.domain.names import checked_name
from controller.domain.selectors import parse_selector
from controller.errors import ConflictError
from controller.group_schemas import Group, GroupMembers, GroupRequest
from controller.store import devices, groups, policies
from controller.store.database import Database, Transaction
from controller.store.group_tables import DeviceGroupRow
from wire.clock import Clock

CHOSEN_ONCE = ("policies", "captures", "shadows")
"""What is chosen for a device when it connects, and not each time."""

MAX_NAMED = 5

_log = logging.getLogger(__name__)


class Groups:
    """The groups of the fleet.

    Args:
        database: The control state.
        clock: Wall time.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def all(self) -> list[Group]:
        """Return the groups by name.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            return [
                Group(name=row.name, selector=row.selector, changed_at_s=row.changed_at_s)
                for row in groups.all_rows(transaction)
            ]

    def get(self, name: str) -> GroupMembers:
        """Return a group, whom it means now, and what names it.

        Args:
            name: Its name.

        Raises:
            InvalidRequestError: No group can have that name.
            UnknownGroupError: There is none of that name.
        """
        checked_name(name, "a group")
        with self._database.reading() as transaction:
            return self._members(transaction, groups.get(transaction, name))

    def put(self, name: str, request: GroupRequest) -> GroupMembers:
        """Make a group or replace the one of that name; repeating the call changes nothing.

        Args:
            name: Its name.
            request: The selector.

        Returns:
            The group after the change.

        Raises:
            InvalidRequestError: The name is not valid, or the group would mean too much.
            SelectorError: The selector cannot be read, or means the group itself, or asks for what
                cannot choose a policy that names the group.
            ConflictError: There are too many groups.
        """
        row = DeviceGroupRow(
            name=checked_name(name, "a group"),
            selector=request.selector,
            changed_at_s=self._clock.now_s(),
        )
        with self._database.transaction() as transaction:
            policies.lock(transaction)  # no other controller changes a group or a policy meanwhile
            known = groups.texts(transaction)
            check_group(name, request.selector, known)
            after = {**known, name: request.selector}
            chosen = _chosen_by(transaction, {name, *users(name, after)})
            if chosen:
                check_steady(parse_selector(request.selector), after, f"{chosen[0]}, of this group")
            if groups.put(transaction, row):
                if chosen:
                    policies.raise_generation(transaction)
                _log.info("group %s is set: %r", name, request.selector)
            return self._members(transaction, groups.get(transaction, name))

    def remove(self, name: str) -> Group:
        """Remove a group.

        Args:
            name: Its name.

        Returns:
            The group as it was.

        Raises:
            InvalidRequestError: No group can have that name.
            UnknownGroupError: There is none of that name.
            ConflictError: Something names it.
        """
        checked_name(name, "a group")
        with self._database.transaction() as transaction:
            policies.lock(transaction)
            row = groups.get(transaction, name, lock=True)
            used_by = groups.users(transaction, name)
            if used_by:
                raise ConflictError(
                    f"group {name} is in use by {used_by_text(used_by)}",
                    remedy="change these first, or give the group another selector",
                )
            removed = Group(name=row.name, selector=row.selector, changed_at_s=row.changed_at_s)
            transaction.delete(row)
        _log.info("group %s is removed", name)
        return removed

    def _members(self, transaction: Transaction, row: DeviceGroupRow) -> GroupMembers:
        selector = groups.read_selector(transaction, row.selector, now_s=self._clock.now_s())
        return GroupMembers(
            name=row.name,
            selector=row.selector,
            changed_at_s=row.changed_at_s,
            devices=list(devices.presence(transaction, selector)),
            used_by=groups.users(transaction, row.name),
        )


def used_by_text(used_by: dict[str, list[str]]) -> str:
    """Return what names a group, such as `policies a and b; rollouts r1`."""
    parts = []
    for what, names in used_by.items():
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        parts.append(f"{what} {', '.join(names[:MAX_NAMED])}{more}")
    return "; ".join(parts)


def _chosen_by(transaction: Transaction, names: set[str]) -> list[str]:
    """Return the policies, captures and shadows that name one of some groups."""
    found: list[str] = []
    for name in sorted(names):
        used_by = groups.users(transaction, name)
        found += [f"{what} {each}" for what in CHOSEN_ONCE for each in used_by.get(what, ())]
    return found
