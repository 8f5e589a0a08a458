"""The requests and answers of the HTTP API about devices that are registered before they enrol."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from controller.schemas import Bounds, Request

MAX_AT_ONCE = 1000
"""Devices of one request; its body has a bound, too."""


@dataclass(kw_only=True)
class RegisteredDevice(Request):
    """A device that may enrol by itself."""

    serial: str
    device: str | None = None
    """The identifier with which it must enrol; null for any."""

    labels: dict[str, str] = field(default_factory=dict)
    line: Annotated[int, Bounds(ge=0, le=1_000_000_000)] = 0
    """Where it stands in the file of who asks, which a fault names; 0 for nowhere."""


@dataclass(kw_only=True)
class RegistrationRequest(Request):
    """Devices to register, all or none."""

    devices: list[RegisteredDevice]


@dataclass(kw_only=True)
class Registered:
    """How many devices a request has registered."""

    devices: int


@dataclass(kw_only=True)
class ShownRegistration:
    """A device that may enrol by itself, and who has."""

    serial: str
    device: str | None
    labels: dict[str, str]
    registered_at_s: float
    claimed_by: str | None
    """The device that has enrolled with the serial number."""

    claimed_at_s: float | None
