"""Asks single devices to report their telemetry now, and knows whether the report is stored.

Rules:
- A device is asked once each `ASK_EVERY_S` at most, so that nobody makes it report without rest; it
  bounds that itself as well.
- A request that the device does not get within `EXPIRY_S` is forgotten by the broker: one that
  comes back later reports anyway.
- That a report is stored is noted in the transaction that stores its last batch
  (`telemetry.server.counting`): whoever asks after that finds it.
"""

from __future__ import annotations

import secrets
import threading
from typing import Final

from controller.domain.states import DeviceState
from controller.errors import ConflictError
from controller.query_schemas import ReportAsked, ReportState
from controller.services.director import Publisher
from controller.store import devices
from controller.store.database import Database
from telemetry.server.store import TelemetryStore
from wire import topics
from wire.clock import Clock
from wire.codec import to_json
from wire.reporting import ReportRequest

ASK_EVERY_S: Final = 10.0
EXPIRY_S: Final = 30
ID_BYTES: Final = 8


class ReportRequests:
    """Requests to report.

    Args:
        database: Which devices there are.
        telemetry: Where reports go.
        publisher: The way to the devices.
        clock: Durations.
    """

    def __init__(
        self, database: Database, telemetry: TelemetryStore, publisher: Publisher, clock: Clock
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._publisher = publisher
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: dict[str, float] = {}
        """When devices were asked that may not be asked again yet."""

    def ask(self, device: str) -> ReportAsked:
        """Ask a device to report.

        Args:
            device: Its identifier.

        Returns:
            What its report answers.

        Raises:
            UnknownDeviceError: There is none of that name.
            ConflictError: It is offline or shut out, was asked just now, or the broker is away.
        """
        with self._database.reading() as transaction:
            row = devices.get(transaction, device)
            state, is_online = row.state, row.online
        if state != DeviceState.ENROLLED:
            raise ConflictError(f"device {device} is {state}")
        if not is_online:
            raise ConflictError(
                f"device {device} is offline",
                remedy="what it has recorded comes when it is online again",
            )
        self._claim(device)
        request = ReportRequest(id=secrets.token_hex(ID_BYTES))
        topic = topics.down(device, "report_request")
        if not self._publisher.publish(topic, to_json(request), expiry_s=EXPIRY_S):
            self._release(device)
            raise ConflictError(
                "the controller has no connection with the broker",
                remedy="`fleet controller status` says more",
            )
        return ReportAsked(device=device, id=request.id)

    def state(self, device: str, request: str) -> ReportState:
        """Return whether the report that answers a request is stored.

        Args:
            device: Its identifier.
            request: As `ask` returned it; only the newest that a device answered is known.

        Raises:
            TelemetryStoreError: The database failed.
        """
        return ReportState(stored=self._telemetry.answered(device) == request)

    def _claim(self, device: str) -> None:
        """Note that a device is asked now.

        Raises:
            ConflictError: It was asked just now.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            waiting = {d: at_s for d, at_s in self._asked.items() if now_s - at_s < ASK_EVERY_S}
            if device in waiting:
                rest_s = ASK_EVERY_S - (now_s - waiting[device])
                raise ConflictError(
                    f"device {device} was asked to report just now",
                    remedy=f"ask again in {rest_s:.0f} s",
                )
            self._asked = waiting | {device: now_s}

    def _release(self, device: str) -> None:
        with self._lock:
            self._asked.pop(device, None)
