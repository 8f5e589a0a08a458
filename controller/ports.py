"""What the controller needs from outside: a broker's accounts and a place for telemetry.

Rules:
- Every method may be called again with the same arguments and then changes nothing.
- Calls may wait for an answer for some seconds and come from any thread but the transport's own;
  an implementation that talks over MQTT therefore has a connection of its own.
- An answer that does not come is a retryable `FleetError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controller.config import ControllerConfig
from controller.schemas import DeviceEvent, TelemetryTable
from wire.messages import TelemetryBatch


class BrokerAccess(Protocol):
    """Who may connect to the broker, and as whom."""

    def allow_enrolment(self, username: str, password: str) -> None:
        """Let holders of an enrolment token ask to be enrolled, and nothing else."""
        ...

    def end_enrolment(self, username: str) -> None:
        """Remove the account of an enrolment token; none of that name is no fault."""
        ...

    def allow_device(self, device: str, password: str | None) -> None:
        """Let a device use its own topics.

        Args:
            device: Its identifier, which is its user name.
            password: The secret that it chose; None keeps the one that its account has (a device
                comes back from quarantine).
        """
        ...

    def refuse_device(self, device: str) -> None:
        """Disable a device's account and end its connection; the account is kept."""
        ...

    def close(self) -> None:
        """Release the connection; also after a failure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryQuestion:
    """A question about metrics, as it was typed."""

    metric: str
    statistics: str
    """Separated by commas; empty means what suits the metric."""

    group_by: str
    where: str
    """`key=value`, separated by commas."""

    since: str
    step: str


class TelemetrySink(Protocol):
    """Where telemetry goes."""

    def ingest(self, batch: TelemetryBatch) -> bool:
        """Store a batch once; False when it had been stored before."""
        ...


class TelemetryReader(Protocol):
    """Where telemetry is asked for."""

    def query(self, question: TelemetryQuestion) -> TelemetryTable:
        """Answer a question about metrics; a question that cannot be read is a `FleetError`."""
        ...

    def events(
        self, device: str, *, kinds: tuple[str, ...], since_s: float, limit: int
    ) -> list[DeviceEvent]:
        """Return what happened on a device, the oldest first."""
        ...


AccessFactory = Callable[[ControllerConfig], BrokerAccess]
"""Makes the access of a configuration: `controller.app.service.run(config, factory)`."""
