"""Keeps devices out of the broker that were shut out while their certificates are valid.

The broker keeps that in the file of its accounts. If the file was lost or is older, the certificate
of a device that was decommissioned would open the broker again; so the controller looks on each
connection, and says what is missing.

Rules:
- Only devices count whose certificate has not ended: an account that is missing opens nothing. An
  account of one that has ended is removed: the broker writes all of them at each change.
"""

from __future__ import annotations

import threading

from controller.ports import BrokerAccess
from controller.store import certificates
from controller.store.database import Database
from wire.clock import Clock

TRY_AGAIN_S = 30.0


class ShutOut:
    """Says to the broker who is shut out.

    Args:
        database: The control state.
        access: The broker's accounts.
        clock: Wall time and durations.
    """

    def __init__(self, database: Database, access: BrokerAccess, clock: Clock) -> None:
        self._database = database
        self._access = access
        self._clock = clock
        self._came = threading.Event()
        self._due_s = float("inf")

    def broker_came(self) -> None:
        """Note a new connection with the broker, which may have lost its accounts."""
        self._came.set()

    def tell(self) -> None:
        """Bring the broker's accounts up to date, once for each connection with the broker.

        Raises:
            FleetError: The database or the broker does not answer; a later call tries again.
        """
        now_s = self._clock.monotonic_s()
        if not self._came.is_set() and now_s < self._due_s:
            return
        self._came.clear()  # before the calls: the broker may lose its accounts while it answers
        self._due_s = now_s + TRY_AGAIN_S
        with self._database.reading() as transaction:
            wanted, ended = certificates.shut_out(transaction, now_s=self._clock.now_s())
        there = self._access.refused_devices()
        for device in sorted(wanted - there):
            self._access.refuse_device(device)
        for device in sorted(ended & there):
            self._access.allow_certificate(device)  # which opens nothing any more
        self._due_s = float("inf")
