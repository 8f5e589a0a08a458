"""Upkeep: regular work that keeps the controller's database correct and small."""

from __future__ import annotations

from controller.services.reception import Reception
from controller.store import devices
from controller.store.database import Database
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

SILENT_AFTER_S = 180.0
"""A device sends telemetry several times a minute. After this time without a message it counts as
offline, even if its last will was lost. The controller must have heard its devices for as long."""

PRUNE_EVERY_S = 3600.0
ROLL_UP_LIMIT_S = 60.0
"""After so long other upkeep has its turn."""


class Upkeep:
    """Keeps the database correct and small.

    Args:
        database: The control state.
        telemetry: What devices sent.
        reception: How long the controller has heard its devices.
        clock: Wall time and durations.
    """

    def __init__(
        self,
        database: Database,
        telemetry: TelemetryStore,
        reception: Reception,
        clock: Clock,
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._reception = reception
        self._clock = clock
        self._pruned_at_s: float | None = None

    def mark_silent(self) -> None:
        """Record devices as offline that have sent nothing for a long time.

        Raises:
            DatabaseError: The database does not answer.
        """
        if self._reception.heard_s() < SILENT_AFTER_S:
            return  # it is the controller that has heard nobody
        now_s = self._clock.now_s()
        since_s = now_s - SILENT_AFTER_S
        with self._database.reading() as transaction:
            silent = devices.count_silent(transaction, since_s=since_s, now_s=now_s)
        if silent:
            with self._database.transaction() as transaction:
                devices.mark_silent(transaction, since_s=since_s, now_s=now_s)

    def prune(self) -> None:
        """Delete old telemetry, at most once an hour.

        Raises:
            TelemetryStoreError: The database does not answer.
        """
        now_s = self._clock.monotonic_s()
        if self._pruned_at_s is None or now_s - self._pruned_at_s >= PRUNE_EVERY_S:
            self._telemetry.prune()
            self._pruned_at_s = now_s

    def roll_up(self) -> None:
        """Make hours and days of telemetry.

        Raises:
            TelemetryStoreError: The database does not answer.
        """
        self._telemetry.roll_up(ROLL_UP_LIMIT_S)
