"""Measures the energy that inferences add, by the counters of the processor.

Rules:
- The counters are of whole processors, with everything that runs there. So the power while the
  variant does not run is measured first, and taken off.
- Where there is no counter, or it may not be read, or the inferences are lost in what the rest
  takes, nothing is known.

Source:
    Linux, Documentation/power/powercap/powercap.rst: zones, `energy_uj` and `max_energy_range_uj`;
    H. David et al., "RAPL: memory power estimation and capping", ISLPED 2010.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from wire.clock import Clock

POWERCAP: Final = Path("/sys/class/powercap")
WINDOW_S: Final = 2.0
"""The counters are written each millisecond, and other work comes and goes within tenths of one
second."""

UJ_PER_J: Final = 1e6
_PACKAGE: Final = "package-"
"""How the names of the zones begin that are whole processors; others are parts of them."""


class EnergyCounters:
    """The counters of the processors.

    Args:
        root: Where the kernel has them.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._zones = [zone for zone in _zones(root) if _text(zone / "name").startswith(_PACKAGE)]

    def read_uj(self) -> tuple[int, ...] | None:
        """Return what each counter shows, in microjoules; None where there is none to read."""
        values = [_number(zone / "energy_uj") for zone in self._zones]
        known = tuple(value for value in values if value is not None)
        return known if known and len(known) == len(values) else None

    def between_j(self, before: tuple[int, ...], after: tuple[int, ...]) -> float:
        """Return the energy between two readings, in joules; a counter may have begun again."""
        total_uj = 0
        for zone, first, last in zip(self._zones, before, after, strict=True):
            whole = _number(zone / "max_energy_range_uj") or 0
            total_uj += last - first if last >= first else last - first + whole
        return total_uj / UJ_PER_J


def added_j(
    infer: Callable[[], object],
    counters: EnergyCounters,
    clock: Clock,
    window_s: float = WINDOW_S,
) -> float | None:
    """Return the energy that one inference adds.

    Args:
        infer: Runs the variant once.
        counters: The counters.
        clock: The source of time.
        window_s: How long to measure without it, and then with it.

    Returns:
        Joules; None where nothing tells.
    """
    before, began_s = counters.read_uj(), clock.monotonic_s()
    if before is None:
        return None
    clock.sleep(window_s)
    middle, middle_s = counters.read_uj(), clock.monotonic_s()
    runs = 0
    while clock.monotonic_s() - middle_s < window_s:
        infer()
        runs += 1
    after, end_s = counters.read_uj(), clock.monotonic_s()
    if middle is None or after is None or runs == 0 or middle_s <= began_s:
        return None
    rest_w = counters.between_j(before, middle) / (middle_s - began_s)
    added = counters.between_j(middle, after) - rest_w * (end_s - middle_s)
    return added / runs if added > 0.0 else None


def _zones(root: Path) -> list[Path]:
    try:
        return sorted(root.iterdir())
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text.isdecimal() else None
