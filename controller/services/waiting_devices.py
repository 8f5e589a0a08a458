"""Devices that wait to be let in, as the operator sees them and decides about them.

Rules:
- A decision is about a key. The device learns of it when it asks the next time; until then the
  operator may decide otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.domain.states import AUTO, BY_HAND, WaitingState
from controller.enrolment_schemas import WaitingDevice
from controller.store import registrations, tokens, waiting
from controller.store.database import Database
from controller.store.waiting_tables import WaitingDeviceRow
from wire.codec import convert

_SHOWN: Final = (
    *("id", "state", "public_key", "serial", "profile_name", "architecture", "agent_version"),
    *("labels", "token", "asked_at_s", "last_asked_at_s"),
)
"""The fields that have the same name in the table and in the API: all but `why`."""


class WaitingDevices:
    """The queue of devices that wait (`controller.services.admission`).

    Args:
        database: The control state.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[WaitingDevice]:
        """Return the queue: who asked first is first.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rows = waiting.all_rows(transaction)
            serials = registrations.serials_of(transaction, [row.id for row in rows])
            rules = tokens.rules(transaction, {row.token for row in rows})
            return [_shown(row, _why(row, serials, rules)) for row in rows]

    def accept(self, device: str) -> WaitingDevice:
        """Let a device in, or one that was refused; calling it twice is safe.

        Args:
            device: The identifier for which it asks.

        Raises:
            UnknownDeviceError: No device waits under it.
        """
        return self._decide(device, WaitingState.ACCEPTED)

    def refuse(self, device: str) -> WaitingDevice:
        """Refuse a device: another one may ask for its identifier then.

        Args:
            device: The identifier for which it asks.

        Raises:
            UnknownDeviceError: No device waits under it.
        """
        return self._decide(device, WaitingState.REFUSED)

    def _decide(self, device: str, state: WaitingState) -> WaitingDevice:
        with self._database.transaction() as transaction:
            row = waiting.get(transaction, device)
            row.state = state
            serials = registrations.serials_of(transaction, [row.id])
            rules = tokens.rules(transaction, {row.token})
            return _shown(row, _why(row, serials, rules))


def _why(row: WaitingDeviceRow, serials: Mapping[str, str], rules: Mapping[str, str]) -> str:
    """Say why a device is not let in by itself.

    Args:
        row: The device.
        serials: With which serial number each identifier is registered.
        rules: What each token accepts.
    """
    if row.state == WaitingState.REFUSED:
        return "an operator refused it"
    if row.state == WaitingState.ACCEPTED:
        return "it is accepted, and goes on when it asks"
    registered = serials.get(row.id, row.serial)
    if registered != row.serial:
        said = f"it says {row.serial}" if row.serial else "it says none"
        return f"{row.id} is registered with the serial number {registered}, and {said}"
    rule = rules.get(row.token, BY_HAND)
    if rule == BY_HAND:
        return "its token lets nobody in by itself"
    if rule == AUTO:
        return f"{row.id} was registered with another serial number when it asked"
    return f"its token lets in by itself only {rule}"


def _shown(row: WaitingDeviceRow, why: str) -> WaitingDevice:
    return convert({name: getattr(row, name) for name in _SHOWN} | {"why": why}, WaitingDevice)
