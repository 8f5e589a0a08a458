"""Devices that wait to be let in, as the operator sees them and decides about them.

Rules:
- A decision is about a key. The device learns of it when it asks the next time; until then the
  operator may decide otherwise.
"""

from __future__ import annotations

from typing import Final

from controller.domain.states import WaitingState
from controller.schemas import WaitingDevice
from controller.store import waiting
from controller.store.database import Database
from controller.store.waiting_tables import WaitingDeviceRow
from wire.codec import convert

_SHOWN: Final = (
    *("id", "state", "public_key", "serial", "profile_name", "architecture", "agent_version"),
    *("labels", "token", "asked_at_s", "last_asked_at_s"),
)
"""The fields that have the same name in the table and in the API: all."""


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
            return [_shown(row) for row in waiting.all_rows(transaction)]

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
            return _shown(row)


def _shown(row: WaitingDeviceRow) -> WaitingDevice:
    return convert({name: getattr(row, name) for name in _SHOWN}, WaitingDevice)
