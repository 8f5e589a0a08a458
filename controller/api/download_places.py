"""Which devices get blobs where there is not room for all.

Rules:
- Each device gets one before any gets two, and so on: where there is no room, a transfer of a
  device that has fewer takes the place of the oldest one of the device that has most. So devices
  that take all they can keep no other out.
- That holds for all devices together, and for those behind one address.
- An eighth of the connections is left to those that have not shown a link yet: else a device whose
  turn it is could not say who it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from controller.errors import BusyError

ROOM_OF: Final = 8
"""One of so many connections carries no blob."""

MAX_OF_DEVICE: Final = 8
"""Blobs that one device gets at the same time. It fetches one; others are of connections that it
lost, and that nobody has ended yet."""

T = TypeVar("T")


class _Owner(NamedTuple):
    device: str
    client: str


class DownloadPlaces(Generic[T]):
    """The blobs that devices get now.

    Args:
        connections: How many connections there may be.
        per_client: How many of them one client may have.
    """

    def __init__(self, connections: int, per_client: int) -> None:
        self._most = _room(connections)
        self._most_of_client = _room(per_client)
        self._owners: dict[T, _Owner] = {}
        """In the order in which they began."""

    def begin(self, transfer: T, device: str, client: str) -> T | None:
        """Begin a transfer.

        Args:
            transfer: The transfer.
            device: Whose link it has.
            client: Where it comes from, as `controller.api.places.client_of` names it.

        Returns:
            The transfer that has lost its place, and must be ended; None if there was room.

        Raises:
            BusyError: The device gets as much as it may already.
        """
        of_client = [owner for owner in self._owners.values() if owner.client == client]
        if sum(owner.device == device for owner in self._owners.values()) >= MAX_OF_DEVICE:
            raise BusyError(
                f"{device} gets {MAX_OF_DEVICE} blobs already", remedy="try again when one has come"
            )
        loser = None
        if len(of_client) >= self._most_of_client:
            loser = self._loser(device, lambda owner: owner.client == client)
        elif len(self._owners) >= self._most:
            loser = self._loser(device, lambda _owner: True)
        self._owners[transfer] = _Owner(device, client)
        return loser

    def end(self, transfer: T) -> None:
        """Forget a transfer; one that has lost its place is forgotten already."""
        self._owners.pop(transfer, None)

    def _loser(self, device: str, is_near: Callable[[_Owner], bool]) -> T:
        """Take a place from the device that has most.

        Raises:
            BusyError: It would not have more than the other then.
        """
        counts = Counter(owner.device for owner in self._owners.values() if is_near(owner))
        richest = max(counts, key=counts.__getitem__)
        if counts[richest] < counts[device] + 2:
            raise BusyError(
                "as many devices get blobs as may at one time",
                remedy="try again in some seconds, or raise downloads.connections_per_client and "
                "downloads.connections in controller.toml",
            )
        loser = next(
            each
            for each, owner in self._owners.items()
            if owner.device == richest and is_near(owner)
        )
        self.end(loser)
        return loser


def _room(connections: int) -> int:
    return connections - connections // ROOM_OF
