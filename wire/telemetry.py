"""Telemetry on its way to the controller: points, events, batches, and their acknowledgement."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from wire.batch_clock import BatchClock
from wire.messages import Message


class HistogramPoint(msgspec.Struct, frozen=True, kw_only=True, tag="histogram"):
    """An OpenTelemetry exponential histogram of one minute (or a part of it), as a delta."""

    metric: str
    """Ends in its unit, such as `inference_latency_ms`."""

    minute: int
    """Wall time, minutes since the epoch."""

    attributes: dict[str, str]
    blob: bytes
    """As `telemetry.histogram` encodes it."""


class SumPoint(msgspec.Struct, frozen=True, kw_only=True, tag="sum"):
    """A counter's growth within one minute (or a part of it)."""

    metric: str
    minute: int
    attributes: dict[str, str]
    value: float


class GaugePoint(msgspec.Struct, frozen=True, kw_only=True, tag="gauge"):
    """Readings within one minute (or a part of it)."""

    metric: str
    minute: int
    attributes: dict[str, str]
    count: int
    total: float
    least: float
    greatest: float


Point = HistogramPoint | SumPoint | GaugePoint


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened once and has a reason."""

    at_s: float
    kind: str
    """Such as `switch`, `fallback`, `install`, `worker`."""

    reason: str
    """One line for people."""

    data: dict[str, Any] = {}
    """The inputs of the decision, the candidates and why each lost."""


class TelemetryBatch(Message, frozen=True, kw_only=True):
    """Points and events; counted once by (device, boot, sequence). MessagePack.

    It may be compressed (`wire.packed`), once an acknowledgement has said that it is read so.
    """

    may_be_packed: ClassVar[bool] = True

    device: str
    boot_id: str
    sequence: int
    points: tuple[Point, ...] = ()
    events: tuple[Event, ...] = ()
    dropped: int = 0
    """Batches, and parts of batches, that the device dropped since the last one because its spool
    was full."""

    clock: BatchClock | msgspec.UnsetType = msgspec.UNSET
    """What the device's clocks showed; unset by agents that do not compare them."""

    answers: str | msgspec.UnsetType = msgspec.UNSET
    """The request to report (`wire.reporting`) that this batch, and what was sent before it, is the
    answer to."""


class TelemetryAck(Message, frozen=True, kw_only=True):
    """The controller has stored these batches; the device may forget them."""

    boot_id: str
    sequences: tuple[int, ...]
    reads: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The compressions in which batches may come (`wire.packed.readable`); unset by older
    controllers, which read plain batches alone."""

    report_every_s: float | msgspec.UnsetType = msgspec.UNSET
    """How often the controller wants figures at most, so that a fleet does not send more than it
    can store; the device bounds it. Unset for as often as the device likes."""

    at_s: float | msgspec.UnsetType = msgspec.UNSET
    """Wall time at the controller, seconds since 1970; unset by older controllers."""

    sent_steady_s: float | msgspec.UnsetType = msgspec.UNSET
    """That of the newest batch which this answers (`wire.batch_clock`); unset if it had none."""

    again: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Batches that are not stored, because their times may be wrong: the device is to send them
    again with how far its clock is ahead, or that it cannot know. Unset for none."""
