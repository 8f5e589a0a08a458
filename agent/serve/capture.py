"""What workers are asked to capture for the fleet's operator, and what they answer. Pure values."""

from __future__ import annotations

import msgspec


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests the fleet's operator wants."""

    capture: str
    """`wire.capture.CaptureRule.id`."""

    public_key: bytes
    share: float
    margin: float | None
    room_bytes: int
    """What may still be taken today, sealed."""


class Captured(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A sample that the operator alone can read."""

    head: bytes
    """A `wire.capture.SampleHead` as JSON."""

    sealed: bytes


class Missed(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """How many samples were wanted and not taken, for one reason."""

    reason: str
    samples: int
