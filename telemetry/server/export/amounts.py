"""What is handed on of a series, with its histogram as an object. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.histogram import ExponentialHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """The values of one series in a time."""

    count: int
    """What the histogram counts, where there is one."""

    total: float
    least: float
    greatest: float
    histogram: ExponentialHistogram | None = None
