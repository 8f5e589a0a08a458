"""What the device asks of applications: how many requests to send now, and what may wait."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

VALID_S: Final = 5.0
"""How long advice holds: the device decides every second, and a shorter time saves nothing."""

STEPS: Final = 100
"""The ratio is told in hundredths, rounded down."""

HEADER: Final = "Edgefleet-Advice"
"""Of an answer, if fewer requests should come. Its value is a dictionary of RFC 9651."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What an application should do now; by default what it always does."""

    sampling_ratio: float = 1.0
    """The share of its normal rate of requests that it should send, 0.0 to 1.0."""

    defer: bool = False
    """Whether deferrable requests have to wait now."""

    reasons: tuple[str, ...] = ()
    """One line for each cause."""

    @property
    def told_ratio(self) -> float:
        """The ratio as applications are told."""
        return math.floor(self.sampling_ratio * STEPS + 1e-9) / STEPS

    @property
    def header(self) -> str:
        """The value of `HEADER`; empty if an answer needs none."""
        return f"sampling={self.told_ratio:.2f}" if self.told_ratio < 1.0 else ""

    def document(self) -> dict[str, Any]:
        """Return the advice as a document for applications."""
        return {
            "sampling_ratio": self.told_ratio,
            "defer": self.defer,
            "reasons": list(self.reasons),
            "valid_s": VALID_S,
        }
