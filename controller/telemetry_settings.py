"""Settings of `[telemetry]` in `controller.toml`: how long telemetry is kept. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

SECONDS_PER_DAY: Final = 86_400.0


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long telemetry is kept, in days."""

    keep_minutes: float = 7.0
    """What each device measured in each minute. What comes later than this is refused."""

    keep_hours: float = 90.0
    """The same, by the hour."""

    keep_days: float = 730.0
    """The same, by the day."""

    keep_events: float = 90.0
    """What happened on devices, and why."""


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
