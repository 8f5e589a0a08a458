"""The requests and answers of the HTTP API about measurements on devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from controller.domain.measuring import MeasurementState
from controller.schemas import Bounds, Request

MAX_ASKED = 1000
DEFAULT_ASKED = 10
DEFAULT_LIMIT_S = 600.0
MAX_LIMIT_S = 86_400


@dataclass(kw_only=True)
class MeasurementRequest(Request):
    """What is to be measured, and on which devices."""

    release: str
    """`name:version` or a digest."""

    selector: str
    """Label expression; of the devices that it names, only those that are lent are asked."""

    most_devices: Annotated[int, Bounds(ge=1, le=MAX_ASKED)] = DEFAULT_ASKED
    limit_s: Annotated[float, Bounds(ge=1, le=MAX_LIMIT_S)] = DEFAULT_LIMIT_S
    """How long an answer is waited for."""


@dataclass(kw_only=True)
class Askable:
    """Which devices could be asked to measure now, whatever the release."""

    devices: list[str]
    not_asked: dict[str, str]
    """Device to the reason."""


@dataclass(kw_only=True)
class MeasurementPart:
    """One device that was asked."""

    device: str
    profile: str
    state: MeasurementState
    reason: str = ""
    answered_at_s: float | None = None
    figures: dict[str, Any] | None = None
    """What it answered: `variants`, each with `performance` or a `reason`, and the temperatures
    before and after."""


@dataclass(kw_only=True)
class Measurement:
    """A request to measure a release, and what came of it."""

    id: str
    release: str
    asked_at_s: float
    expires_at_s: float
    devices: list[MeasurementPart]
    not_asked: dict[str, str] = field(default_factory=dict)
    """Device to the reason; only in the answer to the request itself."""
