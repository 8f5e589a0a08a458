"""The requests and answers of the HTTP API about what devices capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from controller.schemas import Bounds, Number, Request
from wire.capture import MAX_BYTES_PER_DAY

_BYTES_PER_DAY = 1_000_000


@dataclass(kw_only=True)
class CaptureRequest(Request):
    """Which requests for a model devices are to capture."""

    public_key: str
    """X25519, base64: who has the private half can read what comes, and nobody else."""

    selector: str = ""
    """Label expression; empty means every device."""

    share: Number = 1.0
    margin: Number | None = None
    """Only where the two greatest scores of an answer differ by less; None for all."""

    bytes_per_day: Annotated[int, Bounds(ge=1, le=MAX_BYTES_PER_DAY, strict=True)] = _BYTES_PER_DAY
    """What each device may capture in a day."""


@dataclass(kw_only=True)
class Capture:
    """What is captured of a model, and what has come."""

    model: str
    is_on: bool
    """False if nothing is captured any more; then only what was is told."""

    capture: str = ""
    public_key: str = ""
    share: float | None = None
    margin: float | None = None
    bytes_per_day: int | None = None
    selector: str = ""
    started_at_s: float | None = None
    devices: int = 0
    """How many devices it was issued to."""

    accepted: int = 0
    """How many of them have accepted it; one may forbid it all the same."""

    samples: int = 0
    """How many are kept."""

    sample_bytes: int = 0
    partial: int = 0
    """How many samples have come in part."""


@dataclass(kw_only=True)
class KeptSample:
    """A sample that a device captured."""

    device: str
    sample: str
    head: str
    """Base64 of a `wire.capture.SampleHead` as JSON."""

    size_bytes: int
    stored_at_s: float
    sealed: str | None = None
    """Base64; None in a list."""
