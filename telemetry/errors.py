"""What can go wrong with telemetry."""

from __future__ import annotations

from wire.errors import FleetError


class TelemetryError(FleetError):
    """Telemetry cannot be stored or queried."""

    code = "telemetry"


class SpoolError(TelemetryError):
    """The device's spool cannot be written or read."""

    code = "telemetry.spool"
    retryable = True


class TelemetryStoreError(TelemetryError):
    """The controller's database cannot store or return telemetry."""

    code = "telemetry.store"
    retryable = True


class QueryError(TelemetryError):
    """A query of the telemetry store makes no sense."""

    code = "telemetry.query"


class UnknownMetricError(QueryError):
    """No device has reported a metric of that name."""

    code = "telemetry.unknown_metric"


class NotKeptError(QueryError):
    """What is asked for is older than it is kept, or was deleted in part."""

    code = "telemetry.not_kept"


class AlertRuleError(TelemetryError):
    """A rule of alerts says what cannot be."""

    code = "telemetry.alert_rule"
