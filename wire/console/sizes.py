"""Sizes as people read them: binary units, everywhere the same. Pure."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024.0
UNITS: Final = ("B", "KiB", "MiB", "GiB")


def bytes_text(size_bytes: float) -> str:
    """Return a size with a binary unit."""
    unit = _unit(size_bytes)
    return f"{_in_unit(size_bytes, unit)} {UNITS[unit]}"


def bytes_of_text(part_bytes: float, whole_bytes: float) -> str:
    """Return a size beside another, in the unit of that one: `0.5 of 2.0 MiB`."""
    unit = _unit(whole_bytes)
    return f"{_in_unit(part_bytes, unit)} of {_in_unit(whole_bytes, unit)} {UNITS[unit]}"


def _unit(size_bytes: float) -> int:
    return sum(size_bytes >= KIB**power for power in range(1, len(UNITS)))


def _in_unit(size_bytes: float, unit: int) -> str:
    return f"{size_bytes / KIB**unit:.{min(unit, 1)}f}"
