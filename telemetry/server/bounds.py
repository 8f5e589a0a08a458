"""Bounds of what the store takes, which the operator sets. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the store takes of devices."""

    clock_tolerance_s: float = 120.0
    """A clock that is wrong by more is corrected. An acknowledgement may take a minute, and figures
    are of whole minutes."""
