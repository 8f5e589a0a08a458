"""What can go wrong with telemetry."""

from __future__ import annotations

from wire.errors import FleetError


class TelemetryError(FleetError):
    """Telemetry cannot be kept or asked."""

    code = "telemetry"


class SpoolError(TelemetryError):
    """The device's spool cannot be written or read."""

    code = "telemetry.spool"
    retryable = True


class TelemetryStoreError(TelemetryError):
    """The controller's database does not take or give telemetry."""

    code = "telemetry.store"
    retryable = True


class QueryError(TelemetryError):
    """A question to the telemetry store makes no sense."""

    code = "telemetry.query"


class UnknownMetricError(QueryError):
    """No device has reported a metric of that name."""

    code = "telemetry.unknown_metric"
