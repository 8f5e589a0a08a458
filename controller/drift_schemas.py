"""The answers of the HTTP API about how far devices have moved away from the evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class DriftPart:
    """How one measure of one tensor has moved away from the evaluation."""

    variant: str
    tensor: str
    """`input.NAME` or `output.NAME`."""

    measure: str
    """class, margin, mean or spread."""

    stability_index: float
    distance: float
    """Of Jensen and Shannon, from 0 to 1."""

    samples: float
    devices: int
    units: int
    """How many observations the devices are: one each, unless the question named a unit."""

    chance: float | None
    """Probability that chance alone moves as far; null where nothing can be told."""

    lacks: str = ""
    """Why nothing can be told."""

    moved: bool
    """Whether it is beyond chance, with one bound on false alarms for all parts."""


@dataclass(kw_only=True)
class ReleaseDrift:
    """How far a release's requests and answers have moved away from its evaluation."""

    release: str
    variants: int
    """How many variants of the package carry a reference."""

    parts: list[DriftPart]


@dataclass(kw_only=True)
class DriftingDevice:
    """How one measure of one tensor has moved away from the evaluation on one device."""

    device: str
    variant: str
    tensor: str
    measure: str
    stability_index: float
    by_chance: float
    """About what the index of a device that has not moved would be with so many samples."""

    samples: float


@dataclass(kw_only=True)
class DriftingDevices:
    """The devices that have moved furthest from the evaluation of a release."""

    release: str
    variants: int
    """How many variants of the package carry a reference."""

    devices: list[DriftingDevice]
