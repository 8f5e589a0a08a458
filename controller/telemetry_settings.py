"""Settings of `[telemetry]` in `controller.toml`: how long it is kept, and its bounds. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from telemetry.server.bounds import Bounds

SECONDS_PER_DAY: Final = 86_400.0
USUAL: Final = Bounds()
MIN_TOLERANCE_S: Final = 60.0
"""Twice the error with which a device knows the controller's time."""


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long telemetry is kept, in days, and what is taken of devices."""

    keep_minutes: float = 7.0
    """What each device measured in each minute. What comes later than this is refused."""

    keep_hours: float = 90.0
    """The same, by the hour."""

    keep_days: float = 730.0
    """The same, by the day."""

    keep_events: float = 90.0
    """What happened on devices, and why."""

    clock_tolerance_s: float = USUAL.clock_tolerance_s
    """A device's clock that is wrong by more is corrected."""

    label_values: int = USUAL.label_values
    """Values of one label of one metric in the fleet; further ones become `other`."""

    device_label_values: int = USUAL.device_label_values
    """Those that one device may bring; further ones of it become `other`, but for what is
    published."""

    device_series: int = USUAL.device_series
    """Series that one device may bring; of further ones all labels become `other`."""

    @property
    def bounds(self) -> Bounds:
        """What the store takes of devices."""
        return Bounds(
            clock_tolerance_s=self.clock_tolerance_s,
            label_values=self.label_values,
            device_label_values=self.device_label_values,
            device_series=self.device_series,
        )


def faults(config: TelemetryConfig) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.

    Yields:
        One line for each fault.
    """
    for name in ("keep_minutes", "keep_events"):
        if not getattr(config, name) > 0:
            yield f"telemetry.{name} is not positive"
    if not config.keep_minutes <= config.keep_hours <= config.keep_days:
        yield "telemetry.keep_minutes, keep_hours and keep_days do not rise"
    if not MIN_TOLERANCE_S <= config.clock_tolerance_s < math.inf:
        yield f"telemetry.clock_tolerance_s is not a number from {MIN_TOLERANCE_S:.0f} on"
    for name in ("label_values", "device_label_values", "device_series"):
        if getattr(config, name) < 1:
            yield f"telemetry.{name} is below 1"
