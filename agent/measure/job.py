"""What the agent hands to the process that measures a variant, and what it gets back."""

from __future__ import annotations

from typing import Final

import msgspec

from wire.package.performance import Performance
from wire.package.variant import VariantInfo

MAX_BYTES = 4 * 1024**2
"""Of either file."""

EXIT_STORAGE: Final = 74
"""Status of the process where the storage failed, so that it could not say what came of it."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A variant on this device."""

    directory: str
    info: VariantInfo
    assets: str | None
    """The directory of its golden samples; None if it has none."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One variant to measure."""

    variant: Side
    reference: Side | None
    """The variant that computes what the reference computes; None to measure the other alone."""

    threads: int
    min_runs: int
    min_duration_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    performance: Performance | None = None
    fault: str = ""
    """Why it could not be measured."""
