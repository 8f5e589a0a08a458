"""Keeps devices out of the broker that were shut out while their certificates are valid.

The broker keeps that in the file of its accounts. If the file was lost or is older, the certificate
of a device that was decommissioned would open the broker again; so the controller looks on each
connection and then each hour, and says what is missing.

Rules:
- Only devices count whose certificate has not ended: an account that is missing opens nothing. An
  account of one that ended long ago is removed, because the broker writes all of them at each
  change; so is that of a device that was let in again meanwhile.
- Whether a device is shut out is read anew before each change: saying it may take long.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final

from controller.certificate_settings import DeviceCertificatesConfig
from controller.ports import BrokerAccess
from controller.store import certificates as store
from controller.store.database import Database
from wire.clock import Clock

TRY_AGAIN_S: Final = 30.0
LOOK_AGAIN_S: Final = 3600.0
"""A clock that is wrong for a while leaves nothing wrong for longer."""

KEPT_S: Final = 30 * 86_400.0
"""How long an account is kept after the certificate has ended, and after the controller began:
clocks differ, and a restored controller does not know how often a device has renewed."""


class ShutOut:
    """Says to the broker who is shut out.

    Args:
        database: The control state.
        access: The broker's accounts.
        certificates: How devices get certificates; None where they get none.
        clock: Wall time and durations.
    """

    def __init__(
        self,
        database: Database,
        access: BrokerAccess,
        certificates: DeviceCertificatesConfig | None,
        clock: Clock,
    ) -> None:
        self._database = database
        self._access = access
        self._clock = clock
        self._kept_s = KEPT_S + (certificates.valid_s if certificates is not None else 0.0)
        self._since_s = clock.monotonic_s()
        self._came = threading.Event()
        self._due_s = float("inf")

    def broker_came(self) -> None:
        """Note a new connection with the broker, which may have lost its accounts."""
        self._came.set()

    def tell(self) -> None:
        """Bring the broker's accounts up to date, after each connection and each hour.

        Raises:
            FleetError: The database or the broker does not answer; a later call tries again.
        """
        now_s = self._clock.monotonic_s()
        if not self._came.is_set() and now_s < self._due_s:
            return
        self._came.clear()  # before the calls: the broker may lose its accounts while it answers
        self._due_s = now_s + TRY_AGAIN_S
        there = self._access.refused_devices()
        with self._database.reading() as transaction:
            wanted = store.shut_out(transaction, now_s=self._clock.now_s())
        for device in sorted(wanted - there):
            if self._is_shut_out(device):
                self._access.refuse_device(device)
        for device in sorted(self._unneeded(there)):
            if self._unneeded({device}):
                self._access.allow_certificate(device)
        self._due_s = self._clock.monotonic_s() + LOOK_AGAIN_S

    def _is_shut_out(self, device: str) -> bool:
        with self._database.reading() as transaction:
            return bool(store.shut_out(transaction, now_s=self._clock.now_s(), device=device))

    def _unneeded(self, devices: Collection[str]) -> set[str]:
        is_known = self._clock.monotonic_s() - self._since_s >= self._kept_s
        before_s = self._clock.now_s() - self._kept_s if is_known else 0.0
        with self._database.reading() as transaction:
            return store.without_need(transaction, devices, before_s=before_s)
