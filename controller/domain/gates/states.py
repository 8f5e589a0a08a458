"""What gates may say, and how many devices they need. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

LEAST_DEVICES: Final = 5
"""Devices that must tell something on each side: of fewer, chance cannot be told."""


LEAST_OF_STRATUM: Final = 3
"""Devices of a profile on each side: the variance of two is anybody's guess."""


class GateState(StrEnum):
    """What a gate says."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    HOLD = "hold"
