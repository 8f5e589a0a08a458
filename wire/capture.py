"""Which requests devices capture for their operator, and what is said of each in the clear. Pure.

A sample is the inputs of one request and the answer of the model. It is encrypted to the operator's
key where it is taken (`wire.trust.sealing`); nobody on the way can read it.

Rules:
- A rule comes only within a signed desired state, so nobody else can give a device a key.
- What is said of a sample in the clear is bound to it: who changes a byte of it makes the sample
  unreadable.
- A sample has a bound, and so has each message that carries a part of it.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from typing import Final

import msgspec

from wire.codec import from_json
from wire.errors import WireFormatError

KEY_BYTES: Final = 32
"""X25519."""

MAX_SEALED_BYTES: Final = 2 * 1024 * 1024
"""Greatest sample, sealed: an image of 640 x 640 pixels as bytes, or of 224 x 224 as floats, takes
less. It is in the memory of the supervisor as a whole for a moment."""

PIECE_BYTES: Final = 120 * 1024
"""Greatest part of a sample in one message: no larger than a batch of telemetry."""

MAX_PIECES: Final = -(-MAX_SEALED_BYTES // PIECE_BYTES)
MAX_HEAD_BYTES: Final = 2048
MAX_BYTES_PER_DAY: Final = 10**12

_ID: Final = re.compile(r"[0-9a-f]{32}")


class CaptureRule(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests for a model a device captures."""

    id: str
    """The capture: random, new each time that the operator starts one."""

    public_key: str
    """The operator's X25519 key in base64: who holds the other half, and nobody else, can read what
    is captured."""

    share: float = 1.0
    """The probability with which a request is captured, or looked at where there is a margin."""

    margin: float | None = None
    """Of these only where the model is in doubt: where the two greatest scores of an answer differ
    by less than this. None for all."""

    bytes_per_day: int = 1_000_000
    """What a device may capture in a day, sealed."""

    @property
    def key(self) -> bytes:
        """The public key; empty if it is none."""
        try:
            key = base64.b64decode(self.public_key, validate=True)
        except (binascii.Error, ValueError):
            return b""
        return key if len(key) == KEY_BYTES else b""

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong, each as one line; empty if it can be."""
        rules = (
            (is_id(self.id), "capture.id is not 32 hexadecimal digits"),
            (self.key != b"", f"capture.public_key is not {KEY_BYTES} bytes in base64"),
            (0.0 < self.share <= 1.0, "capture.share is not above 0 and at most 1"),
            (
                self.margin is None or 0.0 < self.margin < math.inf,
                "capture.margin is not above 0",
            ),
            (
                0 < self.bytes_per_day <= MAX_BYTES_PER_DAY,
                f"capture.bytes_per_day is not within 1 to {MAX_BYTES_PER_DAY}",
            ),
        )
        return tuple(text for holds, text in rules if not holds)


class SampleHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a sample in the clear. Its bytes are bound to the sample."""

    capture: str
    """`CaptureRule.id`."""

    sample: str
    """Random: names the sample, so that one that comes twice is kept once."""

    device: str
    model: str
    release: str
    """Name and version of the package, such as `digits:1.1.0`."""

    variant: str
    at_s: float
    """Wall time at the device, seconds since 1970."""

    why: str
    """`share` or `margin`."""

    margin: float | None = None
    """By how much the two greatest scores differed; None where that was not looked at."""


def bound(head: bytes) -> bytes:
    """Return what is bound to a sample: its purpose, and the bytes of its head."""
    return b"edgefleet sample v1\0" + head


def is_id(text: str) -> bool:
    """Tell whether a text may name a capture or a sample."""
    return _ID.fullmatch(text) is not None


def read_head(data: bytes) -> SampleHead:
    """Read what is said of a sample.

    Args:
        data: As it came with the sample.

    Returns:
        The head.

    Raises:
        WireFormatError: It is malformed or too large, or its names are none.
    """
    head = from_json(data, SampleHead, limit_bytes=MAX_HEAD_BYTES)
    if not (is_id(head.capture) and is_id(head.sample)):
        raise WireFormatError("the head of a sample names no capture or no sample")
    if not math.isfinite(head.at_s):
        raise WireFormatError("the head of a sample has no time")
    return head


def pieces_of(size_bytes: int) -> int:
    """Return in how many messages a sample of so many bytes goes."""
    return -(-size_bytes // PIECE_BYTES)
