"""The requests and answers of the HTTP API about labels of several devices at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.schemas import Request


@dataclass(kw_only=True)
class LabelRequest(Request):
    """Labels to set on devices and to remove from them, on all of them or on none."""

    devices: list[str] = field(default_factory=list)
    selector: str | None = None
    """Which devices instead of named ones."""

    set: dict[str, str] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    """Names of labels; a device that has none of that name stays as it is."""

    dry_run: bool = False
    """Only tell what would change."""


@dataclass(kw_only=True)
class RelabelledDevice:
    """A device whose labels change, with those that do."""

    device: str
    before: dict[str, str]
    """What they were; one that is new is not in it."""

    after: dict[str, str]
    """What they are; one that is removed is not in it."""


@dataclass(kw_only=True)
class LabelsChange:
    """What became of the labels of devices."""

    matched: int
    """Devices that were named, or that the selector means."""

    changed: int
    """Those of them whose labels changed, or would."""

    devices: list[RelabelledDevice]
    """The first of these, by identifier."""
