"""Settings of `[penalty]` in `controller.toml`: devices whose installs fail again and again. Pure.

Rules:
- Without the table no device is held out of rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import msgspec

MIN_S: Final = 60.0
MAX_S: Final = 366 * 86_400.0
MAX_FAILURES: Final = 100


class PenaltyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a device is held out of rollouts, and for how long."""

    failures: int = 0
    """So many installs that failed hold a device out; 0: none ever does."""

    within_s: float = 7 * 86_400.0
    """Those that failed longer ago do not count."""

    time_out_s: float = 86_400.0
    """For how long; then it takes part again by itself."""


def faults(config: PenaltyConfig) -> Iterator[str]:
    """Yield what is impossible in the settings.

    Args:
        config: As read.

    Yields:
        One line for each fault.
    """
    if not 0 <= config.failures <= MAX_FAILURES:
        yield f"penalty.failures is not within 0 to {MAX_FAILURES}"
    if config.failures == 0 and config != PenaltyConfig():
        yield "penalty.failures is missing: after how many failed installs a device is held out"
    for name in ("within_s", "time_out_s"):
        value: float = getattr(config, name)
        if not (math.isfinite(value) and MIN_S <= value <= MAX_S):
            yield f"penalty.{name} is not within {MIN_S:.0f} to {MAX_S:.0f}"
