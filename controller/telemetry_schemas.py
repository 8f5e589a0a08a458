"""The answers of the HTTP API about telemetry; `controller.drift_schemas` has those about drift."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class AnswerSource:
    """Which rows answered a part of the time."""

    level: str
    """`minute`, `hour` or `day`."""

    since_s: int
    until_s: int


@dataclass(kw_only=True)
class TelemetryTable:
    """The answer to a telemetry query."""

    columns: list[str]
    rows: list[list[Any]]
    sources: list[AnswerSource] = field(default_factory=list)
    """In order of time. Where minutes are no longer kept, the first begins before what was asked:
    with the whole hour or day."""


@dataclass(kw_only=True)
class DeadLetter:
    """A batch of telemetry that could not be read or stored."""

    at_s: float
    device: str
    reason: str
    size_bytes: int
    payload: str
    """Its first 4096 bytes, in base64."""


@dataclass(kw_only=True)
class ComparedGroup:
    """One of two groups that are compared."""

    name: str
    value: float
    devices: int
    values: float
    """How many values its devices have."""


@dataclass(kw_only=True)
class TelemetryComparison:
    """How two groups of a metric differ."""

    metric: str
    statistic: str
    by: str
    first: ComparedGroup
    second: ComparedGroup
    difference: float
    """The second less the first."""

    low: float | None
    """Of the difference, with 95 % confidence; null where too few devices have values."""

    high: float | None
    told: bool
    """Whether the interval leaves 0 out."""

    lacks: str = ""
    """Why there is no interval."""

    devices_in_both: int = 0
    """They weigh the same in both groups."""


@dataclass(kw_only=True)
class ReportedMetric:
    """A metric that devices have reported."""

    name: str
    kind: str
    """histogram, counter or gauge."""

    unit: str
    """As in UCUM; empty if this version of the controller does not know the metric."""

    attributes: list[str]
    """What it can be grouped and filtered by, beside the device."""

    series: int
    """In how many combinations of its attributes it came."""

    meaning: str


@dataclass(kw_only=True)
class ReportingDevice:
    """How complete the telemetry of an enrolled device is."""

    device: str
    online: bool
    newest_at_s: float | None
    """The end of the newest minute of which something is stored; null if nothing is."""

    batches: int
    dropped: int
    """Batches that the device dropped because its spool was full."""

    refused: int
    """Points and events that the controller could not store."""

    clock_ahead_s: float | None = None
    """How far its clock is ahead, negative for behind, if it is wrong and its times are
    corrected."""


@dataclass(kw_only=True)
class DeviceEvent:
    """Something that happened on a device, with its reason."""

    device: str
    at_s: float
    kind: str
    reason: str
    data: dict[str, Any] = field(default_factory=dict)
