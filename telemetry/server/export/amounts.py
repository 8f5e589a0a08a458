"""What is handed on of a series, with its histogram as an object. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.histogram import ExponentialHistogram
from telemetry.server.measures import MAX_COUNT


@dataclass(slots=True, kw_only=True)
class Amount:
    """The values of one series in a time."""

    count: int
    """What the histogram counts, where there is one."""

    total: float
    least: float
    greatest: float
    histogram: ExponentialHistogram | None = None

    def merge(self, other: Amount) -> None:
        """Add the values of another amount of the same series."""
        self.total += other.total
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        if self.histogram is None or other.histogram is None:
            self.count = min(self.count + other.count, MAX_COUNT)
        else:
            self.histogram.merge(other.histogram)
            self.count = self.histogram.count
