"""Figures as the report's page writes them, with the same number of digits everywhere."""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from packager.result import BuildResult

UNKNOWN: Final = "\N{EN DASH}"
KIB: Final = 1024.0
_TENFOLD: Final = 10.0
_HUNDREDFOLD: Final = 100.0


def machine_of(result: BuildResult) -> str:
    """Return the machine that measured most latencies.

    Figures may come from an earlier build's report, and so from another machine than the one that
    builds.
    """
    counts = Counter(c.performance.machine for c in result.candidates if c.performance)
    most = max(counts.values(), default=0)
    machines = sorted(machine for machine, count in counts.items() if count == most)
    return result.machine if result.machine in machines or not machines else machines[0]


def architecture_of(machine: str) -> str:
    """Return the architecture of a machine's name."""
    return machine.partition(" ")[0]


def size_text(size_bytes: float | None) -> str:
    """Return a size with a binary unit and three digits."""
    if size_bytes is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < KIB:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{digits(size_bytes)} {unit}"
        size_bytes /= KIB
    return f"{digits(size_bytes)} GiB"


def digits(value: float) -> str:
    """Return a number with three digits and no exponent."""
    if not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= _HUNDREDFOLD:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= _TENFOLD else f"{value:.2f}"


def ms(value: float | None) -> str:
    """Return a time in milliseconds, to the microsecond where that is meaningful."""
    if value is None:
        return UNKNOWN
    return f"{value:.3f}" if abs(value) < _TENFOLD else digits(value)


def share(value: float | None) -> str:
    """Return a share of 1, or a metric."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.4f}"


def error_text(value: float) -> str:
    """Return an error with three digits."""
    return f"{value:.3g}" if math.isfinite(value) else UNKNOWN


def sqnr_text(value: float | None, worst_error: float) -> str:
    """Return a ratio of signal to noise in decibels; without one, whether nothing differs."""
    if value is None:
        return UNKNOWN if worst_error else "exact"
    return f"{value:.1f}"


def range_text(low: float | None, high: float | None) -> str:
    """Return a range after its figure; empty if it is not known."""
    return "" if low is None or high is None else f" ({low:.4f} to {high:.4f})"
