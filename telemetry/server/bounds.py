"""Bounds of what the store takes, which the operator sets. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the store takes of devices."""

    clock_tolerance_s: float = 120.0
    """A clock that is wrong by more is corrected. An acknowledgement may take a minute, and figures
    are of whole minutes."""

    label_values: int = 1000
    """How many values of one label of one metric there are in the whole fleet. A release, the label
    with most values, brings 30 series at least: `series.MAX_SERIES` are enough for as many."""

    device_label_values: int = 100
    """How many of them one device may bring: the most that agents report of one label are some
    dozen, but for releases, and those that are published are always taken."""

    device_series: int = 2000
    """How many series a device may bring: it that gets each release first brings all its series, a
    dozen releases within the days for which rows are kept; what it may not bring, the next does."""
